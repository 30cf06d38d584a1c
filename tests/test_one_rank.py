"""One rank: the lowered Program against the captured FX graph (bitwise) and against eager training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exports import captured
from models import BY_NAME, CASES, Case, Reference, reference_step
from torch import Tensor, nn

import hpir
from hpir.dialect.signature import read_signature, step_functions
from hpir.lowering.exported import Exported
from hpir.lowering.to_program import to_program
from hpir.runtime.simulate import SimulationResult

pytestmark = pytest.mark.one_in(3)

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def run_graph(exported: Exported, batch: dict[str, Tensor]) -> dict[tuple[str, str], Tensor]:
    """Run the captured FX graph directly; results by role and name, divided by the weight where there is one."""
    signature = read_signature(next(step_functions(exported.module.operation)))
    arguments = [batch[a.name] if a.role == "input" else exported.state[a.name].detach() for a in signature.arguments]
    with torch.no_grad():
        values = exported.graph_module(*arguments)
    found = {
        (info.role, name): value for info, value in zip(signature.results, values, strict=True) for name in info.names
    }
    weight = found.pop(("weight", "weight"), None)
    if weight is None:
        return found
    return {key: value / weight if key[0] in ("loss", "grad") else value for key, value in found.items()}


def simulated(result: SimulationResult) -> dict[tuple[str, str], Tensor]:
    """Loss, gradients and buffers of a simulation, by role and name."""
    return {
        ("loss", "loss"): result.loss,
        **{("grad", name): value for name, value in result.grads.items()},
        **{("buffer", name): value for name, value in result.buffers.items()},
    }


def eager(model: nn.Module, case: Case, batch: dict[str, Tensor]) -> Reference:
    return reference_step(model, case.train, batch, batch_dims=case.batch_dims)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_one_rank_is_bit_equal_to_the_graph_and_to_eager(name: str, dtype: torch.dtype) -> None:
    case = BY_NAME[name]
    model, batch = case.model(dtype), case.data(4, dtype)
    exported = captured(name, 4, dtype)
    graph = run_graph(exported, batch)
    result = hpir.simulate(to_program(exported.module), exported.state, batch)
    found = simulated(result)
    assert set(found) == {key for key in graph if key[0] != "output"}
    for key, value in found.items():
        assert torch.equal(value, graph[key]), key
    expected = eager(model, case, batch)
    assert torch.equal(result.loss, expected.loss.to(dtype))
    assert set(result.grads) == set(expected.grads)
    for parameter, gradient in expected.grads.items():
        assert torch.equal(result.grads[parameter], gradient), parameter
    for buffer, value in result.buffers.items():
        assert torch.equal(value, expected.buffers[buffer]), buffer


def test_outputs_have_the_structure_and_values_of_eager() -> None:
    case = BY_NAME["outputs"]
    model, batch = case.model(), case.data(4)
    exported = captured("outputs", 4, torch.float32)
    outputs: Any = hpir.simulate(to_program(exported.module), exported.state, batch).outputs
    (expected,) = reference_step(model, case.train, batch).outputs
    assert torch.equal(outputs["logits"], expected["logits"])
    assert torch.equal(outputs["metrics"]["right"], expected["metrics"]["right"])


def test_outputs_of_microbatches_are_concatenated_or_stacked() -> None:
    case = BY_NAME["outputs"]
    model, batch = case.model(), case.data(6)
    exported = captured("outputs", 2, torch.float32)
    outputs: Any = hpir.simulate(to_program(exported.module, microbatches=3), exported.state, batch).outputs
    expected = reference_step(model, case.train, batch, microbatches=3).outputs
    assert torch.equal(outputs["logits"], torch.cat([output["logits"] for output in expected]))
    assert torch.equal(outputs["metrics"]["right"], torch.stack([output["metrics"]["right"] for output in expected]))


@pytest.mark.parametrize("microbatches", (2, 4))
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_microbatches_are_the_plain_loop(name: str, microbatches: int) -> None:
    case = BY_NAME[name]
    model, batch = case.model(torch.float64), case.data(8, torch.float64)
    exported = captured(name, 8 // microbatches)
    result = hpir.simulate(to_program(exported.module, microbatches=microbatches), exported.state, batch)
    expected = reference_step(model, case.train, batch, microbatches=microbatches, batch_dims=case.batch_dims)
    torch.testing.assert_close(result.loss, expected.loss, rtol=1e-12, atol=0)
    for parameter, gradient in expected.grads.items():
        torch.testing.assert_close(result.grads[parameter], gradient, rtol=1e-10, atol=1e-14)
    for buffer, value in result.buffers.items():
        torch.testing.assert_close(value, expected.buffers[buffer], rtol=1e-12, atol=0)


CLEANUPS = (
    "cse",
    "canonicalize",
    "hp-simplify",
    "canonicalize,cse,hp-simplify",
    "hp-simplify,canonicalize,hp-simplify,cse",
)


@pytest.mark.parametrize("pipeline", CLEANUPS)
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_cleanups_change_no_result(name: str, pipeline: str) -> None:
    batch = BY_NAME[name].data(4)
    exported = captured(name, 4, torch.float32)
    before = simulated(hpir.simulate(to_program(exported.module), exported.state, batch))
    hpir.run_passes(exported.module, pipeline)
    after = simulated(hpir.simulate(to_program(exported.module), exported.state, batch))
    assert set(after) == set(before)
    for key, value in after.items():
        assert torch.equal(value, before[key]), key
