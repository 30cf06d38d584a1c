"""Training with dropout: equal losses however the batch is divided over ranks and microbatches, and after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_case import run_ranks
from models import BY_NAME, reference_step
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import hpir
from hpir.runtime.step import STEPS, Step

CASE = BY_NAME["dropout"]
ROWS, COUNT, HALF = 8, 20, 10
SEED = 7


def made(rank: int, ranks: int, microbatches: int, backend: str = "eager") -> tuple[Step, torch.optim.Optimizer]:
    plan = {
        "mesh": {"dp": ranks},
        "data": {"axes": ["dp"], "microbatches": microbatches, "seed": SEED},
        "fsdp": {"axes": ["dp"], "units": list(CASE.units)},
    }
    step = hpir.compile(CASE.model(torch.float64), CASE.train, part(rank, ranks, 0), plan=plan, backend=backend)
    return step, torch.optim.AdamW(step.parameters(), lr=1e-2)


def part(rank: int, ranks: int, seed: int) -> dict[str, torch.Tensor]:
    return {name: leaf.chunk(ranks)[rank].contiguous() for name, leaf in CASE.data(ROWS, seed=seed).items()}


def trained(
    step: Step, optimiser: torch.optim.Optimizer, rank: int, ranks: int, numbers: range
) -> list[tuple[float, float]]:
    """Train; return the losses of evaluations before each step and of the steps."""
    losses = []
    for number in numbers:
        batch = part(rank, ranks, number)
        evaluated = float(step.evaluate(**batch)[0])
        optimiser.zero_grad()
        losses.append((evaluated, float(step(**batch))))
        optimiser.step()
    return losses


def on_rank(rank: int, folder: str) -> dict[str, Any]:
    """Train 20 steps with a checkpoint at 10; then train the last 10 again from the checkpoint."""
    step, optimiser = made(rank, 2, 2)
    losses = trained(step, optimiser, rank, 2, range(HALF))
    save(state(step, optimiser), checkpoint_id=folder)
    losses += trained(step, optimiser, rank, 2, range(HALF, COUNT))
    again, other = made(rank, 2, 2)
    fill(other)
    values = state(again, other)
    load(values, checkpoint_id=folder)
    again.load_state_dict(values["model"])
    assert again.steps == HALF
    return {"losses": losses, "again": trained(again, other, rank, 2, range(HALF, COUNT))}


def state(step: Step, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    names: dict[Any, str] = {parameter: name for name, parameter in step.named_parameters()}
    moments = {names[parameter]: dict(values) for parameter, values in optimiser.state.items()}
    return {"model": step.state_dict(), "optimiser": moments}


def fill(optimiser: torch.optim.Optimizer) -> None:
    """Give an optimiser its state, to be loaded into; parameters move, and are loaded too."""
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimiser.step()


def plain_losses() -> list[float]:
    """Train plainly, with the masks spelled out, on the whole batch."""
    model = CASE.model(torch.float64)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for number in range(COUNT):
        optimiser.zero_grad()
        batch = CASE.data(ROWS, seed=number)
        losses.append(float(reference_step(model, CASE.train, batch, step=number, seed=SEED).loss))
        optimiser.step()
    return losses


@pytest.mark.timeout(300)
def test_a_dropout_model_has_the_same_losses_under_every_plan_and_after_a_restart(tmp_path: Path) -> None:
    results = run_ranks(on_rank, 2, str(tmp_path / "checkpoint"), timeout=240)
    assert results[0] == results[1]
    expected = plain_losses()
    assert len({round(loss, 6) for loss in expected}) == COUNT
    pairs = [(loss, loss) for loss in expected]
    assert torch.tensor(results[0]["losses"]) == pytest.approx(torch.tensor(pairs), rel=1e-10)
    assert torch.tensor(results[0]["again"]) == pytest.approx(torch.tensor(pairs[HALF:]), rel=1e-10)

    # One process, a checkpoint of torch.save, by way of the same names.
    step, optimiser = made(0, 1, 1)
    losses = trained(step, optimiser, 0, 1, range(HALF))
    torch.save({"model": step.state_dict(), "optimiser": optimiser.state_dict()}, tmp_path / "half.pt")
    losses += trained(step, optimiser, 0, 1, range(HALF, COUNT))
    assert torch.tensor(losses) == pytest.approx(torch.tensor(pairs), rel=1e-10)
    again, other = made(0, 1, 4)
    saved = torch.load(tmp_path / "half.pt")
    assert saved["model"][STEPS].item() == HALF
    again.load_state_dict(saved["model"])
    other.load_state_dict(saved["optimiser"])
    losses = trained(again, other, 0, 1, range(HALF, COUNT))
    assert torch.tensor(losses) == pytest.approx(torch.tensor(pairs[HALF:]), rel=1e-10)


@pytest.mark.everything
def test_inductor_draws_as_eager() -> None:
    losses = []
    for backend in ("eager", "inductor"):
        step, optimiser = made(0, 1, 2, backend)
        losses.append(trained(step, optimiser, 0, 1, range(3)))
    assert torch.tensor(losses[1]) == pytest.approx(torch.tensor(losses[0]), rel=1e-10)


@pytest.mark.parametrize("microbatches", (1, 2, 4))
@pytest.mark.parametrize("axes", ({"dp": 1}, {"dp": 2}, {"dp": 3}, {"rep": 2, "dp": 2}), ids=str)
def test_masks_do_not_depend_on_the_plan(axes: dict[str, int], microbatches: int) -> None:
    """48 rows divided in every way: loss and gradients are those of the undivided batch."""
    ranks = 1
    for size in axes.values():
        ranks *= size
    rows = 48
    batch = CASE.data(rows, torch.float64)
    mine = {name: leaf[: rows // ranks // microbatches] for name, leaf in batch.items()}
    exported = hpir.export(CASE.model(), CASE.train, mine)
    replicate = [axis for axis in axes if axis != "dp"]
    plan = {
        "mesh": axes,
        "data": {"axes": list(axes), "microbatches": microbatches},
        "fsdp": {"axes": ["dp"], "replicate_axes": replicate, "units": list(CASE.units)},
    }
    program = hpir.compile_program(exported, plan)
    result = hpir.simulate(program, exported.state, batch, step=3, dtype=torch.float64)
    model: nn.Module = CASE.model().double()
    expected = reference_step(model, CASE.train, batch, step=3)
    torch.testing.assert_close(result.loss, expected.loss, rtol=1e-10, atol=0)
    for name, gradient in expected.grads.items():
        torch.testing.assert_close(result.grads[name], gradient, rtol=1e-10, atol=1e-12, msg=name)
