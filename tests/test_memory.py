"""How much of the full parameters is alive at once, measured on the tensors that simulated ranks hold."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from torch import Tensor, nn

import hpir
from hpir.lowering.to_program import to_program
from hpir.runtime.program import Op

WIDTH, LAYERS = 64, 8
UNIT = 2 * WIDTH * WIDTH * 4
"""Bytes of one unit's full parameters; activations of one row are small beside it."""


class Layer(nn.Module):
    """Two square matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH, bias=False)
        self.down = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(torch.tanh(self.up(x)))
        return y


class Tower(nn.Module):
    """Layers one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def train(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def peaks(reshard: bool, ranks: int, extra_passes: str = "") -> dict[str, int]:
    """Return the peak of bytes that a rank holds within the step, by phase; shards count until their last use."""
    model = Tower()
    exported = hpir.export(model, train, {"x": torch.randn(1, WIDTH)})
    fsdp = f"hp-fsdp{{axes=dp units=layers.* reshard-after-forward={str(reshard).lower()}}}"
    hpir.run_passes(exported.module, f"hp-set-mesh{{axes=dp:{ranks}}},{fsdp}{extra_passes}")
    peak: dict[str, int] = defaultdict(int)

    def observe(rank: int, function: str, op: Op, live: int) -> None:
        if function == "stage0_step":
            peak[op.phase] = max(peak[op.phase], live)

    hpir.simulate(to_program(exported.module), exported.state, {"x": torch.randn(ranks, WIDTH)}, observe=observe)
    return peak


@pytest.mark.parametrize("extra_passes", ("", ",hp-simplify", ",canonicalize,cse,hp-simplify"))
@pytest.mark.parametrize("ranks", (2, 4))
def test_no_more_than_two_units_are_alive_at_once(ranks: int, extra_passes: str) -> None:
    peak = peaks(True, ranks, extra_passes)
    shards = LAYERS * UNIT // ranks
    assert shards + UNIT <= peak["forward"] <= shards + 2 * UNIT
    # The backward also holds the full gradients of a unit and of the one before it, on their way, and what is reduced.
    assert peak["backward"] <= shards + 2 * UNIT + 2 * UNIT + shards


def test_without_resharding_every_unit_stays_alive() -> None:
    assert peaks(False, 2)["forward"] >= (LAYERS - 1) * UNIT
