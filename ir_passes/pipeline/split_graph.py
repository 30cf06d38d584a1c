"""A step function as a graph of plain objects: read once, rewritten here, and only then put into stage functions.

Values are numbers: the function's arguments first, then the results of its ops in order, then those of copies. So an
op can be doubled, split or dropped before anything of the module changes, and a refused module is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from torch_mlir import ir

from ...dialect.diagnostics import IRError, error_at
from ...dialect.signature import STATE_ROLES, Signature, ValueInfo, body_of, return_of
from ...dialect.types import tensor_type
from ..effects import Effect, effect_of, may_mutate
from ..phases import BACKWARD, Phases
from ..views import CASTS, VIEWS, holds_tensors, operator_name

STAGE = "hp.stage"

_LISTS = frozenset({"prim.ListConstruct", "prim.TupleConstruct"})
_LINKS = VIEWS | CASTS
# Tensors made of numbers alone.
_CREATIONS = frozenset(
    {
        "aten.arange",
        "aten.arange.start",
        "aten.arange.start_step",
        "aten.empty.memory_format",
        "aten.eye",
        "aten.eye.m",
        "aten.full",
        "aten.ones",
        "aten.scalar_tensor",
        "aten.zeros",
        "hp.normal",
        "hp.uniform",
        "vtensor.literal",
    }
)
# What turns draws into a mask.
_COMPARISONS = frozenset(
    {
        "aten.eq.Scalar",
        "aten.ge.Scalar",
        "aten.gt.Scalar",
        "aten.le.Scalar",
        "aten.logical_not",
        "aten.lt.Scalar",
        "aten.ne.Scalar",
    }
)
_COLLECTIVE_LIKE = (Effect.PURE, Effect.COMMUNICATION)
_MESSAGES = frozenset({"hp.send", "hp.recv"})


class Kind(Enum):
    """Where an op can be."""

    FIXED = "fixed"
    """In one function: its values cross to others."""

    LINK = "link"
    """A view or cast of one tensor: made again wherever that tensor is."""

    FREE = "free"
    """Of constants, inputs and sizes alone, and cheap: made wherever it is needed."""

    CARRIED = "carried"
    """Numbers read from tensors, and lists: made wherever they are needed, from the tensors, which go there."""


@dataclass(eq=False, slots=True)
class Node:
    """An op of the step, or a copy of one.

    Attributes:
        op: the op; that of the original for a copy.
        number: the op's position; a copy has its original's.
        operands: numbers of values.
        results: numbers of values; -1 for a result that the other half of a split op makes.
        stage: where it is placed; None for constants, numbers and what is made on several stages.
        backward: whether it is of the backward.
        kind: see `Kind`; known after `SplitGraph.classify`.
        copied: whether it is a copy for one of several stages.
        mask: for half of a fused backward op, which results it computes; the operand that says so is left out.
    """

    op: ir.Operation
    number: int
    operands: list[int]
    results: list[int]
    stage: int | None
    backward: bool
    kind: Kind = Kind.FIXED
    copied: bool = False
    mask: tuple[bool, ...] | None = None


@dataclass(frozen=True)
class Returned:
    """A value that the step returns; `stage` is the parameter's for a gradient, else None."""

    info: ValueInfo
    value: int
    stage: int | None = None


class SplitGraph:
    """The ops and values of a step function that stages are assigned to.

    Args:
        function: with one block.
        signature: of the function.
        stage_count: stages of the module.

    Attributes:
        nodes: the ops in order, without the return.
        values: the value behind each number; for a result of a copy, the original's.
        makers: the node that makes each value, None for an argument.
        returned: what the function returns, in order.
        roots: per value, the value that must be where it is made again: itself for results of fixed ops and for
            state, -1 where nothing must be. Known after `classify`, as is `parents`.
        parents: of the results of links, what they are views or casts of.

    Raises:
        IRError: an op has a region or a malformed stage, or changes an operand.
    """

    def __init__(self, function: ir.Operation, signature: Signature, stage_count: int):
        self.function = function
        self.signature = signature
        self.nodes: list[Node] = []
        self.values: list[ir.Value] = list(body_of(function).arguments)
        self.makers: list[Node | None] = [None] * len(self.values)
        self.roots: list[int] = []
        self.parents: dict[int, int] = {}
        self._copies: list[Node] = []
        self._tensors: dict[ir.Type, bool] = {}
        self._bytes: dict[ir.Type, float] = {}
        numbers = {value: number for number, value in enumerate(self.values)}
        self._read(numbers, stage_count)
        operands = return_of(function).operands
        self.returned = [
            Returned(info, numbers[value]) for info, value in zip(signature.results, operands, strict=True)
        ]

    def _read(self, numbers: dict[ir.Value, int], stage_count: int) -> None:
        phases = Phases(self.function)
        stages: dict[ir.Attribute, int] = {}
        values, makers, nodes = self.values, self.makers, self.nodes
        for position, view in enumerate(body_of(self.function).operations):
            op = view.operation
            if op.name == "func.return":
                continue
            if may_mutate(op):
                raise error_at(op, "changes an operand, which stages cannot share")
            stage = None
            attribute = op.attributes.get(STAGE)
            if attribute is not None:
                if attribute not in stages:
                    stages[attribute] = _stage_of(op, attribute, stage_count)
                stage = stages[attribute]
            first = len(values)
            results = list(op.results)
            values += results
            made = list(range(first, len(values)))
            numbers.update(zip(results, made, strict=True))
            operands = [numbers[operand] for operand in op.operands]
            node = Node(op, position, operands, made, stage, phases.of(op) == BACKWARD)
            nodes.append(node)
            makers += [node] * len(made)

    def copy(self, node: Node, operands: Sequence[int], stage: int) -> Node:
        """Double an op, on a stage and with operands of its own; `finish_copies` puts it in its place."""
        first = len(self.values)
        self.values += [self.values[result] for result in node.results]
        made = list(range(first, len(self.values)))
        copied = Node(node.op, node.number, list(operands), made, stage, node.backward, copied=True)
        self.makers += [copied] * len(made)
        self._copies.append(copied)
        return copied

    def finish_copies(self) -> None:
        """Put copies behind their originals."""
        if self._copies:
            self.nodes = sorted([*self.nodes, *self._copies], key=lambda node: node.number)
            self._copies = []

    def split(self, node: Node, mask: Sequence[bool], later: Sequence[bool]) -> Node:
        """Take the results that `later` says out of a fused backward op; return the op that computes them alone."""
        second = Node(node.op, node.number, node.operands[:-1], [], node.stage, node.backward, mask=tuple(later))
        second.results = [result if moves else -1 for result, moves in zip(node.results, later, strict=True)]
        for result in second.results:
            if result >= 0:
                self.makers[result] = second
        node.results = [-1 if moves else result for result, moves in zip(node.results, later, strict=True)]
        node.operands = node.operands[:-1]
        node.mask = tuple(mask)
        self._copies.append(second)
        return second

    def drop_dead(self) -> None:
        """Leave out ops that nobody needs, collectives too: all ranks of a stage leave out the same."""
        needed = bytearray(len(self.values))
        for returned in self.returned:
            needed[returned.value] = 1
        kept = []
        for node in reversed(self.nodes):
            if any(needed[result] for result in node.results) or has_effect(node.op):
                for operand in node.operands:
                    needed[operand] = 1
                kept.append(node)
        self.nodes = kept[::-1]

    def classify(self) -> None:
        """Tell fixed ops from those that are made where they are needed.

        Raises:
            IRError: a fixed op has no stage, at the op.
        """
        roots = self.roots = [-1] * len(self.values)
        for info in self.signature.arguments:
            if info.role in STATE_ROLES:
                roots[info.index] = info.index
        for node in self.nodes:
            node.kind = self._kind(node)
            if node.kind is Kind.FREE:
                continue
            if node.kind is Kind.LINK:
                parent = next(operand for operand in node.operands if self.holds_tensors(operand))
                for result in node.results:
                    roots[result] = roots[parent]
                    self.parents[result] = parent
                continue
            if node.kind is Kind.FIXED and node.stage is None:
                raise error_at(node.op, "has no hp.stage; run hp-assign-stages first")
            for result in node.results:
                roots[result] = result

    def _kind(self, node: Node) -> Kind:
        op, roots = node.op, self.roots
        name = operator_name(op)
        if effect_of(op) is not Effect.PURE or not node.results:
            return Kind.FIXED
        rooted = [operand for operand in node.operands if roots[operand] >= 0]
        if name in _LISTS or not any(self.holds_tensors(result) for result in node.results):
            return Kind.CARRIED if rooted else Kind.FREE
        if name in _LINKS:
            tensors = [operand for operand in node.operands if self.holds_tensors(operand)]
            if len(tensors) == 1 and not rooted:
                return Kind.FREE
            if len(tensors) == 1 and rooted == tensors and not self._is_carried(tensors[0]):
                return Kind.LINK
            return Kind.FIXED
        return Kind.FREE if not rooted and (name in _CREATIONS or name in _COMPARISONS) else Kind.FIXED

    def _is_carried(self, value: int) -> bool:
        maker = self.makers[value]
        return maker is not None and maker.kind is Kind.CARRIED

    def holds_tensors(self, value: int) -> bool:
        """Return whether a value is a tensor, or a list of tensors."""
        type_ = self.values[value].type
        known = self._tensors.get(type_)
        if known is None:
            known = self._tensors[type_] = holds_tensors(type_)
        return known

    def bytes_of(self, value: int) -> float:
        """Return the bytes of a tensor, dynamic sizes as 1; infinity for what is no tensor."""
        type_ = self.values[value].type
        known = self._bytes.get(type_)
        if known is None:
            parsed = tensor_type(type_)
            known = self._bytes[type_] = float("inf") if parsed is None else parsed.bytes
        return known

    def fixed(self) -> Iterator[Node]:
        """Yield the fixed ops in order."""
        return (node for node in self.nodes if node.kind is Kind.FIXED)


def has_effect(op: ir.Operation) -> bool:
    """Return whether an op does more than its results that only it does: a draw, a check, a custom op, a message."""
    return effect_of(op) not in _COLLECTIVE_LIKE or op.name in _MESSAGES


@cache
def makes_constants(name: str) -> bool:
    """Return whether an operator makes tensors of numbers alone, the same on every call."""
    return name in _CREATIONS and name not in ("hp.normal", "hp.uniform")


def _stage_of(op: ir.Operation, attribute: ir.Attribute, stage_count: int) -> int:
    if not isinstance(attribute, ir.IntegerAttr) or not 0 <= attribute.value < stage_count:
        raise _malformed(op, attribute, stage_count)
    return int(attribute.value)


def _malformed(op: ir.Operation, attribute: ir.Attribute, stage_count: int) -> IRError:
    return error_at(op, f"expected hp.stage to be one of 0 to {stage_count - 1}, got: {attribute}")
