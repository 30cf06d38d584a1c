"""What gathered parameters take on real ranks: the limit of hp-overlap-collectives is kept, and means something."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from distributed_case import run_ranks
from torch import Tensor, nn

import hpir
from hpir.dialect.diagnostics import collect

DIM, LAYERS, ROWS = 64, 6, 4
LAYER = DIM * DIM * 4
"""Bytes of one layer's parameter."""


class Chain(nn.Module):
    """Layers of one square matrix each; there is nothing else to gather."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(DIM, DIM, bias=False) for _ in range(LAYERS)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def train(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    return y.square().mean()


def plan_of(ranks: int, overlap: dict[str, Any] | None) -> dict[str, Any]:
    plan: dict[str, Any] = {"mesh": {"dp": ranks}, "fsdp": {"axes": ["dp"], "units": ["layers.*"]}}
    return plan if overlap is None else {**plan, "overlap": overlap}


def measure(rank: int, ranks: int, variants: list[dict[str, Any] | None]) -> list[tuple[int, float]]:
    """Return, per plan, the peak of gathered bytes in a step and the loss."""
    found = []
    for overlap in variants:
        torch.manual_seed(0)
        model, x = Chain(), torch.randn(ROWS, DIM)
        step = hpir.compile(model, train, {"x": x}, plan=plan_of(ranks, overlap))
        unwatched = step(x=x)
        with step.watch_gathers() as gathered:
            loss = step(x=x)
        assert gathered.gathers == 2 * LAYERS - 1  # the first layer's weight has no use in the backward
        assert gathered.current == 0
        peak = gathered.peak
        step(x=x)
        assert (gathered.peak, gathered.gathers) == (peak, 2 * LAYERS - 1)  # nothing is counted outside
        gathered.reset()
        assert (gathered.peak, gathered.gathers) == (0, 0)
        assert torch.equal(unwatched, loss)
        found.append((peak, float(loss)))
    return found


def reported(ranks: int, overlap: dict[str, Any]) -> int:
    """Return what the pass says that gathered parameters take."""
    torch.manual_seed(0)
    exported = hpir.export(Chain(), train, {"x": torch.randn(ROWS, DIM)})
    with collect() as said:
        hpir.compile_program(exported, plan_of(ranks, overlap))
    found = re.search(r"gathered parameters take at most (\d+) bytes", "\n".join(map(str, said)))
    assert found is not None
    return int(found[1])


@pytest.mark.timeout(200)
@pytest.mark.parametrize("ranks", (2, 3))
def test_the_measured_peak_stays_under_the_limit(ranks: int) -> None:
    limit = 2.5 * LAYER / 2**20
    variants: list[dict[str, Any]] = [
        {"prefetch": 0},
        {"prefetch": 1},
        {"prefetch": 2},
        {"prefetch": 2, "memory_limit_mb": limit},
    ]
    expected = [reported(ranks, overlap) for overlap in variants]
    assert expected[3] <= limit * 2**20 < expected[2]
    for result in run_ranks(measure, ranks, ranks, [*variants, None]):
        peaks = [peak for peak, _ in result]
        assert peaks[3] <= limit * 2**20 < peaks[2]
        assert peaks == [*expected, expected[0]]  # what the pass says is what is measured
        assert len({loss for _, loss in result}) == 1
