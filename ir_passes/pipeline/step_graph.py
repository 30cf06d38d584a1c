"""The ops of a step function by their numbers: what each is made of, what uses it, and what any stage can make itself.

Some ops need no stage of their own, since every stage that uses what they give can make it: constants and lists; views
and casts of an argument, with the gathers of a parameter among them; and what depends on no argument at all, such as a
causal mask. These are loose. All other ops run on one stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from torch_mlir import ir

from ...dialect.diagnostics import error_at
from ...dialect.hp import COMMUNICATION
from ...dialect.signature import Signature, body_of
from ...dialect.types import tensor_type
from ..effects import Effect, effect_of
from ..phases import BACKWARD, FORWARD, control_flow_error
from ..views import UNPACKING, holds_tensors, is_link, operator_name

_LISTS = frozenset({"torch.prim.ListConstruct", "torch.prim.TupleConstruct"})
_PAD = "aten.constant_pad_nd"
_SHAPING = frozenset({_PAD, "aten.cat", "hp.shard_slice", "hp.pack", "hp.unpack"})
_OF_SEVERAL = COMMUNICATION | {"hp.pack", "hp.unpack"}


class Kind(Enum):
    """Where an op may run."""

    FREE = "free"
    """No placement: a constant, a list of numbers, a scalar made of scalars, the terminator."""

    LIST = "list"
    """A list of tensors: goes with what uses it."""

    LOOSE = "loose"
    """Made again by every stage that uses it."""

    FIXED = "fixed"
    """On one stage."""


@dataclass(slots=True)
class Node:
    """One op.

    Attributes:
        op: the op.
        kind: where it may run.
        backward: whether it is of the backward.
        module: its `hp.module`, empty for the root.
        sources: numbers of the ops that it is made of, through lists.
        arguments: numbers of the arguments that it uses itself, through lists.
        users: numbers of the ops that use it, through lists; the terminator is not one.
        roots: for a loose op, the arguments that it is made of.
    """

    op: ir.Operation
    kind: Kind
    backward: bool
    module: str
    sources: tuple[int, ...] = ()
    arguments: tuple[int, ...] = ()
    users: list[int] = field(default_factory=list)
    roots: frozenset[int] = frozenset()


_NONE: frozenset[int] = frozenset()


class StepGraph:
    """The ops of a step function.

    Args:
        function: a `func.func` with one block.
        signature: its own.

    Attributes:
        nodes: one per op, in order, the terminator last.
        readers: per argument, the ops that use it themselves.
        returned: per result, the number of the op that makes it; for an argument given back, ``-1 - its number``.
        mutated: arguments, buffers, of which the function returns a new value.

    Raises:
        IRError: an op has a region: when what stands in there runs is unknown. Or its `hp.module` is no string.
    """

    def __init__(self, function: ir.Operation, signature: Signature):
        block = body_of(function)
        self.function = function
        self.nodes: list[Node] = []
        self.readers: list[list[int]] = [[] for _ in signature.arguments]
        self._made: dict[ir.Value, int] = {}
        self._arguments = {
            value: info.index
            for value, info in zip(block.arguments, signature.arguments, strict=True)
            if info.role != "size"
        }
        names = {name: info.index for info in signature.arguments if info.role == "buffer" for name in info.names}
        new = {name for info in signature.results_with_role("buffer") for name in info.names}
        self.mutated = frozenset(index for name, index in names.items() if name in new)
        backward = ir.StringAttr.get(BACKWARD, function.context)
        phase: ir.Attribute = ir.StringAttr.get(FORWARD, function.context)
        for view in block.operations:
            op = view.operation
            if len(op.regions):
                raise control_flow_error(op)
            attributes = op.attributes
            name = op.name
            phase = attributes.get("hp.phase", phase)
            module = attributes.get("hp.module")
            if name == "func.return":
                self.nodes.append(Node(op, Kind.FREE, False, ""))
            else:
                if module is not None and not isinstance(module, ir.StringAttr):
                    raise error_at(op, f"expected 'hp.module' to be a string, the name of a module, got: {module}")
                text = "" if module is None else module.value
                self._add(Node(op, Kind.FIXED, phase == backward, text), name)
        self.returned = [self._origin(value) for value in self.nodes[-1].op.operands]

    def _origin(self, value: ir.Value) -> int | None:
        if value in self._made:
            return self._made[value]
        return -1 - self._arguments[value] if value in self._arguments else None

    def _add(self, node: Node, name: str) -> None:
        number = len(self.nodes)
        sources: list[int] = []
        arguments: list[int] = []
        for operand in node.op.operands:
            maker = self._made.get(operand)
            if maker is not None:
                sources.append(maker)
                if self.nodes[maker].kind is Kind.LIST:
                    sources += self.nodes[maker].sources
                    arguments += self.nodes[maker].arguments
            elif operand in self._arguments:
                arguments.append(self._arguments[operand])
        node.sources = tuple(dict.fromkeys(sources)) if len(sources) > 1 else tuple(sources)
        node.arguments = tuple(dict.fromkeys(arguments)) if arguments else ()
        node.kind = self._kind(node, name)
        self.nodes.append(node)
        if node.kind is Kind.FREE:
            return
        for result in node.op.results:
            self._made[result] = number
        for source in node.sources:
            self.nodes[source].users.append(number)
        for argument in node.arguments:
            self.readers[argument].append(number)

    def _kind(self, node: Node, name: str) -> Kind:
        if name in _LISTS:
            return Kind.LIST if node.sources or node.arguments else Kind.FREE
        if name.startswith(("torch.constant.", "torch.vtensor.")):
            return Kind.FREE
        op = node.op
        if not node.sources and not node.arguments:
            if len(op.results) and not any(holds_tensors(result.type) for result in op.results):
                return Kind.FREE
            return Kind.LOOSE if effect_of(op) is Effect.PURE else Kind.FIXED
        for source in node.sources:
            if self.nodes[source].kind is Kind.FIXED:
                return Kind.FIXED
        roots = _NONE.union(node.arguments, *(self.nodes[source].roots for source in node.sources))
        if not roots:
            return Kind.LOOSE if effect_of(op) is Effect.PURE else Kind.FIXED
        if roots & self.mutated or not self._is_chain(op, name):
            return Kind.FIXED
        if len(roots) > 1 and name not in _OF_SEVERAL:
            return Kind.FIXED
        node.roots = roots
        return Kind.LOOSE

    def _is_chain(self, op: ir.Operation, name: str) -> bool:
        return name in COMMUNICATION or operator_name(op) in _SHAPING or is_link(op)

    def passes_on(self, number: int) -> bool:
        """Return whether an op is a view, cast, padding or communication of one tensor, which gives one.

        That is what gradients go through to be reduced.
        """
        op = self.nodes[number].op
        if op.name in COMMUNICATION:
            return len(op.operands) == len(op.results) == 1
        name = operator_name(op)
        return name == _PAD or (is_link(op) and name not in UNPACKING)

    def check_crossings(self, stages: Sequence[int | None], copies: Mapping[int, Sequence[int]]) -> None:
        """Refuse a placement by which something else than a tensor would go from one stage to another.

        Args:
            stages: per op, its stage.
            copies: number of each loose op to the stages that make it.

        Raises:
            IRError: at the op that takes it.
        """
        for number, node in enumerate(self.nodes):
            used = copies.get(number, ())
            if node.kind is Kind.LOOSE and len(used) > 1 and len(node.roots) > 1:
                of = ", ".join(map(str, used))
                raise error_at(node.op, f"is a bucket of parameters of stages {of}; fuse collectives after the split")
            stage = stages[number]
            if node.kind is not Kind.FIXED or stage is None:
                continue
            for source in node.sources:
                made = stages[source]
                if made is not None and made != stage:
                    self._check_crossing(node, source, made, stage)

    def _check_crossing(self, node: Node, source: int, made: int, stage: int) -> None:
        maker = self.nodes[source]
        if maker.backward and not node.backward:
            raise error_at(node.op, "is of the forward, but takes what the backward makes", notes=[(maker.op, "here")])
        for operand in node.op.operands:
            if self._made.get(operand) == source and tensor_type(operand.type) is None:
                raise error_at(
                    node.op,
                    f"runs on stage {stage} and takes a {operand.type} of stage {made}: only tensors go from stage to "
                    "stage",
                    notes=[(maker.op, f"made here, on stage {made}")],
                )
