"""State that a model settles in its first step, and checks of values: captured where they make no difference."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from models import reference_step
from torch import Tensor, nn

import hpir
from hpir.lowering.to_program import to_program


def train(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def assert_equals_eager(model: nn.Module) -> None:
    batch = {"x": torch.randn(4, 3, dtype=torch.float64)}
    exported = hpir.export(model.double(), train, batch)
    result = hpir.simulate(to_program(exported.module), exported.state, batch)
    expected = reference_step(model, train, batch)
    torch.testing.assert_close(result.loss, expected.loss, rtol=1e-12, atol=0)
    for name, gradient in expected.grads.items():
        torch.testing.assert_close(result.grads[name], gradient, rtol=1e-12, atol=1e-15)


class Configuration:
    """What a model is told, and what it notes."""

    kind: str | None

    def __init__(self) -> None:
        self.kind = None


class NotesKind(nn.Module):
    """Notes what its input is like on its configuration, as Hugging Face models note their kind of problem."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Configuration()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.config.kind is None:
            self.config.kind = "floating" if x.is_floating_point() else "integer"
        y: Tensor = self.linear(x)
        return torch.tanh(y) if self.config.kind == "floating" else y


def test_a_kind_noted_in_the_first_step() -> None:
    model = NotesKind()
    hpir.export(model, train, {"x": torch.randn(2, 3)})
    assert model.config.kind is None
    assert_equals_eager(model)


class InstallsHooks(nn.Module):
    """Installs hooks under a lock when it is first called, as Hugging Face models do to collect hidden states."""

    lock = threading.Lock()

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if not getattr(self, "_hooks_installed", False):
            with self.lock:
                self.linear.register_forward_hook(lambda module, args, output: 2 * output)
                self._hooks_installed = True
        y: Tensor = self.linear(x)
        return y


def test_hooks_installed_in_the_first_step() -> None:
    model = InstallsHooks()
    hpir.export(model, train, {"x": torch.randn(2, 3)})
    assert not model.linear._forward_hooks
    assert not hasattr(model, "_hooks_installed")
    assert_equals_eager(model)


class Counts(NotesKind):
    """Counts its steps."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class WarmsUp(NotesKind):
    """Computes something else in its first step."""

    def forward(self, x: Tensor) -> Tensor:
        if self.config.kind is None:
            self.config.kind = "floating"
            x = 2 * x
        return super().forward(x)


@pytest.mark.parametrize("model", (Counts, WarmsUp))
def test_state_that_makes_a_difference_is_refused(model: Any) -> None:
    with pytest.raises(hpir.CaptureError, match="the forward assigns to"):
        hpir.export(model(), train, {"x": torch.randn(2, 3)})


class Checks(nn.Module):
    """Checks values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        torch._assert_async(x.isfinite().all(), "expected finite values")
        check: Any = torch._check
        check(bool((x.abs() < 100).all()))
        y: Tensor = self.linear(x)
        return y


def test_checks_of_values_are_left_out() -> None:
    exported = hpir.export(Checks(), train, {"x": torch.randn(2, 3)})
    assert "isfinite" not in exported.text()
    assert_equals_eager(Checks())


class Indexed(nn.Module):
    """Indexes with whole dims beside index tensors, forwards and backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        columns = torch.tensor([0, 2, 2])
        return x[:, None] * self.weight[:, columns, :][:, :, torch.tensor([4, 1, 0])].sum(0)


def test_indexing_some_dims() -> None:
    assert_equals_eager(Indexed())


class Resized(nn.Module):
    """Interpolates: the backward scatters with indices beside whole dims."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.weight = nn.Parameter(torch.randn(1, 1, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        image = x[:, None, None, :] * self.weight
        return nn.functional.interpolate(image, size=(5, 4), mode=self.mode)


@pytest.mark.parametrize("mode", ("nearest", "bilinear", "bicubic", "area"))
def test_interpolation(mode: str) -> None:
    assert_equals_eager(Resized(mode))
