"""The ops of a function by their numbers in it: who uses what, what a value is made of, what nothing may cross."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from torch_mlir import ir

from ...dialect.diagnostics import error_at
from ...dialect.signature import body_of
from ..effects import Effect, effect_of
from ..views import CASTS, VIEWS, holds_tensors, operator_name

_FOLLOWING = VIEWS | CASTS | {"aten.cat", "prim.ListConstruct", "hp.unpack"}
_COPYING = CASTS | {"aten.clone"}
_PREPARING = _FOLLOWING | {"aten.constant_pad_nd", "hp.pack", "hp.shard_slice"}


@cache
def _follows(name: str) -> bool:
    return name in _FOLLOWING


@cache
def _prepares(name: str) -> bool:
    return name in _PREPARING or name.startswith("constant.")


def shares_memory(op: ir.Operation) -> bool:
    """Return whether the results of a view, cast or part may lie in its operand's memory."""
    return operator_name(op) not in _COPYING


class Origin(NamedTuple):
    """What a value is made of, casts, pads, views and packs left out.

    Attributes:
        after: the number behind the last op that makes any of it, waits left out; 0 for arguments and constants.
        parameter: whether all of it is parameters.
        waits: numbers of the `hp.wait` ops among those that make it.
    """

    after: int
    parameter: bool
    waits: frozenset[int]


_NONE: frozenset[int] = frozenset()
_NOTHING = Origin(0, True, _NONE)


class OpLine:
    """The ops of a function, numbered in order.

    Args:
        function: a `func.func` with one block.

    Attributes:
        ops: all of them, the terminator last.

    Raises:
        IRError: an op has a region: when what stands in there runs is unknown.
    """

    def __init__(self, function: ir.Operation):
        self.ops: list[ir.Operation] = []
        self._numbers: dict[ir.Value, int] = {}
        self._ends: dict[ir.Value, list[int]] = {}
        self._barriers: list[int] = []
        self._sends: list[int] = []
        self._parameters = _parameters(function)
        self._origins: dict[ir.Value, Origin] = {}
        for number, view in enumerate(body_of(function).operations):
            op = view.operation
            if len(op.regions):
                raise error_at(op, "is control flow; a step function is expected to be a straight line of ops")
            self.ops.append(op)
            results = op.results
            for result in results:
                self._numbers[result] = number
            if not len(results):
                for operand in op.operands:
                    self._ends.setdefault(operand, []).append(number)
            effect = effect_of(op)
            if effect is Effect.MUTATING or (effect is Effect.OPAQUE and _takes_mutable_tensor(op)):
                self._barriers.append(number)
            elif op.name == "hp.send":
                self._sends.append(number)

    def number_of(self, value: ir.Value) -> int:
        """Return the number of the op that makes a value; -1 for an argument."""
        return self._numbers.get(value, -1)

    def uses(self, value: ir.Value) -> Iterator[int]:
        """Yield the numbers of the ops that use a value, in no particular order, repeats included."""
        for use in value.uses:
            results = use.owner.operation.results
            if len(results):
                yield self._numbers[results[0]]
        yield from self._ends.get(value, ())

    def follows(self, number: int, values: dict[ir.Value, int], source: int) -> bool:
        """Return whether an op is a view, cast or part of what one source gives, and of nothing else.

        Args:
            number: of the op.
            values: tensors (and lists of them) that are known, each with its source.
            source: which.
        """
        op = self.ops[number]
        if not _follows(operator_name(op)):
            return False
        return all(values.get(operand) == source for operand in op.operands if holds_tensors(operand.type))

    def prepares(self, number: int) -> bool:
        """Return whether an op only puts a collective's operand into shape: a cast, pad, view, pack or constant."""
        return _prepares(operator_name(self.ops[number]))

    def origin(self, value: ir.Value) -> Origin:
        """Return what a value is made of."""
        found = self._origins
        open_ = [value]
        while open_:
            current = open_[-1]
            if current in found:
                open_.pop()
                continue
            number = self.number_of(current)
            if number < 0:
                found[current] = Origin(0, current in self._parameters or not holds_tensors(current.type), _NONE)
            elif not self.prepares(number):
                is_wait = self.ops[number].name == "hp.wait"
                found[current] = Origin(0, False, frozenset((number,))) if is_wait else Origin(number + 1, False, _NONE)
            else:
                operands = list(self.ops[number].operands)
                missing = [operand for operand in operands if operand not in found]
                if missing:
                    open_ += missing
                    continue
                found[current] = joined([found[operand] for operand in operands])
        return found[value]

    def chain(self, op: ir.Operation, first: int) -> list[int]:
        """Return the numbers, in order, of the ops from `first` on that put an op's operands into shape."""
        found: set[int] = set()
        open_ = list(op.operands)
        while open_:
            number = self.number_of(open_.pop())
            if number >= first and number not in found and self.prepares(number):
                found.add(number)
                open_ += self.ops[number].operands
        return sorted(found)

    def entry(self) -> int:
        """Return the number of the first op that is no constant and puts no parameter into shape."""
        for number, op in enumerate(self.ops):
            results = op.results
            if not (len(results) and self.prepares(number) and self.origin(results[0]).parameter):
                return number
        return len(self.ops) - 1

    def highest(self, number: int, *, start: bool) -> int:
        """Return how far up the op of this number may move: behind what changes tensors; a start also behind a send."""
        limits = [self._barriers, self._sends] if start else [self._barriers]
        found = 0
        for places in limits:
            at = bisect_left(places, number)
            if at:
                found = max(found, places[at - 1] + 1)
        return found

    def lowest(self, number: int) -> int:
        """Return before which op the op of this number may move down at most: the next one that changes tensors."""
        at = bisect_right(self._barriers, number)
        return self._barriers[at] if at < len(self._barriers) else len(self.ops) - 1


def joined(origins: list[Origin]) -> Origin:
    """Return the origin of what is made of several values."""
    if not origins:
        return _NOTHING
    return Origin(
        max(origin.after for origin in origins),
        all(origin.parameter for origin in origins),
        _NONE.union(*(origin.waits for origin in origins)),
    )


def _takes_mutable_tensor(op: ir.Operation) -> bool:
    return any("!torch.tensor" in str(operand.type) for operand in op.operands)


def _parameters(function: ir.Operation) -> frozenset[ir.Value]:
    if "arg_attrs" not in function.attributes:
        return frozenset()
    parameter = ir.StringAttr.get("param", function.context)
    attributes = [ir.DictAttr(item) for item in ir.ArrayAttr(function.attributes["arg_attrs"])]
    return frozenset(
        argument
        for argument, each in zip(body_of(function).arguments, attributes, strict=True)
        if "hp.role" in each and each["hp.role"] == parameter
    )
