"""The acceptance models on two real gloo processes: loss, gradients, buffers, three optimiser steps, evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed_case import run_ranks
from models import BY_NAME, CASES, reference_step
from torch.distributed.tensor import DTensor

import hpir

RANKS = 2
STEPS = 3


def full(tensor: Any) -> torch.Tensor:
    whole: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().clone()


def train_on_ranks(rank: int, names: list[str], axes: list[str], microbatches: int) -> dict[str, Any]:
    """Train each model for three steps with evaluations around them; return everything as full tensors."""
    found: dict[str, Any] = {}
    for name in names:
        case = BY_NAME[name]
        model = case.model(torch.float64)
        rows = 2 * microbatches
        batches = [case.data(RANKS * rows, torch.float64, seed=seed) for seed in range(STEPS)]
        mine = [{key: leaf[rank * rows : (rank + 1) * rows] for key, leaf in batch.items()} for batch in batches]
        plan = {
            "mesh": {"dp": RANKS},
            "data": {"axes": ["dp"], "microbatches": microbatches},
            "fsdp": {"axes": axes, "units": list(case.units), "ignore": list(case.ignore)},
        }
        step = hpir.compile(model, case.train, mine[0], plan=plan, batch_dims=case.batch_dims)
        optimiser = torch.optim.AdamW(step.parameters(), lr=1e-2)
        record: dict[str, Any] = {"losses": [], "evaluated": []}
        for number, batch in enumerate(mine):
            record["evaluated"].append(float(step.evaluate(**batch)[0]))
            optimiser.zero_grad()
            record["losses"].append(float(step(**batch)))
            if number == 0:
                record["grads"] = {
                    key: full(parameter.grad)
                    for key, parameter in model.named_parameters(remove_duplicate=False)
                    if parameter.grad is not None
                }
                record["buffers"] = {key: buffer.clone() for key, buffer in model.named_buffers()}
            optimiser.step()
        record["evaluated"].append(float(step.evaluate(**mine[-1])[0]))
        record["parameters"] = {
            key: full(parameter) for key, parameter in model.named_parameters(remove_duplicate=False)
        }
        found[name] = record
    return found


@pytest.mark.one_in(2)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("axes", "microbatches"), ((["dp"], 1), (["dp"], 2), ([], 1)), ids=str)
def test_training_on_two_processes_equals_the_plain_loop(axes: list[str], microbatches: int) -> None:
    names = [case.name for case in CASES]
    results = run_ranks(train_on_ranks, RANKS, names, axes, microbatches, timeout=240)
    for name in names:
        case = BY_NAME[name]
        model = case.model(torch.float64)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
        first, second = results[0][name], results[1][name]
        assert first["losses"] == second["losses"], name
        rows = 2 * microbatches
        for number in range(STEPS):
            batch = case.data(RANKS * rows, torch.float64, seed=number)
            optimiser.zero_grad()
            expected = reference_step(
                model,
                case.train,
                batch,
                data_ranks=RANKS,
                microbatches=microbatches,
                batch_dims=case.batch_dims,
                step=number,
            )
            assert first["losses"][number] == pytest.approx(float(expected.loss), rel=1e-10), (name, number)
            assert first["evaluated"][number] == pytest.approx(float(expected.loss), rel=1e-10), (name, number)
            if number == 0:
                assert set(first["grads"]) == set(expected.grads), name
                for key, gradient in expected.grads.items():
                    torch.testing.assert_close(
                        first["grads"][key], gradient, rtol=1e-10, atol=1e-12, msg=f"{name} {key}"
                    )
                for key, buffer in expected.buffers.items():
                    if key in first["buffers"]:
                        torch.testing.assert_close(first["buffers"][key], buffer, rtol=1e-10, atol=1e-12, msg=key)
            optimiser.step()
        for key, parameter in model.named_parameters(remove_duplicate=False):
            torch.testing.assert_close(
                first["parameters"][key], parameter.detach(), rtol=1e-9, atol=1e-10, msg=f"{name} {key}"
            )
            assert torch.equal(first["parameters"][key], second["parameters"][key]), (name, key)


def disagree(rank: int) -> list[str]:
    """Do on one rank, or on all, what cannot be compiled; return what each rank is told."""
    case = BY_NAME["uneven"]
    model, batch = case.model(), case.data(2)
    plan: dict[str, Any] = {"mesh": {"dp": RANKS}, "fsdp": {"axes": ["dp"]}}
    told = []
    for attempt in (plan if rank == 0 else {"msh": {}}, {"mesh": {"dp": RANKS}, "fsdp": {"axes": ["pd"]}}):
        try:
            hpir.compile(model, case.train, batch, plan=attempt)
        except hpir.HpirError as error:
            told.append(f"{type(error).__name__}: {error}")
    hpir.compile(model, case.train, batch, plan=plan)
    try:
        hpir.compile(model, case.train, batch, plan=plan)
    except hpir.HpirError as error:
        told.append(f"{type(error).__name__}: {error}")
    return told


@pytest.mark.timeout(120)
def test_what_one_rank_cannot_compile_all_are_told_of() -> None:
    first, second = run_ranks(disagree, RANKS)
    assert first[0].startswith("PlanError: rank 1: ") and "did you mean 'mesh'?" in first[0]
    assert second[0].startswith("PlanError: ") and "did you mean 'mesh'?" in second[0]
    for told in (first, second):
        assert "no axis 'pd'" in told[1] or "did you mean 'dp'" in told[1]
        assert told[2].startswith("CaptureError: ")
        assert "'up.weight' is a DTensor already: compile the model before it is sharded" in told[2]
