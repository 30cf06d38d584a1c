"""Checkpoints of one layout loaded into others, with the optimiser's state, on real gloo ranks."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_case import run_ranks
from models import BY_NAME, TiedLM, reference_step
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import hpir
from hpir.runtime.program import Program
from hpir.runtime.step import Step

CASE = replace(BY_NAME["tied"], build=functools.partial(TiedLM, layers=4))
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)
ROWS = 8
"""Of the global batch, which is the same under all plans."""

PLANS: dict[str, dict[str, Any]] = {
    "pp2_dp2": {
        "mesh": {"pp": 2, "dp": 2},
        "data": {"microbatches": 2},
        "pipeline": {"schedule": "1f1b"},
        "fsdp": {"axes": ["dp"], "units": ["layers.*"]},
    },
    "dp4": {"mesh": {"dp": 4}, "data": {"axes": ["dp"]}, "fsdp": {"axes": ["dp"], "units": ["layers.*"]}},
    "pp4": {"mesh": {"pp": 4}, "data": {"microbatches": 4}, "pipeline": {"schedule": "zb-h1"}},
}


def state_of(step: Step, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": step.state_dict(),
        "optimiser": get_optimizer_state_dict(step.model, optimiser, options=OPTIONS),
    }


def own_batch(program: Program, rank: int, seed: int) -> dict[str, Any]:
    count, position = program.mesh.count(program.data_axes), program.mesh.position(rank, program.data_axes)
    return {name: leaf.chunk(count)[position] for name, leaf in CASE.data(ROWS, torch.float64, seed=seed).items()}


def other_model() -> nn.Module:
    """Return a model of other values, the same on every rank."""
    model = CASE.model(torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    return model


def train(step: Step, optimiser: torch.optim.Optimizer, rank: int, seeds: range) -> list[float]:
    losses = []
    for seed in seeds:
        optimiser.zero_grad()
        losses.append(float(step(**own_batch(step.program, rank, seed))))
        step.clip_grad_norm_(1.0)
        optimiser.step()
    return losses


def saving_and_loading(rank: int, wheres: dict[str, str], folder: str) -> dict[str, list[float]]:
    losses: dict[str, list[float]] = {}
    for number, (plan, where) in enumerate(wheres.items()):
        step = Step(Program.load(where), other_model() if number else CASE.model(torch.float64))
        optimiser = torch.optim.AdamW(step.parameters(), lr=1e-2)
        if number == 0:
            train(step, optimiser, rank, range(2))
        else:
            state = state_of(step, optimiser)
            load(state, checkpoint_id=f"{folder}/{number - 1}")
            set_optimizer_state_dict(step.model, optimiser, state["optimiser"], options=OPTIONS)
        assert step.steps == 2
        save(state_of(step, optimiser), checkpoint_id=f"{folder}/{number}")
        losses[plan] = train(step, optimiser, rank, range(2, 4))
    assert "torch_mlir" not in sys.modules
    return losses


@pytest.mark.timeout(300)
def test_a_checkpoint_of_any_layout_loads_into_any_other(tmp_path: Path) -> None:
    exported = hpir.export(CASE.model(torch.float64), CASE.train, CASE.data(2, torch.float64))
    wheres = {plan: str(tmp_path / plan) for plan in PLANS}
    for plan, sections in PLANS.items():
        hpir.compile_program(exported, sections).save(wheres[plan])
    results = run_ranks(saving_and_loading, 4, wheres, str(tmp_path), timeout=240)
    model = CASE.model(torch.float64)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    expected = []
    for seed in range(4):
        optimiser.zero_grad()
        batch = CASE.data(ROWS, torch.float64, seed=seed)
        expected.append(float(reference_step(model, CASE.train, batch, data_ranks=2, microbatches=2).loss))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    for losses in results:
        for plan in PLANS:
            assert losses[plan] == pytest.approx(expected[2:], rel=1e-9), plan
