"""Autocast: its casts are ops of the IR, and give the bits of eager torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from capture_check import assert_captured, regression
from models import train_regression
from torch import Tensor, nn

import hpir

BATCH = regression(6, 3)
LOW = torch.bfloat16


class Plain(nn.Module):
    """A norm between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.outer(self.norm(torch.tanh(self.inner(x))))
        return y


class Within(Plain):
    """Autocast in forward, and off again for the norm."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", LOW):
            y = torch.tanh(self.inner(x))
            with torch.autocast("cpu", enabled=False):
                y = self.norm(y.float())
            z: Tensor = self.outer(y)
        return z.float()


class Decorated(Plain):
    """Autocast as a decorator of forward."""

    @torch.autocast("cpu", LOW)  # type: ignore[untyped-decorator]
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        return y


def train_low(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Autocast in the step function."""
    with torch.autocast("cpu", LOW):
        found = model(x)
    return F.mse_loss(found.float(), y)


@torch.autocast("cpu", LOW)  # type: ignore[untyped-decorator]
def train_decorated(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Autocast as a decorator of the step function; torch runs losses in float32 under it."""
    return F.mse_loss(model(x), y)


def train_converted(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A model that gives bfloat16."""
    return F.mse_loss(model(x).float(), y)


CASES: tuple[tuple[type[Plain], Callable[..., Tensor]], ...] = (
    (Plain, train_low),
    (Within, train_regression),
    (Decorated, train_converted),
    (Plain, train_decorated),
)


@pytest.mark.parametrize(("model", "train"), CASES, ids=("step", "forward", "method", "decorated step"))
def test_autocast_is_compiled_in(model: type[Plain], train: Callable[..., Tensor]) -> None:
    batch = {name: leaf.float() for name, leaf in BATCH.items()}
    exported = assert_captured(model, train, batch, dtype=torch.float32, tolerance=1e-2)
    low = [line for line in exported.text().splitlines() if "torch.aten.addmm" in line and line.endswith("3],bf16>")]
    assert len(low) == 1
    # On one rank it is the same operators on the same values: the bits of eager torch.
    torch.manual_seed(0)
    live = model()
    exported = hpir.export(live, train, batch)
    result = hpir.simulate(hpir.compile_program(exported), exported.state, batch)
    loss = train(live, **batch)
    torch.autograd.backward(loss)
    assert torch.equal(result.loss, loss.detach())
    for name, parameter in live.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(result.grads[name], parameter.grad), name


def test_autocast_around_the_capture_is_refused() -> None:
    with (
        torch.autocast("cpu", LOW),
        pytest.raises(
            hpir.CaptureError, match=r"torch.autocast\('cpu'\) is on around the capture: put it into the step"
        ),
    ):
        hpir.export(Plain(), train_regression, {name: leaf.float() for name, leaf in BATCH.items()})


def elsewhere(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Autocast for a device that the step is not on."""
    with torch.autocast("cuda", LOW):
        return train_regression(model, x, y)


def test_autocast_for_another_device_is_refused_at_the_line_it_was_to_cast() -> None:
    batch = {name: leaf.float() for name, leaf in BATCH.items()}
    with pytest.raises(
        hpir.CaptureError, match=r"casts nothing of a step on 'cpu': .*torch.autocast\(x.device.type"
    ) as error:
        hpir.export(Plain(), elsewhere, batch)
    assert str(error.value).startswith(f"{__file__}:{Plain.forward.__code__.co_firstlineno + 1}: ")
