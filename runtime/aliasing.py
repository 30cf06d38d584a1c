"""Which values of a Function may share memory: what may be changed in place, and which results are nobody else's.

Every value has origins: the arguments and operations whose memory it may be. An operator that does not declare that its
result is a view, and is not known to return its operand at times, gives memory of its own. Where that is unsure, the
answer is "may share".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from ..mesh import Mesh
from .operators import resolve
from .program import COLLECTIVES, Function, Op, Program

Origins = frozenset[int]

_LASTING = -1
"""The origin of what outlives every function: literals, and what too many origins were merged into."""

_MOST_ORIGINS = 8
_NEVER = -1

# They return an operand, or a view of one, at times and do not say so.
_SILENT_VIEWS = frozenset({"aten._unsafe_view.default", "aten.native_dropout.default"})


@dataclass(frozen=True)
class Aliases:
    """What is known of one function.

    Attributes:
        in_place: per ``hp.accumulate``, by its position among the ops, whether each accumulator may be written to.
        results: origins of each result; arguments are counted as in the function, all others are its own.
        owned: per result, whether its memory is neither an argument's nor another result's, nor outlives the call.
    """

    in_place: Mapping[int, tuple[bool, ...]]
    results: tuple[Origins, ...]
    owned: tuple[bool, ...]


def program_aliases(program: Program, names: Iterable[str]) -> dict[str, Aliases]:
    """Return what is known of some functions of a Program; `names` has each after those it calls."""
    known: dict[str, Aliases] = {}
    for name in names:
        known[name] = _Analysis(program.functions[name], program.mesh, known).run()
    return known


@cache
def _returns_operand(target: str) -> bool:
    """Tell whether an operator's result may be one of its operands, or a view of one."""
    operator = resolve(target)
    if not any("Tensor" in str(result.type) for result in operator._schema.returns):
        return False
    return (
        target in _SILENT_VIEWS
        or any(result.alias_info is not None for result in operator._schema.returns)
        or operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    )


class _Analysis:
    def __init__(self, function: Function, mesh: Mesh, known: Mapping[str, Aliases]):
        self.function = function
        self.mesh = mesh
        self.known = known
        self.origins: dict[int, Origins] = {index: frozenset((index,)) for index in range(len(function.arguments))}
        self.lasting: set[int] = {_LASTING, *range(len(function.arguments))}
        self.last_use = _last_use(function)
        self.readers = Counter(value for op in function.ops for value in op.operands())
        self.readers.update(result.value for result in function.results)
        # Per origin, its two latest uses by different values: (when, value).
        self.uses: dict[int, list[tuple[int, int]]] = {}

    def run(self) -> Aliases:
        starts: dict[int, Op] = {}
        accumulations: list[tuple[int, Op]] = []
        for number, op in enumerate(self.function.ops):
            if op.target == "hp.accumulate":
                accumulations.append((number, op))
            elif op.target == "hp.send":
                self.lasting.update(self._of(op.operands()))
            for value, origins in zip(op.results, self._results(op, starts), strict=True):
                self._define(value, origins)
            if op.target in COLLECTIVES or op.target == "hp.recv":
                starts[op.results[0]] = op
        for index in range(len(self.function.arguments)):
            self._define(index, self.origins[index])
        in_place = {number: self._in_place(number, op) for number, op in accumulations}
        results = tuple(self.origins[result.value] for result in self.function.results)
        return Aliases(in_place, results, self._owned(results))

    def _of(self, values: Iterable[int]) -> Origins:
        merged: set[int] = set()
        for value in values:
            merged |= self.origins[value]
        if len(merged) > _MOST_ORIGINS:
            self.lasting |= merged
            return frozenset((_LASTING,))
        return frozenset(merged)

    def _results(self, op: Op, starts: Mapping[int, Op]) -> Sequence[Origins]:
        target = op.target
        fresh = [frozenset((value,)) for value in op.results]
        if target == "literal":
            return [frozenset((_LASTING,))]
        if target == "call":
            return self._called(op)
        if target == "hp.wait":
            start = starts[next(iter(op.operands()))]
            if start.target in COLLECTIVES and self._is_alone(start):
                return [self.origins[operand] for operand in start.operands()]
            return fresh
        if target == "hp.pack" and op.kwargs.get("ranks") == 1:
            return [self._of(op.operands()) | fresh[0]]
        if target == "hp.unpack" and op.kwargs.get("ranks") == 1:
            # Views side by side: where nobody else reads or writes the whole, each is as good as memory of its own.
            (packed,) = op.operands()
            if self.origins[packed] == {packed} and self.readers[packed] == 1:
                return fresh
            return [self.origins[packed] | own for own in fresh]
        if target in COLLECTIVES or target in ("hp.shard_slice", "hp.microbatch"):
            # A future is what it was made of, so that its operands count as in use until the wait.
            return [self._of(op.operands())]
        if target.startswith("hp.") or not _returns_operand(target):
            return fresh
        return [self._of(op.operands()) | own for own in fresh]

    def _is_alone(self, op: Op) -> bool:
        coordinates = op.kwargs.get("coordinates")
        if isinstance(coordinates, tuple):
            return len(coordinates) == 1
        axes = op.kwargs["axes"]
        assert isinstance(axes, tuple)
        return self.mesh.count([str(axis) for axis in axes]) == 1

    def _called(self, op: Op) -> list[Origins]:
        aliases = self.known[str(op.kwargs["function"])]
        operands = list(op.operands())
        made: dict[int, int] = {}
        results = []
        for value, origins in zip(op.results, aliases.results, strict=True):
            mapped: set[int] = set()
            for origin in origins:
                if origin == _LASTING:
                    mapped.add(_LASTING)
                elif origin < len(operands):
                    mapped |= self.origins[operands[origin]]
                else:
                    mapped.add(made.setdefault(origin, value))
            results.append(frozenset(mapped))
        return results

    def _define(self, value: int, origins: Origins) -> None:
        self.origins[value] = origins
        for origin in origins:
            latest = self.uses.setdefault(origin, [])
            latest.append((self.last_use.get(value, _NEVER), value))
            latest.sort(reverse=True)
            del latest[2:]

    def _in_place(self, number: int, op: Op) -> tuple[bool, ...]:
        operands = list(op.operands())
        return tuple(
            operands.count(total) == 1
            and self.last_use[total] == number
            and all(self._is_free(origin, total, number) for origin in self.origins[total])
            for total in operands[: len(operands) // 2]
        )

    def _is_free(self, origin: int, value: int, number: int) -> bool:
        others = (when for when, user in self.uses[origin] if user != value)
        return origin not in self.lasting and max(others, default=_NEVER) < number

    def _owned(self, results: Sequence[Origins]) -> tuple[bool, ...]:
        counts: dict[int, int] = {}
        for origins in results:
            for origin in origins:
                counts[origin] = counts.get(origin, 0) + 1
        return tuple(
            all(origin not in self.lasting and counts[origin] == 1 for origin in origins) for origins in results
        )


def _last_use(function: Function) -> dict[int, int]:
    """Return, per value, the position of the last op that reads it; results are read after all ops."""
    last: dict[int, int] = {}
    for number, op in enumerate(function.ops):
        for value in op.results:
            last[value] = number
        for value in op.operands():
            last[value] = number
    for result in function.results:
        last[result.value] = len(function.ops)
    return last
