"""Models whose layers run under torch.utils.checkpoint, in the ways there are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


def recomputed(function: Callable[..., Any], *args: Any, **how: Any) -> Any:
    """Run a function under torch.utils.checkpoint."""
    return checkpoint(function, *args, use_reentrant=False, **how)


class Block(nn.Module):
    """A norm and two linear layers around an activation; dropout where asked for."""

    def __init__(self, width: int, p: float = 0.0):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.up(self.norm(x)))
        if self.p:
            y = F.dropout(y, self.p)
        z: Tensor = x + torch.tanh(self.down(y))
        return z


class Tower(nn.Module):
    """Blocks one after the other, and a head outside of all regions.

    Args:
        layers: number of blocks.
        width: of the input and the blocks.
        group: blocks per region; 0 for no regions.
        p: probability of dropout.
        how: arguments of checkpoint.
    """

    def __init__(self, layers: int = 3, width: int = 6, group: int = 1, p: float = 0.0, **how: Any):
        super().__init__()
        self.layers = nn.ModuleList([Block(width, p) for _ in range(layers)])
        self.head = nn.Linear(width, 3)
        self.group, self.how = group, how

    def forward(self, x: Tensor) -> Tensor:
        step = self.group or 1
        for first in range(0, len(self.layers), step):
            run = nn.Sequential(*self.layers[first : first + step])
            x = recomputed(run, x, **self.how) if self.group else run(x)
        y: Tensor = self.head(x)
        return y


class Normed(nn.Module):
    """Batch norms within regions: they update running statistics. Without `regions` nothing is computed again."""

    def __init__(self, regions: bool = True) -> None:
        super().__init__()
        self.regions = regions
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh()) for _ in range(2)])
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = recomputed(layer, x) if self.regions else layer(x)
        y: Tensor = self.head(x)
        return y


class Nested(nn.Module):
    """Regions within regions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(6) for _ in range(4)])
        self.head = nn.Linear(6, 3)

    def _pair(self, first: nn.Module, second: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = recomputed(second, recomputed(first, x))
        return y

    def forward(self, x: Tensor) -> Tensor:
        for number in (0, 2):
            x = recomputed(self._pair, self.layers[number], self.layers[number + 1], x)
        y: Tensor = self.head(x)
        return y


class Skips(nn.Module):
    """What a region makes is used far behind it, by another region and outside of all."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(6) for _ in range(3)])
        self.mix, self.head = nn.Linear(12, 6), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = recomputed(self.layers[0], x)
        second = recomputed(self.layers[1], first)
        third = recomputed(lambda a, b: torch.tanh(self.mix(torch.cat([a, b], -1))), second, first)
        last = recomputed(self.layers[2], third)
        y: Tensor = self.head(torch.cat([last, torch.sigmoid(first)], -1))
        return y


class Returned(nn.Module):
    """What a region makes is an output of the step, and its input another's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(6) for _ in range(2)])
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = recomputed(self.layers[0], x)
        return self.head(recomputed(self.layers[1], hidden)), hidden


def train_returned(model: Returned, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and two outputs."""
    prediction, hidden = model(x)
    return F.mse_loss(prediction, y), {"hidden": hidden, "prediction": prediction}


class Shared(nn.Module):
    """One layer in two regions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList([Block(6)]), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self.layers
        y: Tensor = self.head(recomputed(layer, recomputed(layer, x)))
        return y


def _save_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    products = (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if operator in products else CheckpointPolicy.PREFER_RECOMPUTE


SELECTIVE: dict[str, Any] = {"context_fn": functools.partial(create_selective_checkpoint_contexts, _save_products)}
"""Arguments of checkpoint with which products are kept and all else is computed again."""
