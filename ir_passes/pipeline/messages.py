"""The messages between ranks that a schedule's calls ask for, in the order of their channels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...dialect.signature import ValueInfo
from .calls import Calls, Place, places_of
from .staged import StagedModule

_Item = TypeVar("_Item")

_NAMED = 3


@dataclass(frozen=True, eq=False)
class Message:
    """What one call makes for one other rank. `values` are in the order in which they are sent."""

    sender: int
    receiver: int
    values: tuple[ValueInfo, ...]
    microbatch: int

    @property
    def header(self) -> bool:
        """Whether the receiver cannot know all sizes beforehand."""
        return any(None in info.type.shape for info in self.values)

    @property
    def label(self) -> str:
        """What people call it."""
        names = [info.name for info in self.values]
        shown = names if len(names) <= _NAMED else [*names[: _NAMED - 1], f"{len(names) - _NAMED + 1} more"]
        return f"{', '.join(shown)} mb {self.microbatch}"


@dataclass(frozen=True)
class Traffic:
    """What each rank does about messages at each of its calls.

    Attributes:
        posted: the receives to start before a call.
        awaited: the messages to wait for right before a call.
        sent: the messages to send right after a call.
    """

    posted: Mapping[Place, Sequence[Message]]
    awaited: Mapping[Place, Sequence[Message]]
    sent: Mapping[Place, Sequence[Message]]


def plan_messages(staged: StagedModule, calls: Calls) -> Traffic:
    """Derive the messages of a step.

    A call's values that other ranks take are sent right behind it, one message per rank. A receive starts one call
    before the one that needs it first, and never later than one that stands behind it on its channel: so both ends of a
    channel agree on the order, and a message can pass as soon as it is sent.

    Args:
        staged: the module.
        calls: of all positions, in an order that can run.
    """
    places = places_of(calls)
    sent: dict[Place, list[Message]] = {}
    awaited: dict[Place, list[Message]] = {}
    channels: dict[tuple[int, int], list[tuple[Message, int]]] = {}
    for position, own in enumerate(calls):
        for index, call in enumerate(own):
            for receiver, (values, first) in _receivers(staged, call.function.made, call.microbatch, places).items():
                if receiver == position:
                    continue
                message = Message(position, receiver, tuple(by_type(values, lambda info: info.type)), call.microbatch)
                sent.setdefault(Place(position, index), []).append(message)
                awaited.setdefault(Place(receiver, first), []).append(message)
                channels.setdefault((position, receiver), []).append((message, first))
    posted: dict[Place, list[Message]] = {}
    for (_, receiver), messages in channels.items():
        latest = len(calls[receiver])
        indices = []
        for _, first in reversed(messages):
            latest = min(latest, max(first - 1, 0))
            indices.append(latest)
        for (message, _), index in zip(messages, reversed(indices), strict=True):
            posted.setdefault(Place(receiver, index), []).append(message)
    return Traffic(posted, awaited, sent)


def _receivers(
    staged: StagedModule, made: Iterable[ValueInfo], microbatch: int, places: Mapping[tuple[str, int], Place]
) -> dict[int, tuple[list[ValueInfo], int]]:
    """Return, per position that takes some of the values, these values and the index of the first call that does."""
    receivers: dict[int, tuple[list[ValueInfo], int]] = {}
    for info in made:
        first: dict[int, int] = {}
        for taker in staged.takers.get(info.name, ()):
            place = places.get((taker.name, microbatch))
            if place is not None:
                first[place.position] = min(place.index, first.get(place.position, place.index))
        for position, index in first.items():
            values, before = receivers.get(position, ([], index))
            values.append(info)
            receivers[position] = (values, min(before, index))
    return receivers


def by_type(items: Iterable[_Item], key: Callable[[_Item], object]) -> list[_Item]:
    """Return items of equal types side by side, in the order of the types' first items: an op takes few such runs.

    Args:
        items: to sort.
        key: gives an item's type.
    """
    runs: dict[object, list[_Item]] = {}
    for item in items:
        runs.setdefault(key(item), []).append(item)
    return [item for run in runs.values() for item in run]
