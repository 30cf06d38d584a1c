"""Losses that are scaled, summed, shaped or rounded: by an input that changes, by a `GradScaler`, by a constant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from distributed_case import run_ranks
from models import UnevenMLP, reference_step
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import hpir
from hpir.runtime.step import Step

pytestmark = pytest.mark.one_in(2)

PLAN: dict[str, Any] = {"mesh": {"dp": 2}, "data": {"microbatches": 2}, "fsdp": {"axes": ["dp"]}}


def mean(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = F.mse_loss(model(x), y)
    return loss


def several(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    penalty = sum((parameter.square().sum() for parameter in model.parameters()), start=torch.zeros(()))
    found = model(x)
    loss: Tensor = F.mse_loss(found, y) + 0.1 * F.l1_loss(found, y) + 1e-2 * penalty
    return loss


def of_one_element(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return mean(model, x, y).reshape(1)


def kept_dim(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = (model(x) - y).square().flatten().mean(0, keepdim=True)
    return loss


def times_constant(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return 128 * mean(model, x, y) / 3


def in_bfloat16(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return mean(model, x, y).bfloat16()


def in_float16(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return 8 * mean(model, x, y).half()


def into_outputs(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    loss = mean(model, x, y)
    return loss, {"loss": loss, "root": loss.sqrt(), "again": loss}


def batch_of(rows: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(rows, width, generator=generator, dtype=torch.float64).to(dtype) for width in (3, 1))
    return {"x": x, "y": y}


def model_of(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return UnevenMLP().to(dtype)


@pytest.mark.parametrize(
    ("train", "tolerance"),
    (
        (several, 1e-12),
        (of_one_element, 1e-12),
        (kept_dim, 1e-12),
        (times_constant, 1e-12),
        (in_bfloat16, 4e-3),
        (in_float16, 5e-4),
        (into_outputs, 1e-12),
    ),
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_step_is_the_plain_loop(train: Callable[..., Any], tolerance: float) -> None:
    model, batch = model_of(), batch_of(8)
    exported = hpir.export(model, train, {name: leaf[:2] for name, leaf in batch.items()})
    result = hpir.simulate(hpir.compile_program(exported, PLAN), exported.state, batch, check_types=True)
    expected = reference_step(model, train, batch, data_ranks=2, microbatches=2)
    assert result.loss.shape == expected.loss.shape
    torch.testing.assert_close(result.loss.double(), expected.loss, rtol=tolerance, atol=0)
    for name, gradient in expected.grads.items():
        torch.testing.assert_close(result.grads[name], gradient, rtol=1e-10, atol=1e-14)
    if train is into_outputs:
        for name, found in result.outputs.items():
            torch.testing.assert_close(found, torch.stack([each[name].detach() for each in expected.outputs]))


def test_a_loss_in_16_bits_is_averaged_in_32() -> None:
    model, batch = model_of(), batch_of(32)
    exported = hpir.export(model, in_bfloat16, {name: leaf[:1] for name, leaf in batch.items()})
    plan = {**PLAN, "data": {"microbatches": 16}}
    loss = hpir.simulate(hpir.compile_program(exported, plan), exported.state, batch).loss
    parts = [in_bfloat16(model, batch["x"][row : row + 1], batch["y"][row : row + 1]).detach() for row in range(32)]
    assert loss.dtype == torch.bfloat16
    assert loss == torch.stack(parts).float().mean().bfloat16()


def scaled(model: nn.Module, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    return mean(model, x, y) * scale


def test_the_scale_can_be_an_input_that_changes_from_step_to_step() -> None:
    model, batch = model_of(), batch_of(8)
    example = {name: leaf[:2] for name, leaf in batch.items()}
    exported = hpir.export(model, scaled, {**example, "scale": torch.ones(())})
    program = hpir.compile_program(exported, PLAN)
    expected = reference_step(model, mean, batch, data_ranks=2, microbatches=2)
    for scale in (1.0, 1024.0, 0.5):
        result = hpir.simulate(program, exported.state, {**batch, "scale": torch.tensor(scale)})
        torch.testing.assert_close(result.loss, expected.loss * scale, rtol=1e-12, atol=0)
        for name, gradient in expected.grads.items():
            torch.testing.assert_close(result.grads[name], gradient * scale, rtol=1e-10, atol=1e-14)


class Rows(nn.Module):
    """Each row of the weight has a gradient of its own: one overflows alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4, bias=False)
        self.last = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.tanh(self.linear(x)))
        return y


def overflowing(model: nn.Module, x: Tensor, y: Tensor, factor: Tensor, scale: Tensor) -> Tensor:
    """A loss whose gradient in the first row of the weight overflows with a large factor."""
    first = model.linear(x)[:, 0]  # type: ignore[operator]
    loss: Tensor = (mean(model, x, y) + (first * factor).mean()) * scale
    return loss


FACTORS = (0.1, 3e38, 0.2, 0.3)


def train_scaled(model: nn.Module, take: Callable[..., Any], clip: Callable[[float], Tensor]) -> dict[str, Any]:
    """Train with a `GradScaler` over steps of which one overflows."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    scales, losses, norms = [], [], []
    for factor in FACTORS:
        optimiser.zero_grad()
        scale = scaler.scale(torch.ones(()))
        losses.append(float(take(factor=torch.tensor(factor), scale=scale) / scale))
        scaler.unscale_(optimiser)
        norms.append(float(clip(1.0)))
        scaler.step(optimiser)
        scaler.update()
        scales.append(scaler.get_scale())
    whole = {
        name: (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach().clone()
        for name, parameter in model.named_parameters()
    }
    return {"scales": scales, "losses": losses, "norms": norms, "parameters": whole}


def plainly_scaled(ranks: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Rows()
    batch = batch_of(8, torch.float32)

    def take(**scalars: Tensor) -> Tensor:
        return reference_step(model, overflowing, {**batch, **scalars}, data_ranks=ranks).loss

    return train_scaled(model, take, lambda norm: nn.utils.clip_grad_norm_(model.parameters(), norm))


def compiled_scaled(rank: int, ranks: int, plan: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Rows()
    batch = {name: leaf.chunk(ranks)[rank] for name, leaf in batch_of(8, torch.float32).items()}
    scalars = {"factor": torch.ones(()), "scale": torch.ones(())}
    step = hpir.compile(model, overflowing, {**batch, **scalars}, plan=plan)
    return train_scaled(model, lambda **given: step(**batch, **given), step.clip_grad_norm_)


def assert_same_training(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["scales"] == expected["scales"] == [64.0, 32.0, 32.0, 64.0]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    finite = [number for number, factor in enumerate(FACTORS) if factor < 1]
    assert [found["norms"][at] for at in finite] == pytest.approx([expected["norms"][at] for at in finite], rel=1e-5)
    for name, parameter in expected["parameters"].items():
        torch.testing.assert_close(found["parameters"][name], parameter, rtol=1e-5, atol=1e-6)


def test_a_grad_scaler_around_a_step() -> None:
    assert_same_training(compiled_scaled(0, 1, {}), plainly_scaled(1))


@pytest.mark.timeout(120)
def test_a_grad_scaler_around_steps_on_two_processes() -> None:
    plan = {"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"], "ignore": ["last.bias"]}}
    expected = plainly_scaled(2)
    for found in run_ranks(compiled_scaled, 2, 2, plan):
        assert_same_training(found, expected)


def test_a_grad_scaler_in_the_step_function_is_refused_and_left_alone() -> None:
    scaler = torch.amp.GradScaler("cpu")

    def train(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = mean(model, x, y)
        return scaler.scale(loss)  # here

    lines, first = inspect.getsourcelines(train)
    line = first + next(number for number, text in enumerate(lines) if "# here" in text)
    with pytest.raises(hpir.CaptureError) as error:
        hpir.export(model_of(), train, batch_of(2))
    assert str(error.value) == (
        f"{__file__}:{line}: cannot capture: a GradScaler is used within the step, and its scale changes from step to "
        "step (multiply the loss by an input, and give that scaler.scale(torch.ones(())) at every step)"
    )
    assert torch.equal(scaler.scale(torch.ones(())), torch.tensor(65536.0))


def test_a_grad_scaler_that_is_off_may_stay_in_the_step_function() -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    model, batch = model_of(), batch_of(2)
    step = hpir.compile(model, lambda model, x, y: scaler.scale(mean(model, x, y)), batch)
    assert isinstance(step, Step)
    torch.testing.assert_close(step(**batch), mean(model, **batch).detach())
