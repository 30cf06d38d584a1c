"""Every acceptance model on every data-parallel plan, all ranks simulated in float64, against the plain loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exports import captured
from models import BY_NAME, CASES, Case, reference_step
from torch import nn

import hpir
from hpir.runtime.program import Program

PLANS: dict[str, dict[str, Any]] = {
    "dp1": {"mesh": {"dp": 1}, "fsdp": {"axes": ["dp"]}},
    "dp2": {"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"]}},
    "dp2_keep": {"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"], "reshard_after_forward": False}},
    "dp3": {"mesh": {"dp": 3}, "fsdp": {"axes": ["dp"]}},
    "hsdp2x2": {"mesh": {"rep": 2, "dp": 2}, "fsdp": {"axes": ["dp"], "replicate_axes": ["rep"]}},
    "fsdp2x2": {"mesh": {"a": 2, "b": 2}, "fsdp": {"axes": ["a", "b"]}},
    "ddp2": {"mesh": {"dp": 2}, "data": {"axes": ["dp"]}, "fsdp": {"axes": []}},
    "size1_outside": {"mesh": {"one": 1, "dp": 2}, "fsdp": {"axes": ["dp"], "replicate_axes": ["one"]}},
    "size1_inside": {"mesh": {"dp": 2, "one": 1}, "fsdp": {"axes": ["one", "dp"]}},
}


def plan_for(case: Case, plan: str, microbatches: int) -> hpir.Plan:
    keys = dict(PLANS[plan])
    keys["fsdp"] = {**keys["fsdp"], "units": list(case.units), "ignore": list(case.ignore)}
    keys["data"] = {**keys.get("data", {}), "microbatches": microbatches}
    return hpir.Plan.model_validate(keys)


def data_ranks(plan: str) -> int:
    ranks = 1
    for size in PLANS[plan]["mesh"].values():
        ranks *= size
    return ranks


def assert_step_equals_loop(
    program: Program, case: Case, model: nn.Module, ranks: int, microbatches: int, tolerance: float
) -> None:
    """Simulate one step and compare loss, every gradient and every buffer with the plain loop; leave both applied."""
    batch = case.data(2 * ranks * microbatches, torch.float64)
    state = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    state = {name: tensor.detach().clone() for name, tensor in state.items()}
    result = hpir.simulate(program, state, batch, check_types=True)
    expected = reference_step(
        model, case.train, batch, data_ranks=ranks, microbatches=microbatches, batch_dims=case.batch_dims
    )
    torch.testing.assert_close(result.loss, expected.loss, rtol=tolerance, atol=tolerance)
    assert set(result.grads) == set(expected.grads)
    for name, gradient in expected.grads.items():
        torch.testing.assert_close(result.grads[name], gradient, rtol=tolerance, atol=tolerance, msg=name)
    for name, buffer in result.buffers.items():
        torch.testing.assert_close(buffer, expected.buffers[name], rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("microbatches", (1, 2, 4))
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_step_equals_the_plain_loop(name: str, plan: str, microbatches: int) -> None:
    case = BY_NAME[name]
    program = hpir.compile_program(captured(name, 2), plan_for(case, plan, microbatches))
    assert_step_equals_loop(program, case, case.model(torch.float64), data_ranks(plan), microbatches, 1e-10)


LOWER = {torch.float32: 2e-5, torch.bfloat16: 6e-2}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.parametrize("plan", ("dp2", "hsdp2x2"))
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_step_equals_the_plain_loop_in_lower_precision(name: str, plan: str, dtype: torch.dtype) -> None:
    case, ranks = BY_NAME[name], data_ranks(plan)
    program = hpir.compile_program(captured(name, 2, dtype), plan_for(case, plan, 2))
    model, batch = case.model(dtype), case.data(4 * ranks, dtype)
    # Of batch norm's saved statistics in bfloat16, torch's shape function and its CPU kernel say different dtypes.
    check_types = not (name == "convnet" and dtype == torch.bfloat16)
    result = hpir.simulate(program, captured(name, 2, dtype).state, batch, check_types=check_types)
    expected = reference_step(model, case.train, batch, data_ranks=ranks, microbatches=2, batch_dims=case.batch_dims)
    torch.testing.assert_close(result.loss.double(), expected.loss, rtol=LOWER[dtype], atol=LOWER[dtype])
    for key, gradient in expected.grads.items():
        assert result.grads[key].dtype == dtype
        scale = max(float(gradient.abs().max()), 1e-3)
        torch.testing.assert_close(result.grads[key], gradient, rtol=0, atol=LOWER[dtype] * scale, msg=key)


@pytest.mark.parametrize("plan", ("dp3", "hsdp2x2"))
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_three_optimiser_steps_equal_the_plain_loop(name: str, plan: str) -> None:
    case = BY_NAME[name]
    program = hpir.compile_program(captured(name, 2), plan_for(case, plan, 1))
    model = case.model(torch.float64)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimiser.zero_grad()
        assert_step_equals_loop(program, case, model, data_ranks(plan), 1, 1e-10)
        optimiser.step()


def test_a_program_survives_saving_and_loading(tmp_path: Any) -> None:
    case = BY_NAME["tied"]
    program = hpir.compile_program(captured("tied", 2), plan_for(case, "dp3", 2))
    program.save(tmp_path / "prog")
    loaded = Program.load(tmp_path / "prog")
    assert loaded.digest == program.digest
    assert_step_equals_loop(loaded, case, case.model(torch.float64), 3, 2, 1e-10)
