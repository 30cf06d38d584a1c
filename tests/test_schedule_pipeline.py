"""Programs that hp-schedule-pipeline makes of hand-written stages, against the loop that defines a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from staged_modules import Chain, largest, reference, relative

import hpir
from hpir.dialect.parsing import parse_module
from hpir.lowering.to_program import to_program
from hpir.runtime.program import Program
from hpir.runtime.simulate import simulate_evaluate

TOLERANCE = 1e-12
SPLIT = ("zb-h1", "zb-v", "dualpipe-v")
STAGES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1, "zb-v": 2, "dualpipe-v": 2}
"""Stages per rank of each schedule."""


def scheduled(chain: Chain, schedule: str, microbatches: int) -> Program:
    module = parse_module(chain.text())
    passes = f"hp-verify-level,hp-schedule-pipeline{{microbatches={microbatches} schedule={schedule}}},hp-verify-level"
    hpir.run_passes(module.operation, passes)
    return to_program(module)


def check(chain: Chain, schedule: str, microbatches: int, rows: int | None = None) -> None:
    program = scheduled(chain, schedule, microbatches)
    assert program.microbatches == microbatches
    assert program.pipeline_axis == "pp"
    batch = chain.batch(rows or (chain.rows or 3) * microbatches * max(chain.data, 1))
    expected = reference(chain, batch, microbatches)
    state = chain.state()
    found = hpir.simulate(program, state, batch, dtype=torch.float64, check_types=True)
    assert relative(found.loss, expected.loss) < TOLERANCE
    assert found.grads.keys() == expected.grads.keys()
    assert largest([(found.grads[name], value) for name, value in expected.grads.items()]) < TOLERANCE
    assert found.buffers.keys() == expected.buffers.keys()
    for name, value in expected.buffers.items():
        assert relative(found.buffers[name], value) < TOLERANCE
    if chain.outputs:
        assert relative(found.outputs["out"], expected.out) < TOLERANCE
        assert relative(found.outputs["first"].reshape(-1), expected.first) < TOLERANCE
    if not chain.buffer:  # an evaluation does not update it between microbatches
        loss, _ = simulate_evaluate(program, state, batch, dtype=torch.float64, check_types=True)
        assert relative(loss, expected.loss) < TOLERANCE


@pytest.mark.parametrize("schedule", STAGES)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 2), (2, 1), (2, 4), (3, 2)])
def test_chain(schedule: str, ranks: int, microbatches: int) -> None:
    chain = Chain(stages=STAGES[schedule] * ranks, ranks=ranks, split_backward=schedule in SPLIT)
    check(chain, schedule, microbatches)


FEATURES: list[tuple[str, dict[str, Any]]] = [
    *[(schedule, {"tied": 1, "skip": 1, "weighted": 1, "data": 2, "outputs": 1}) for schedule in STAGES],
    *[(schedule, {"buffer": 1, "data": 2}) for schedule in ("1f1b", "interleaved", "zb-v")],
    *[(schedule, {"frozen": 1, "outputs": 1}) for schedule in ("gpipe", "zb-h1", "dualpipe-v")],
    *[(schedule, {"tied": 1, "detached": 1}) for schedule in ("1f1b", "zb-h1", "dualpipe-v")],
]


@pytest.mark.parametrize(
    ("schedule", "options"), FEATURES, ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_features(schedule: str, options: dict[str, Any]) -> None:
    stages = max(3, STAGES[schedule] * 2)
    chain = Chain(stages, stages // STAGES[schedule], split_backward=schedule in SPLIT)
    check(replace(chain, **options), schedule, 3)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
@pytest.mark.parametrize(("data", "rows"), [(0, 6), (0, 8), (2, 15)])
def test_dynamic_rows(schedule: str, data: int, rows: int) -> None:
    """Microbatches differ by a row, and so do data ranks; sizes cross between stages."""
    chain = Chain(2 * STAGES[schedule], 2, data, rows=None, weighted=True, scaled=True, outputs=True)
    check(replace(chain, split_backward=schedule in SPLIT), schedule, 3, rows)
