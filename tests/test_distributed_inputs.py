"""Inputs on two real gloo processes: structures, Python values, tensors given whole, complex parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from complex_models import Spectral, train_spectral
from distributed_case import run_ranks
from input_cases import KINDS
from models import reference_step
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import hpir

PLAN = {"mesh": {"dp": 2}, "data": {"microbatches": 2}, "fsdp": {"axes": ["dp"]}}


def full(tensor: Any) -> Tensor:
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().clone()


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 3).double()


def spectral() -> nn.Module:
    torch.manual_seed(0)
    return Spectral()


def rows(seed: int, width: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(8, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def with_table(model: nn.Module, x: Tensor, table: Tensor, rate: float) -> Tensor:
    """One input split, one given whole, one value."""
    loss: Tensor = (model(x) @ table.t()).square().mean() * rate
    return loss


def train_all(rank: int) -> dict[str, Any]:
    """Run one step of each kind; return loss, evaluated loss and gradients, and what a changed value is told."""
    found: dict[str, Any] = {}

    def run(name: str, model: nn.Module, train: Any, batch: Any, batch_dims: Any = 0) -> Any:
        step = hpir.compile(model, train, batch, plan=PLAN, batch_dims=batch_dims)
        evaluated, loss = float(step.evaluate(**batch)[0]), float(step(**batch))
        found[name] = (loss, evaluated, {key: full(value.grad) for key, value in step.named_parameters()})
        return step

    mine = slice(4 * rank, 4 * rank + 4)
    for name in ("frozen dataclass", "batch encoding", "values"):
        make, train = KINDS[name]
        run(name, linear(), train, make(rows(1)[mine], rows(2)[mine]))
    run("spectral", spectral(), train_spectral, {"x": rows(1, 8, torch.float32)[mine]})
    batch = {"x": rows(1)[mine], "table": rows(2)[:5], "rate": 0.25}
    step = run("whole", linear(), with_table, batch, {"table": None})
    try:
        step(**{**batch, "rate": 0.5})
    except hpir.RuntimeFault as error:
        found["told"] = str(error)
    found["again"] = float(step(**batch))
    return found


@pytest.mark.timeout(180)
def test_inputs_on_two_processes_equal_the_loop() -> None:
    first, second = run_ranks(train_all, 2, timeout=150)
    cases: dict[str, Any] = {
        name: (linear, lambda model, x, w, kind=KINDS[name]: kind[1](model, **kind[0](x, w)), rows(2))
        for name in ("frozen dataclass", "batch encoding", "values")
    }
    for name, (build, train, w) in cases.items():
        expected = reference_step(build(), train, {"x": rows(1), "w": w}, data_ranks=2, microbatches=2)
        _assert_equal(name, first[name], second[name], expected, 1e-10)
    expected = reference_step(
        spectral(), train_spectral, {"x": rows(1, 8, torch.float32)}, data_ranks=2, microbatches=2
    )
    _assert_equal("spectral", first["spectral"], second["spectral"], expected, 1e-5)
    assert first["spectral"][2]["weight"].dtype == torch.complex64
    expected = reference_step(
        linear(),
        lambda model, x, table: with_table(model, x, table, 0.25),
        {"x": rows(1), "table": rows(2)[:5]},
        data_ranks=2,
        microbatches=2,
        batch_dims={"table": None},
    )
    _assert_equal("whole", first["whole"], second["whole"], expected, 1e-10)
    for rank, found in enumerate((first, second)):
        assert found["told"].startswith(
            f"rank {rank}: input 'rate': the step was compiled for the value 0.25, got: 0.5"
        )
        assert found["again"] == found["whole"][0]


def _assert_equal(name: str, first: Any, second: Any, expected: Any, tolerance: float) -> None:
    for loss, evaluated, gradients in (first, second):
        assert loss == pytest.approx(float(expected.loss), rel=tolerance), name
        assert evaluated == pytest.approx(float(expected.loss), rel=tolerance), name
        assert set(gradients) == set(expected.grads)
        for key, gradient in expected.grads.items():
            torch.testing.assert_close(gradients[key], gradient, rtol=tolerance, atol=tolerance, msg=f"{name} {key}")
