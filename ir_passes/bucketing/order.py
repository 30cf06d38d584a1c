"""An order of a function's ops in which ops can be moved before any of them is: plans are made in it."""

from __future__ import annotations

from collections.abc import Iterator

_GAP = 1 << 64
_SHARE = 1 << 10


class _Labels(dict[int, int]):
    """Labels by number; those that were not set are as far apart as they can be."""

    def __missing__(self, number: int) -> int:
        return (number + 1) * _GAP


class _Shifted(dict[int, int]):
    """Neighbours by number; those that were not set are some numbers further on."""

    def __init__(self, shift: int):
        super().__init__()
        self._shift = shift

    def __missing__(self, number: int) -> int:
        return number + self._shift


class Order:
    """The numbers 0 to `count` - 1 in a row, to be compared, moved and taken out, each in constant time.

    A linked list with labels that rise along it, of which only what has changed is kept. A number put between two
    others gets a label between theirs, close to the one that it was not put next to: whatever follows it at the same
    place finds most of the gap left.

    Attributes:
        labels: by number; of two numbers, that with the lower label stands first.
    """

    def __init__(self, count: int):
        self.labels = _Labels()
        self._next = _Shifted(1)  # `count` is the end
        self._previous = _Shifted(-1)  # -1 is the start
        self._removed: set[int] = set()
        self._first = 0
        self._count = count
        self._last = count - 1

    def __iter__(self) -> Iterator[int]:
        number = self._first
        while number < self._count:
            yield number
            number = self._next[number]

    def __contains__(self, number: int) -> bool:
        return number not in self._removed

    def previous(self, number: int) -> int:
        """Return the number right before another one, -1 where there is none."""
        return self._previous[number]

    def remove(self, number: int) -> None:
        """Take a number out; its label stays."""
        self._removed.add(number)
        before, after = self._previous[number], self._next[number]
        if before < 0:
            self._first = after
        else:
            self._next[before] = after
        if after < self._count:
            self._previous[after] = before
        else:
            self._last = before

    def move_before(self, number: int, anchor: int) -> None:
        """Put a number right before another one."""
        if self._next[number] != anchor:
            self.remove(number)
            self._insert(number, self._previous[anchor], anchor, near_first=True)

    def move_after(self, number: int, anchor: int) -> None:
        """Put a number right behind another one."""
        if self._previous[number] != anchor:
            self.remove(number)
            self._insert(number, anchor, self._next[anchor], near_first=False)

    def _insert(self, number: int, before: int, after: int, *, near_first: bool) -> None:
        low, high = self._label(before), self._label(after)
        if high - low < 2 * _SHARE:
            self._relabel()
            low, high = self._label(before), self._label(after)
        step = (high - low) // _SHARE
        self._removed.discard(number)
        self.labels[number] = low + step if near_first else high - step
        self._previous[number], self._next[number] = before, after
        if before < 0:
            self._first = number
        else:
            self._next[before] = number
        if after < self._count:
            self._previous[after] = number
        else:
            self._last = number

    def _label(self, number: int) -> int:
        if number < 0:
            return 0
        return self.labels[number] if number < self._count else self.labels[self._last] + _GAP

    def _relabel(self) -> None:
        for place, number in enumerate(self):
            self.labels[number] = (place + 1) * _GAP
