"""Where the gathers of parameters start, so many steps ahead of their use and within a limit of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .collectives import Collective


@dataclass
class Step:
    """The gathers of parameters that are first used by the same op.

    Attributes:
        use: number of that op.
        gathers: of one or more units.
        start: number of the op before which they start.
        bytes: that are alive from `start` to `use` at most, these gathers' included.
    """

    use: int
    gathers: list[Collective] = field(default_factory=list)
    start: int = 0
    bytes: int = 0

    @property
    def size(self) -> int:
        """Bytes of what they gather."""
        return sum(gather.size for gather in self.gathers)


class LimitError(Exception):
    """The limit cannot be met even where nothing starts ahead of its use.

    Attributes:
        step: what does not fit.
        needed: bytes that are alive where it is used.
    """

    def __init__(self, step: Step, needed: int):
        super().__init__(f"{needed} bytes")
        self.step = step
        self.needed = needed


def steps_of(gathers: Sequence[Collective]) -> list[Step]:
    """Return the steps of a function in order: a unit is used first where any of its parameters is."""
    units: dict[tuple[str, str], list[Collective]] = {}
    for gather in gathers:
        units.setdefault((gather.phase, gather.unit), []).append(gather)
    steps: dict[int, Step] = {}
    for members in units.values():
        use = min(gather.wait.first_use for gather in members)
        steps.setdefault(use, Step(use)).gathers += members
    return [steps[use] for use in sorted(steps)]


def place_starts(steps: Sequence[Step], prefetch: int, entry: int, limit: int | None) -> int:
    """Decide where each step's gathers start: where the step `prefetch` before it is used, or later, within the limit.

    Gathered bytes count from a gather's start to the last use of its results. Where they do not fit, the gathers of the
    step start as soon as they do: behind the last use of others, at the latest right before their own.

    Args:
        steps: in order; their `start` and `bytes` are set.
        prefetch: steps ahead.
        entry: number of the op before which the first ones start.
        limit: bytes; None for none.

    Returns:
        The most bytes that are alive at once.

    Raises:
        LimitError: one does not fit even right before its use.
    """
    ends = {gather.wait.last + 1 for step in steps for gather in step.gathers}
    places = sorted({entry, *(step.use for step in steps), *ends})
    at = {place: index for index, place in enumerate(places)}
    changes = [0] * len(places)
    most = 0
    # `before` is what is alive left of the window of places that a step may start at; windows only move right.
    left, before = 0, 0
    for number, step in enumerate(steps):
        first = at[steps[number - prefetch].use if number >= prefetch else min(entry, step.use)]
        while left < first:
            before += changes[left]
            left += 1
        alive = []
        now = before
        for index in range(left, at[step.use] + 1):
            now += changes[index]
            alive.append(now)
        size = step.size
        if limit is not None and alive[-1] + size > limit:
            raise LimitError(step, alive[-1] + size)
        index, peak = len(alive) - 1, alive[-1]
        while index > 0 and (limit is None or max(peak, alive[index - 1]) + size <= limit):
            index -= 1
            peak = max(peak, alive[index])
        step.start, step.bytes = places[left + index], peak + size
        most = max(most, step.bytes)
        changes[left + index] += size
        for gather in step.gathers:
            changes[at[gather.wait.last + 1]] -= gather.size
    return most
