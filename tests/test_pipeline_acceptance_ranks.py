"""A third of the pipelines that are simulated, on real gloo processes: three optimiser steps beside the plain loop."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from deep_models import BY_DEEP_NAME, captured_deep
from distributed_case import run_ranks
from models import reference_step
from test_pipeline_acceptance import MESHES, covering, plan_for
from torch.distributed.tensor import DTensor

import hpir
from hpir.mesh import Mesh
from hpir.runtime.program import Program
from hpir.runtime.simulate import simulate_evaluate
from hpir.runtime.step import Step

CHOSEN = [case for number, case in enumerate(covering()) if (number + number // 4) % 3 == 0]
RANKS = {name: Mesh.of(sizes).size for name, sizes in MESHES.items()}


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def train(rank: int, cases: list[tuple[str, str]]) -> None:
    """Train each model for three steps, evaluated before each."""
    for name, where in cases:
        case, program = BY_DEEP_NAME[name], Program.load(where)
        ranks, mesh = program.mesh.count(program.data_axes), program.mesh
        model, plain = case.model(torch.float64), case.model(torch.float64)
        constants = torch.load(f"{where}/constants.pt")
        step = Step(program, model, constants=constants)
        optimisers = [torch.optim.AdamW(each, lr=1e-2) for each in (step.parameters(), plain.parameters())]
        plain_parameters = dict(plain.named_parameters(remove_duplicate=False))
        rows = 2 * program.microbatches
        first = mesh.position(rank, program.data_axes) * rows
        for seed in range(3):
            batch = case.data(ranks * rows, torch.float64, seed=seed)
            mine = {key: leaf[first : first + rows] for key, leaf in batch.items()}
            evaluated, _ = step.evaluate(**mine)
            if rank == 0:
                state = dict(itertools.chain(plain.named_parameters(), plain.named_buffers()))
                simulated, _ = simulate_evaluate(program, {**state, **constants}, batch, step=seed)
                torch.testing.assert_close(evaluated, simulated, rtol=1e-10, atol=1e-10, msg=f"evaluation of {name}")
            loss = step(**mine)
            expected = reference_step(
                plain,
                case.train,
                batch,
                data_ranks=ranks,
                microbatches=program.microbatches,
                batch_dims=case.batch_dims,
                step=seed,
            )
            torch.testing.assert_close(loss, expected.loss, rtol=1e-10, atol=1e-10, msg=f"loss of {name}")
            for key, parameter in step.named_parameters():
                wanted = plain_parameters[key].grad
                assert (parameter.grad is None) == (wanted is None), (name, key)
                if parameter.grad is not None and wanted is not None:
                    found = full(parameter.grad)
                    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10, msg=f"{name}: {key}")
            for optimiser in optimisers:
                optimiser.step()
                optimiser.zero_grad()


@pytest.mark.one_in(2)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", sorted(set(RANKS.values())))
def test_training_equals_the_plain_loop(ranks: int, tmp_path: Path) -> None:
    cases = []
    for number, (name, mesh, schedule, microbatches) in enumerate(CHOSEN):
        if RANKS[mesh] != ranks:
            continue
        case, exported = BY_DEEP_NAME[name], captured_deep(name)
        plan = plan_for(case, MESHES[mesh], microbatches, pipeline={"schedule": schedule})
        program = hpir.compile_program(exported, plan)
        where = tmp_path / str(number)
        program.save(where)
        constants = {
            argument.name: exported.state[argument.name]
            for function in program.functions.values()
            for argument in function.arguments
            if argument.role == "constant"
        }
        torch.save(constants, where / "constants.pt")
        cases.append((name, str(where)))
    assert cases
    run_ranks(train, ranks, cases, timeout=240)


def test_each_schedule_and_mesh_is_among_them() -> None:
    assert {schedule for _, _, schedule, _ in CHOSEN} == {schedule for _, _, schedule, _ in covering()}
    assert {mesh for _, mesh, _, _ in CHOSEN} == set(MESHES)
