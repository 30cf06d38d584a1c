"""How much memory a rank holds over a step, by what it is for, and what is there when it holds the most.

It follows from the Program alone: which storages its values live in, and from which op to which. Times are those of the
simulated timeline. Parameters, buffers and inputs are held by the model and the caller all the time; gradients that
were accumulated before the step and the optimiser's state are not the Program's and not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ..costs import tensor_bytes
from ..runtime.program import Program
from ..runtime.python_text import reachable_functions
from .segments import Segment, SegmentedProgram
from .storages import CATEGORIES, COMMUNICATION, FunctionStorages, program_storages
from .timeline import Block, RankTimeline

Bytes = tuple[int, ...]
"""Bytes by position in `CATEGORIES`."""

_NOTHING: Bytes = (0,) * len(CATEGORIES)


@dataclass(frozen=True, slots=True)
class Point:
    """The most that was held from `begin` to `end`."""

    begin: float
    end: float
    held: Bytes

    @property
    def total(self) -> int:
        """Bytes of all categories."""
        return sum(self.held)


@dataclass(frozen=True, slots=True)
class Held:
    """What one module holds of one category at the peak."""

    category: str
    module: str
    size: int
    tensors: int


@dataclass
class Memory:
    """The memory of a rank over a step.

    Attributes:
        points: over time, in order.
        peak: the one with the most bytes.
        function: that runs at the peak.
        op: which op there.
        alive: what is held then, the largest first.
    """

    points: list[Point]
    peak: Point
    function: str = ""
    op: int = -1
    alive: list[Held] = field(default_factory=list)


def memory_over_time(segments: SegmentedProgram, timeline: RankTimeline, *, keep_arguments: bool = True) -> Memory:
    """Return what the ranks of a simulated timeline hold.

    Args:
        segments: of the Program.
        timeline: that `simulate_timeline` made of them.
        keep_arguments: whether state and inputs stay after their last use, as they do around a live model; otherwise
            they go, as in the simulator.
    """
    program = segments.program
    known = {
        name: _FunctionMemory(program, name, storages, segments.function(name))
        for name, storages in program_storages(program, reachable_functions(program, [timeline.entry])).items()
    }
    replay = _Replay(known, timeline, keep_arguments)
    replay.run()
    peak = max(range(len(replay.points)), key=lambda number: replay.points[number].total)
    memory = Memory(replay.points, replay.points[peak])
    again = _Replay(known, timeline, keep_arguments, stop=peak)
    again.run()
    memory.function, memory.op = again.place
    memory.alive = _by_module(again.alive)
    return memory


def _by_module(alive: Iterable[tuple[int, str, int]]) -> list[Held]:
    sizes: Counter[tuple[int, str]] = Counter()
    tensors: Counter[tuple[int, str]] = Counter()
    for category, module, size in alive:
        sizes[category, module] += size
        tensors[category, module] += 1
    listed = [Held(CATEGORIES[key[0]], key[1], size, tensors[key]) for key, size in sizes.items() if size]
    return sorted(listed, key=lambda held: -held.size)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Part of a segment in which no storage of a caller's goes.

    Attributes:
        most: bytes over those at its begin, where they are the most.
        op: the op then.
        change: bytes at its end over those at its begin.
        released: arguments that are not needed after it.
    """

    most: Bytes
    op: int
    change: Bytes
    released: tuple[int, ...]


class _FunctionMemory:
    """One function's changes of memory, segment by segment."""

    def __init__(self, program: Program, name: str, storages: FunctionStorages, segments: tuple[Segment, ...]):
        self.name = name
        self.known = storages
        self.segments = segments
        self.arguments = program.functions[name].arguments
        end = len(program.functions[name].ops)
        returned = {result for result in storages.results if result is not None}
        self._starting: dict[int, list[int]] = {}
        self._arriving: dict[int, list[int]] = {}
        self._ending: dict[int, list[int]] = {}
        self.leftover: list[int] = []
        for number, storage in enumerate(storages.storages):
            if storage.argument < 0 and not storage.adopted:
                self._starting.setdefault(storage.first, []).append(number)
            if storage.arrives >= 0:
                self._arriving.setdefault(storage.arrives, []).append(number)
            if storage.last < end:
                self._ending.setdefault(storage.last, []).append(number)
            elif number not in returned:
                self.leftover.append(number)
        self.unused = tuple(self._ending.get(-1, ()))
        self.stretches = {segment.first: self._stretches(segment) for segment in segments if segment.kind != "call"}

    def dying(self, op: int) -> set[int]:
        """Return the storages whose last use is a call, or its result."""
        return set(self._ending.get(op, ()))

    def _stretches(self, segment: Segment) -> list[_Stretch]:
        made: list[_Stretch] = []
        storages = self.known.storages
        change = [0] * len(CATEGORIES)
        most, top, at = _NOTHING, -1, segment.first
        for op in range(segment.first, segment.last):
            for number in self._starting.get(op, ()):
                storage = storages[number]
                change[COMMUNICATION if storage.arrives >= 0 else storage.category] += storage.size
            for number in self._arriving.get(op, ()):
                change[COMMUNICATION] -= storages[number].size
                change[storages[number].category] += storages[number].size
            total = sum(change)
            if total > top or op == segment.first:
                most, top, at = tuple(change), total, op
            released = []
            for number in self._ending.get(op, ()):
                storage = storages[number]
                if storage.argument >= 0:
                    released.append(storage.argument)
                else:
                    change[storage.category] -= storage.size
            if released or op == segment.last - 1:
                made.append(_Stretch(most, at, tuple(change), tuple(released)))
                change = [0] * len(CATEGORIES)
                most, top, at = _NOTHING, -1, op + 1
        return made

    def alive_at(self, op: int, gone: set[int]) -> Iterator[tuple[int, str, int]]:
        """Yield (category, module, bytes) of the function's own storages while an op runs, less those in `gone`."""
        for number, storage in enumerate(self.known.storages):
            # What a call returns is counted with the callee until then.
            begun = storage.first < op if storage.adopted else storage.first <= op
            if storage.argument < 0 and begun and storage.last >= op and number not in gone:
                category = COMMUNICATION if storage.arrives > op else storage.category
                yield category, storage.module, storage.size


class _StopError(Exception):
    """The point that was looked for is reached."""


class _Replay:
    """Runs through a step once, noting what is held; with `stop`, up to that point, noting what is alive there."""

    def __init__(
        self, known: dict[str, _FunctionMemory], timeline: RankTimeline, keep_arguments: bool, stop: int | None = None
    ):
        self.known = known
        self.timeline = timeline
        self.blocks: Iterator[Block] = iter(timeline.blocks)
        self.keep = keep_arguments
        self.stop = stop
        self.held = list(_NOTHING)
        self.points: list[Point] = []
        self.place = ("", -1)
        self.alive: list[tuple[int, str, int]] = []

    def run(self) -> None:
        """Run the step."""
        entry = self.known[self.timeline.entry]
        sizes = [tensor_bytes(argument.type) if argument.role != "size" else 0 for argument in entry.arguments]
        storages = entry.known.storages
        for number, size in enumerate(sizes):
            self.held[storages[number].category] += size
        here = set(range(len(sizes)))

        def release(argument: int) -> None:
            if not self.keep:
                self.held[storages[argument].category] -= sizes[argument]
                here.discard(argument)

        self.points.append(Point(0.0, 0.0, tuple(self.held)))
        try:
            self._function(entry, release)
        except _StopError:
            self.alive += [(storages[n].category, storages[n].module, sizes[n]) for n in sorted(here)]

    def _function(self, function: _FunctionMemory, release: Callable[[int], None]) -> None:
        for argument in function.unused:
            release(argument)
        for segment in function.segments:
            if segment.kind == "call":
                self._call(function, segment, release)
                continue
            block = next(self.blocks)
            stretches = function.stretches[segment.first]
            for position, stretch in enumerate(stretches):
                held = tuple(map(sum, zip(self.held, stretch.most, strict=True)))
                last = position == len(stretches) - 1
                self._note(function, stretch.op, Point(block.begin, block.end if last else block.begin, held))
                self.held = list(map(sum, zip(self.held, stretch.change, strict=True)))
                for argument in stretch.released:
                    release(argument)
        for number in function.leftover:
            self._free(function, number, release)

    def _note(self, function: _FunctionMemory, op: int, point: Point) -> None:
        self.points.append(point)
        if self.stop == len(self.points) - 1:
            self.place = function.name, op
            self.alive += function.alive_at(op, set())
            raise _StopError

    def _free(self, function: _FunctionMemory, number: int, release: Callable[[int], None]) -> None:
        storage = function.known.storages[number]
        if storage.argument >= 0:
            release(storage.argument)
        else:
            self.held[storage.category] -= storage.size

    def _call(self, function: _FunctionMemory, segment: Segment, release: Callable[[int], None]) -> None:
        op = segment.first
        given = function.known.given[op]
        dying = function.dying(op)
        holds = Counter(number for number in given if number is not None)
        gone: set[int] = set()

        def released(argument: int) -> None:
            number = given[argument]
            if number is None:
                return
            holds[number] -= 1
            if not holds[number] and number in dying:
                gone.add(number)
                self._free(function, number, release)

        try:
            self._function(self.known[segment.callee], released)
        except _StopError:
            self.alive += function.alive_at(op, gone)
            raise
        for number in dying - gone:
            self._free(function, number, release)
