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

DIM, LAYERS, ROWS = 64, 5, 4
LAYER = 2 * DIM * DIM * 4
"""Bytes of one layer's parameters."""


class Layer(nn.Module):
    """Two square matrices, both of which the backward needs in every layer but the first."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(DIM, DIM, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.down(torch.tanh(self.up(x))))


class Chain(nn.Module):
    """Layers, and nothing else to gather."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def train(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    return y.square().mean()


def plan_of(ranks: int, sections: dict[str, Any]) -> dict[str, Any]:
    return {"mesh": {"dp": ranks}, "fsdp": {"axes": ["dp"], "units": ["layers.*"]}, **sections}


def measure(rank: int, ranks: int, variants: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """Return, per plan, the peak of gathered bytes in a step and the loss."""
    found = []
    for sections in variants:
        torch.manual_seed(0)
        model, x = Chain(), torch.randn(ROWS, DIM)
        step = hpir.compile(model, train, {"x": x}, plan=plan_of(ranks, sections))
        unwatched = step(x=x)
        with step.watch_gathers() as gathered:
            loss = step(x=x)
        # Each layer's two travel together, in the forward and in the backward.
        assert gathered.gathers == 2 * LAYERS
        assert gathered.current == 0
        peak = gathered.peak
        step(x=x)
        assert (gathered.peak, gathered.gathers) == (peak, 2 * LAYERS)  # nothing is counted outside
        gathered.reset()
        assert (gathered.peak, gathered.gathers) == (0, 0)
        assert torch.equal(unwatched, loss)
        found.append((peak, float(loss)))
    return found


def reported(ranks: int, sections: dict[str, Any]) -> int:
    """Return what the pass says that gathered parameters take."""
    torch.manual_seed(0)
    exported = hpir.export(Chain(), train, {"x": torch.randn(ROWS, DIM)})
    with collect() as said:
        hpir.compile_program(exported, plan_of(ranks, sections))
    found = re.search(r"gathered parameters take at most (\d+) bytes", "\n".join(map(str, said)))
    assert found is not None
    return int(found[1])


class Scale(nn.Module):
    """Parameters so small that the padding between members of a bucket is most of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.a) * self.b


class Scales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Scale() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def measure_padding(rank: int, limits: list[int]) -> list[tuple[int, str]]:
    """Return, per layout and limit, the peak of gathered bytes and the refusal of a limit that cannot be kept."""
    found = []
    for layout in ("flat", "packed"):
        for limit in limits:
            torch.manual_seed(0)
            model, x = Scales(), torch.randn(2, 2)
            sections = {"overlap": {"memory_limit_mb": limit / 2**20}, "buckets": {"layout": layout}}
            try:
                step = hpir.compile(model, train, {"x": x}, plan=plan_of(2, sections))
            except hpir.PassError as error:
                found.append((0, str(error)))
                continue
            with step.watch_gathers() as gathered:
                step(x=x)
            found.append((gathered.peak, ""))
    return found


def test_padding_between_members_counts() -> None:
    """Two members of 4 bytes each on 2 ranks take 16 bytes each there: 64 bytes a unit."""
    for result in run_ranks(measure_padding, 2, [32, 64, 1000]):
        for tight, exact, loose in (result[:3], result[3:]):
            assert tight[0] == 0 and "64 bytes" in tight[1]
            assert exact == (64, "")
            assert loose == (128, "")


@pytest.mark.one_in(3)
@pytest.mark.timeout(200)
@pytest.mark.parametrize("buckets", (None, "flat", "packed"))
@pytest.mark.parametrize("ranks", (2, 3))
def test_the_measured_peak_stays_under_the_limit(ranks: int, buckets: str | None) -> None:
    limit = 2.5 * LAYER / 2**20
    overlaps: list[dict[str, Any]] = [
        {"prefetch": 0},
        {"prefetch": 1},
        {"prefetch": 2},
        {"prefetch": 2, "memory_limit_mb": limit},
    ]
    fused = {} if buckets is None else {"buckets": {"layout": buckets}}
    variants = [{"overlap": overlap, **fused} for overlap in overlaps]
    expected = [reported(ranks, sections) for sections in variants]
    assert expected[3] <= limit * 2**20 < expected[2]
    for result in run_ranks(measure, ranks, ranks, [*variants, fused]):
        peaks = [peak for peak, _ in result]
        assert peaks[3] <= limit * 2**20 < peaks[2]
        assert peaks == [*expected, expected[0]]  # what the pass says is what is measured
        assert len({loss for _, loss in result}) == 1
