"""Where the collectives of a function and their waits go: computed as data first, then carried out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from torch_mlir import ir

from ..views import holds_tensors
from .collectives import Collective, Wait
from .memory_limit import Step
from .op_line import OpLine

Seconds = Callable[[Collective], float]

# What stands at one place, in this order: starts; waits for what is only returned, with what is started on it; waits
# for what the next op needs.
_STARTS, _RETURNED, _NEEDED = range(3)


class Placement:
    """A new order of a function's ops.

    Args:
        line: the ops.
        collectives: all that are waited for once, in order.
        others: the waits of receives.
        steps: the gathers of parameters, with their starts decided.
        seconds: how long a collective takes.
    """

    def __init__(
        self,
        line: OpLine,
        collectives: Sequence[Collective],
        others: Sequence[Wait],
        steps: Sequence[Step],
        seconds: Seconds,
    ):
        self._line = line
        self._seconds = seconds
        self._collectives = collectives
        self._steps = steps
        returned = {found.wait.number for found in collectives if found.wait.returned}
        first_level = [found for found in collectives if not found.waits]
        self._reduced_on = [found for found in collectives if found.waits and found.waits <= returned]
        self._places: dict[int, tuple[float, ...]] = {}
        """Number of each op that moves, to what it is sorted by: first the number of the op that it stands before."""
        waits = [*(found.wait for found in collectives), *others]
        moved = {found.number for found in (*first_level, *self._reduced_on)}
        for wait in waits:
            moved.add(wait.number)
            moved.update(wait.followers if wait.returned else (at for at in wait.followers if at < wait.first_use))
        self._next_fixed = _next_fixed(len(line.ops), moved)
        self._starts: dict[int, int] = {}
        """Number of each collective to that of the op it starts before."""
        self._waits: dict[int, int] = {}
        """Number of each wait to that of the op it stands before."""
        self._place_starts(first_level)
        for wait in waits:
            if not wait.returned:
                self._waits[wait.number] = self._limited(wait.number, wait.first_use)
        self._place_returned(first_level)
        self._order_starts(first_level)
        for wait in waits:
            self._order_wait(wait)
        for found in self._reduced_on:
            start = (self._starts[found.number], _RETURNED)
            self._places[found.number] = (*start, found.number)
            self._bring(found.op, start)

    def numbers(self) -> list[int]:
        """Return the numbers of all ops in the new order."""
        waiting: dict[int, list[int]] = {}
        for number in sorted(self._places, key=lambda each: self._places[each]):
            waiting.setdefault(int(self._places[number][0]), []).append(number)
        order: list[int] = []
        for number in range(len(self._line.ops)):
            order += waiting.get(number, ())
            if number not in self._places:
                order.append(number)
        return order

    def apply(self) -> None:
        """Move the ops."""
        order = self.numbers()
        ops = self._line.ops
        following: ir.Operation = ops[order[-1]]
        for number in reversed(order[:-1]):
            if number in self._places:
                ops[number].move_before(following)
            following = ops[number]

    def _limited(self, number: int, place: int, *, start: bool = False) -> int:
        """Return `place` or what is nearest to it that the op of this number may be moved to."""
        line = self._line
        place = min(max(place, line.highest(number, start=start)), line.lowest(number))
        return self._next_fixed[place]

    def _place_starts(self, collectives: Sequence[Collective]) -> None:
        targets = {gather.number: step.start for step in self._steps for gather in step.gathers}
        for group in self._groups(collectives):
            ready = max(found.after for found in group)
            for found in group:
                place = max(found.after, targets[found.number]) if found.is_parameter else ready
                self._starts[found.number] = self._limited(found.number, place, start=True)

    def _groups(self, collectives: Iterable[Collective]) -> list[list[Collective]]:
        """Return runs of collectives of one unit that stand together, nothing but preparations between them."""
        groups: list[list[Collective]] = []
        for found in collectives:
            last = groups[-1][-1] if groups else None
            together = last is not None and last.key == found.key and not found.is_parameter
            if together and last is not None:
                between = range(last.number + 1, found.number)
                together = all(self._line.prepares(number) for number in between)
            if together:
                groups[-1].append(found)
            else:
                groups.append([found])
        return groups

    def _place_returned(self, first_level: Sequence[Collective]) -> None:
        """Place the waits of reductions whose results are returned, and what is reduced on, along one another."""
        end = len(self._line.ops) - 1
        marks = sorted({self._starts[found.number] for found in first_level if found.wait.returned})
        reduced_on = {found.number for found in self._reduced_on}
        for found in self._collectives:
            if found.number in reduced_on:
                place = max(found.after, *(self._waits[number] for number in found.waits))
                self._starts[found.number] = self._next_fixed[place]
            if not found.wait.returned:
                continue
            at = bisect_right(marks, self._starts.get(found.number, found.number))
            place = marks[at] if at < len(marks) else end
            for number in found.wait.followers:
                operands = [value for value in self._line.ops[number].operands if not holds_tensors(value.type)]
                place = max([place, *(self._line.origin(value).after for value in operands)])
            self._waits[found.wait.number] = self._limited(found.wait.number, place)

    def _order_starts(self, first_level: Sequence[Collective]) -> None:
        """Order what starts at one place by when its results are needed, and let what prepares it come along."""
        needed: dict[tuple[int, object], float] = {}
        takes: dict[tuple[int, object], float] = {}
        first: dict[tuple[int, object], int] = {}
        for found in first_level:
            key = (self._starts[found.number], found.key)
            needed[key] = min(needed.get(key, len(self._line.ops)), self._waits[found.wait.number])
            takes[key] = takes.get(key, 0.0) + self._seconds(found)
            first.setdefault(key, found.number)

        def rank(found: Collective) -> tuple[float, ...]:
            key = (self._starts[found.number], found.key)
            return (key[0], _STARTS, needed[key], -takes[key], first[key])

        for found in sorted(first_level, key=lambda each: (*rank(each), each.number)):
            place = rank(found)
            self._places[found.number] = (*place, 1, found.number)
            self._bring(found.op, (*place, 0))

    def _bring(self, op: ir.Operation, place: tuple[float, ...]) -> None:
        """Let what puts the operands of an op into shape and stands behind a place come along."""
        for number in self._line.chain(op, int(place[0])):
            key = (*place, number)
            if key < self._places.get(number, (len(self._line.ops),)):
                self._places[number] = key

    def _order_wait(self, wait: Wait) -> None:
        place = self._waits[wait.number]
        band = _RETURNED if wait.returned else _NEEDED
        self._places[wait.number] = (place, band, wait.number)
        for number in wait.followers:
            if not wait.returned and number >= place:
                continue
            self._places[number] = (place, band, number)
        if wait.returned:
            for number in wait.followers:
                self._bring(self._line.ops[number], (place, band))


def _next_fixed(count: int, moved: set[int]) -> list[int]:
    """Return, for each number, that of the first op from there on that stays."""
    following = [count - 1] * count
    for number in reversed(range(count - 1)):
        following[number] = following[number + 1] if number in moved else number
    return following
