"""State a step keeps: buffers changed in place or assigned, parametrizations, pruning; what is not kept is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture_check import assert_captured, regression
from models import train_regression
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import hpir

pytestmark = pytest.mark.one_in(2)

BATCH = regression(6, 6)
Way = Callable[[Any, Tensor], Tensor]


class Stateful(nn.Module):
    """Two linear layers with state between them, changed by `way`."""

    def __init__(self, way: Way, **buffers: Tensor):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.way = way
        for name, value in buffers.items():
            self.register_buffer(name, value.clone())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.way(self, self.first(x)))
        return y


def count(model: Any, y: Tensor) -> Tensor:
    model.calls += 1
    counted: Tensor = y / model.calls
    return counted


def average(model: Any, y: Tensor) -> Tensor:
    with torch.no_grad():
        model.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
    averaged: Tensor = y * model.mean
    return averaged


def assign(model: Any, y: Tensor) -> Tensor:
    model.mean = 0.9 * model.mean + 0.1 * y.detach().mean(0)
    assigned: Tensor = y * model.mean
    return assigned


def shift(model: Any, y: Tensor) -> Tensor:
    model.history = torch.cat([model.history[1:], y.detach()[:1]])
    shifted: Tensor = y * model.history.sum(0)
    return shifted


def cache(model: Any, y: Tensor) -> Tensor:
    model.keys.index_copy_(0, model.position.view(1), y.detach()[:1])
    model.position.add_(1).remainder_(4)
    model.keys[2:, 1:3] = y.detach()[:2, :2]
    cached: Tensor = y * model.keys.sum(0)
    return cached


def quantize(model: Any, y: Tensor) -> Tensor:
    nearest = torch.cdist(y.detach(), model.codebook).argmin(1)
    chosen = nn.functional.one_hot(nearest, 5).to(y.dtype)
    model.codebook.mul_(0.9).add_(chosen.t() @ y.detach(), alpha=0.1)
    quantized: Tensor = y + (chosen @ model.codebook - y).detach()
    return quantized


KEPT: tuple[tuple[Way, dict[str, Tensor]], ...] = (
    (count, {"calls": torch.zeros((), dtype=torch.long)}),
    (average, {"mean": torch.zeros(6)}),
    (assign, {"mean": torch.zeros(6)}),
    (shift, {"history": torch.zeros(3, 6)}),
    (cache, {"keys": torch.zeros(4, 6), "position": torch.zeros((), dtype=torch.long)}),
    (quantize, {"codebook": torch.linspace(-1, 1, 30).reshape(5, 6)}),
)


@pytest.mark.parametrize(("way", "buffers"), KEPT, ids=lambda value: getattr(value, "__name__", ""))
def test_buffers_are_state(way: Way, buffers: dict[str, Tensor]) -> None:
    assert_captured(lambda: Stateful(way, **buffers), train_regression, BATCH)


def grow(model: Any, y: Tensor) -> Tensor:
    model.history = torch.cat([model.history, y.detach()[:1]])
    return y


def borrow(model: Any, y: Tensor) -> Tensor:
    model.history = model.other
    return y


def register(model: Any, y: Tensor) -> Tensor:
    model.register_buffer("late", y.detach())
    return y


@pytest.mark.parametrize("way", (grow, borrow, register))
def test_buffers_that_become_another_kind_of_tensor_are_refused_at_the_users_line(way: Way) -> None:
    model = Stateful(way, history=torch.zeros(3, 6), other=torch.zeros(3, 6))
    batch = {name: leaf.float() for name, leaf in BATCH.items()}
    with pytest.raises(hpir.CaptureError, match="assigns to a buffer of the model") as error:
        hpir.export(model, train_regression, batch)
    assert str(error.value).startswith(f"{__file__}:{way.__code__.co_firstlineno + 1}: ")
    assert set(dict(model.named_buffers())) == {"history", "other"} and model.history.shape == (3, 6)


def test_views_of_one_buffer_are_refused_where_one_is_changed() -> None:
    def change(model: Any, y: Tensor) -> Tensor:
        changed: Tensor = y * model.keys.add_(1).sum(0) * model.row
        return changed

    model = Stateful(change)
    keys = torch.zeros(2, 6)
    model.register_buffer("keys", keys)
    model.register_buffer("row", keys[0])
    with pytest.raises(hpir.CaptureError, match=r"shares memory with another buffer, .*: give each its own memory"):
        hpir.export(model, train_regression, {name: leaf.float() for name, leaf in BATCH.items()})


class Symmetric(nn.Module):
    """A parametrization of the user's own."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).t()


class LowRank(nn.Module):
    """A parametrization with parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(0.1 * torch.randn(6, 2)), nn.Parameter(0.1 * torch.randn(2, 6))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.down @ self.up


def _own(layer: nn.Module) -> None:
    parametrize.register_parametrization(layer, "weight", Symmetric())
    parametrize.register_parametrization(layer, "weight", LowRank())


PARAMETRIZED: dict[str, Callable[[nn.Linear], object]] = {
    "weight norm": parametrizations.weight_norm,
    "spectral norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "cayley": lambda layer: parametrizations.orthogonal(layer, orthogonal_map="cayley"),
    "own": _own,
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.3),  # type: ignore[no-untyped-call]
    "old weight norm": torch.nn.utils.weight_norm,
    "old spectral norm": torch.nn.utils.spectral_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*spectral_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("name", PARAMETRIZED)
def test_parametrized_weights(name: str) -> None:
    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        PARAMETRIZED[name](model[0])  # type: ignore[arg-type]
        return model

    assert_captured(build, train_regression, BATCH, tolerance=1e-9)
