"""Batches of every shape that users have: what makes them of two tensors, and a step function that uses them."""

from __future__ import annotations

import collections
import enum
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import BatchEncoding
from transformers.modeling_outputs import BaseModelOutput

Batch = dict[str, Any]


class Pair(NamedTuple):
    x: Tensor
    w: Tensor | None = None

    def product(self) -> Tensor:
        assert self.w is not None
        return self.x * self.w


@dataclass
class Sample:
    x: Tensor
    w: Tensor
    scale: float = 0.1

    def scaled(self) -> Tensor:
        return self.x * self.scale


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    inner: Any = None

    @property
    def rows(self) -> int:
        return self.x.shape[0]


@dataclass(slots=True)
class Slotted:
    x: Tensor
    w: Tensor


@dataclass
class Checked:
    """Its constructor reads values, which tracing cannot."""

    x: Tensor
    w: Tensor

    def __post_init__(self) -> None:
        if not bool(torch.isfinite(self.x).all()):
            raise ValueError("not finite")
        assert self.total.shape == self.x.shape

    @functools.cached_property
    def total(self) -> Tensor:
        return self.x + self.w


@dataclass
class Derived:
    """Keeps more than its fields, made from them."""

    x: Tensor
    w: Tensor

    def __post_init__(self) -> None:
        self.both = self.x * self.w
        self.rows = self.x.shape[0]


@dataclass
class Spent:
    """Cannot be made again: what its constructor was given is gone."""

    x: Tensor
    factor: InitVar[float] = 1.0
    w: Tensor = field(init=False)

    def __post_init__(self, factor: float) -> None:
        self.scaled = self.x * factor
        self.w = self.x


class Record(Mapping[str, Any]):
    """A mapping that is no dict."""

    def __init__(self, items: dict[str, Any]):
        self._items = items
        self.note = "kept"

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Copying(Record):
    """Gives another tensor each time, so that what it holds is not known to be its items."""

    def __getitem__(self, key: str) -> Any:
        return self._items[key] + 0


class Attributes(dict[str, Any]):
    """A dict whose items are attributes too."""

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None


class Rows(list[Any]):
    def first(self) -> Any:
        return self[0]


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


def _mean(model: nn.Module, x: Tensor, w: Tensor) -> Tensor:
    loss: Tensor = (model(x) * w).square().mean()
    return loss


def _keywords(**items: Any) -> tuple[Tensor, Tensor]:
    return items["x"], items["w"]


def nested(model: nn.Module, parts: dict[str, Any], more: list[Any]) -> Tensor:
    assert type(parts["deep"]) is tuple and type(more) is list and more[1] is None and more[2] == "text"
    return _mean(model, parts["deep"][0]["x"], more[0])


def named(model: nn.Module, pair: Pair, nothing: Pair) -> Tensor:
    assert type(pair) is Pair and nothing.w is None and pair.w is not None
    return _mean(model, pair.product() + nothing.x, pair.w)


def sample(model: nn.Module, sample: Sample) -> Tensor:
    assert type(sample) is Sample
    return _mean(model, sample.scaled(), sample.w * sample.scale)


def frozen(model: nn.Module, frozen: Frozen) -> Tensor:
    assert type(frozen) is Frozen and type(frozen.inner) is Slotted
    return _mean(model, frozen.x, frozen.inner.w / frozen.rows)


def checked(model: nn.Module, checked: Checked) -> Tensor:
    return _mean(model, checked.x, checked.w)


def derived(model: nn.Module, derived: Derived) -> Tensor:
    return _mean(model, derived.both / derived.rows, derived.w)


def encoding(model: nn.Module, text: BatchEncoding) -> Tensor:
    assert type(text) is BatchEncoding and list(text.keys()) == ["x", "w"] and text.x is text["x"]
    return _mean(model, *_keywords(**text))


def output(model: nn.Module, states: BaseModelOutput, ordered: Any) -> Tensor:
    assert type(states) is BaseModelOutput and states.attentions is None and len(states) == 1
    assert states[0] is states.last_hidden_state and type(ordered) is collections.OrderedDict
    return _mean(model, states.last_hidden_state, ordered["w"])


def mappings(model: nn.Module, record: Record, plain: Any, filled: Any, own: Any) -> Tensor:
    assert type(record) is Record and record.note == "kept" and type(plain) is collections.UserDict
    assert type(filled) is collections.defaultdict and filled["missing"] == [] and type(own) is Attributes
    return _mean(model, record["x"] + plain["x"], filled["w"] * own.w * len(record))


def lists(model: nn.Module, rows: Rows, best: Any) -> Tensor:
    assert type(rows) is Rows and best.indices.dtype == torch.int64
    return _mean(model, rows.first(), rows[1] * best.values.unsqueeze(-1))


def values(model: nn.Module, x: Tensor, w: Tensor, **given: Any) -> Tensor:
    assert given["flag"] is True and given["count"] == 3 and given["name"] == "a.b" and given["nothing"] is None
    assert given["mode"] is Mode.EXACT and given["sizes"] == [1, 2] and given["huge"] == 2**70
    x = (x * given["rate"] + x * given["phase"].imag).to(given["dtype"])
    return _mean(model, x, w.repeat(1, given["count"])[:, : x.shape[1]])


STATIC: Batch = {
    "flag": True,
    "count": 3,
    "rate": 0.1,
    "phase": 1 - 0.3j,
    "name": "a.b",
    "nothing": None,
    "mode": Mode.EXACT,
    "dtype": torch.float64,
    "sizes": [1, 2],
    "huge": 2**70,
}

KINDS: dict[str, tuple[Callable[[Tensor, Tensor], Mapping[str, Any]], Callable[..., Tensor]]] = {
    "nested": (lambda x, w: {"parts": {"deep": ({"x": x},), "empty": {}}, "more": [w, None, "text"]}, nested),
    "named tuple": (lambda x, w: {"pair": Pair(x, w), "nothing": Pair(x)}, named),
    "dataclass": (lambda x, w: {"sample": Sample(x, w)}, sample),
    "frozen dataclass": (lambda x, w: {"frozen": Frozen(x, Slotted(x, w))}, frozen),
    "dataclass that checks": (lambda x, w: {"checked": Checked(x, w)}, checked),
    "dataclass that derives": (lambda x, w: {"derived": Derived(x, w)}, derived),
    "batch encoding": (lambda x, w: {"text": BatchEncoding({"x": x, "w": w})}, encoding),
    "whole batch encoding": (lambda x, w: BatchEncoding({"x": x, "w": w}), _mean),
    "model output": (
        lambda x, w: {
            "states": BaseModelOutput(last_hidden_state=x),
            "ordered": collections.OrderedDict(w=w),
        },
        output,
    ),
    "mappings": (
        lambda x, w: {
            "record": Record({"x": x}),
            "plain": collections.UserDict({"x": x}),
            "filled": collections.defaultdict(list, {"w": w}),
            "own": Attributes(w=w),
        },
        mappings,
    ),
    "lists": (lambda x, w: {"rows": Rows([x, w]), "best": torch.max(w, dim=-1)}, lists),
    "values": (lambda x, w: {"x": x, "w": w, **STATIC}, values),
}
"""By name: what makes a batch of rows x and w, and its step function."""
