"""Bubbles and peaks of every schedule, and its order of calls, read from the IR that hp-schedule-pipeline makes."""

from __future__ import annotations

import pytest
from pipeline_ir import StageCall, peaks, ranks_of, run_calls
from staged_modules import Chain
from torch_mlir import ir

import hpir
from hpir.dialect.parsing import parse_module
from hpir.ir_passes.pipeline.schedules import make_schedule
from hpir.ir_passes.pipeline.schedules.schedule import KINDS

SPLIT = ("zb-h1", "zb-v", "dualpipe-v")
STAGES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1, "zb-v": 2, "dualpipe-v": 2}


def scheduled(schedule: str, ranks: int, microbatches: int) -> ir.Operation:
    chain = Chain(ranks * STAGES[schedule], ranks, split_backward=schedule in SPLIT, first_input=True)
    module = parse_module(chain.text())
    hpir.run_passes(module.operation, f"hp-schedule-pipeline{{microbatches={microbatches} schedule={schedule}}}")
    operation: ir.Operation = module.operation.clone()
    return operation


@pytest.mark.parametrize(
    ("schedule", "ranks", "microbatches", "bubble"),
    [
        ("gpipe", 4, 8, 27.3),
        ("1f1b", 4, 8, 27.3),
        ("interleaved", 4, 8, 15.8),
        ("zb-h1", 4, 8, 11.1),
        ("zb-v", 4, 8, 5.9),
        ("dualpipe-v", 4, 8, 5.9),
        ("1f1b", 8, 16, 30.4),
        ("interleaved", 8, 16, 17.9),
        ("zb-h1", 8, 16, 12.7),
    ],
)
def test_bubbles_and_peaks(schedule: str, ranks: int, microbatches: int, bubble: float) -> None:
    module = scheduled(schedule, ranks, microbatches)
    assert run_calls(module).bubble == pytest.approx(bubble, abs=0.5)
    promised = {
        "gpipe": [microbatches] * ranks,
        "1f1b": [ranks - rank for rank in range(ranks)],
        "interleaved": [2 * (ranks - rank - 1) + ranks + 1 for rank in range(ranks)],
        "zb-h1": [ranks] * ranks,
        "zb-v": [2 * ranks] * ranks,
    }
    if schedule in promised:
        assert peaks(module) == promised[schedule]
    else:
        assert max(peaks(module)) <= 2 * ranks + 1


@pytest.mark.parametrize("schedule", STAGES)
def test_calls_are_the_actions_of_the_schedule(schedule: str) -> None:
    ranks, microbatches = 2, 3
    module = scheduled(schedule, ranks, microbatches)
    expected = make_schedule(schedule, ranks, ranks * STAGES[schedule], microbatches).actions
    for rank, actions in zip(ranks_of(module), expected, strict=True):
        assert rank.order == [StageCall(KINDS[kind], stage, microbatch) for kind, stage, microbatch in actions]
    for rank, actions in zip(ranks_of(module, "evaluate"), expected, strict=True):
        assert rank.order == [StageCall("forward", stage, mb) for kind, stage, mb in actions if kind == "F"]


def test_fewer_microbatches_than_ranks() -> None:
    assert peaks(scheduled("1f1b", 4, 2)) == [2, 2, 2, 1]
    assert run_calls(scheduled("1f1b", 4, 2)).makespan == 15
