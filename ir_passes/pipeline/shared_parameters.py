"""Parameters that several stages hold: each stage gathers its own copy and gets its own part of the gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch_mlir import ir

from ...dialect.diagnostics import error_at
from ...dialect.hp import COMMUNICATION
from ...dialect.signature import STATE_ROLES
from ..views import CASTS, UNPACKING, VIEWS, operator_name
from .split_graph import Node, Returned, SplitGraph, makes_constants

_PADS = "aten.constant_pad_nd"
_SCALES = frozenset({"aten.div.Scalar", "aten.mul.Scalar", "aten.neg"})
_SCALES_BY_TENSOR = frozenset({"aten.div.Tensor", "aten.mul.Tensor"})
_COLLECTIVES = frozenset({"hp.all_gather", "hp.all_reduce", "hp.reduce_scatter", "hp.wait"})
_LINEAR = (VIEWS - UNPACKING) | CASTS | _SCALES | _COLLECTIVES


def nearest_owner(owners: Sequence[int], stage: int) -> int:
    """Return the owner that gives a stage its copy: itself, else the last one before it, else the first."""
    return max((owner for owner in owners if owner <= stage), default=owners[0])


def copy_gathers(graph: SplitGraph) -> None:
    """Double what has no stage of a parameter's gathers for each stage that holds the parameter; users take their own.

    Raises:
        IRError: communication without a stage that is no parameter's gather.
    """
    owners: dict[int, tuple[int, ...]] = {
        info.index: info.stages for info in graph.signature.arguments if info.role in STATE_ROLES
    }
    copies: dict[int, dict[int, int]] = {}
    for node in graph.nodes:
        shared = [operand for operand in node.operands if operand in copies]
        if node.stage is not None:
            for position, operand in enumerate(node.operands):
                if operand in copies:
                    node.operands[position] = copies[operand][nearest_owner(owners[operand], node.stage)]
            held = [owners[operand] for operand in node.operands if operand in owners]
            if len(held) == 1 and _is_gather_part(node.op):
                owners.update(dict.fromkeys(node.results, held[0]))
            continue
        held = [owners[operand] for operand in node.operands if operand in owners]
        if not held:
            continue
        if not shared and node.op.name not in COMMUNICATION:
            if _is_gather_part(node.op):
                owners.update(dict.fromkeys(node.results, held[0]))
            continue
        made: dict[int, dict[int, int]] = {result: {} for result in node.results}
        for owner in held[0]:
            operands = [copies[operand][owner] if operand in copies else operand for operand in node.operands]
            copy = graph.copy(node, operands, owner)
            for result, copied in zip(node.results, copy.results, strict=True):
                made[result][owner] = copied
        copies.update(made)
        owners.update(dict.fromkeys(node.results, held[0]))
    graph.returned = [
        Returned(returned.info, copies[returned.value][owners[returned.value][0]])
        if returned.value in copies
        else returned
        for returned in graph.returned
    ]
    graph.finish_copies()


def _is_gather_part(op: ir.Operation) -> bool:
    name = operator_name(op)
    return name in VIEWS or name in CASTS or name == _PADS


def split_gradients(graph: SplitGraph) -> None:
    """Give each stage that holds a trainable parameter its own part of the gradient.

    The gradient of a parameter that several stages hold is, seen through what is linear in it, a sum: each stage gets
    the terms that are made on it, with its own copy of what follows the sum. A stage without a term gets none.

    Raises:
        IRError: a term is made on a stage before all that hold the parameter.
    """
    stages = {name: info.stages for info in graph.signature.arguments if info.role == "param" for name in info.names}
    tied = [
        returned
        for returned in graph.returned
        if returned.info.role == "grad" and len(stages.get(returned.info.name, ())) > 1
    ]
    uses: Counter[int] = Counter()
    if tied:
        for node in graph.nodes:
            uses.update(node.operands)
        uses.update(returned.value for returned in graph.returned)
    whole = []
    for returned in graph.returned:
        owners = stages.get(returned.info.name, ())
        if returned.info.role != "grad" or not owners:
            whole.append(returned)
        elif len(owners) == 1:
            whole.append(Returned(returned.info, returned.value, owners[0]))
        else:
            parts = _Terms(graph, uses, returned.info.name, owners).of(returned.value)
            whole += [Returned(returned.info, parts[owner], owner) for owner in owners if owner in parts]
    graph.returned = whole
    graph.finish_copies()


class _Terms:
    """Takes one gradient apart by stage."""

    def __init__(self, graph: SplitGraph, uses: Counter[int], name: str, owners: tuple[int, ...]):
        self._graph = graph
        self._uses = uses
        self._name = name
        self._owners = owners
        self._parts: dict[int, dict[int, int]] = {}

    def of(self, gradient: int) -> dict[int, int]:
        """Return each stage's part of a gradient."""
        for node, operands in self._linear_part(gradient):
            result = node.results[0]
            terms = [self._part(operand) for operand in operands]
            self._parts[result] = {
                stage: self._project(node, operands, terms, stage)
                for stage in self._owners
                if any(stage in term for term in terms)
            }
        return self._part(gradient)

    def _linear_part(self, gradient: int) -> list[tuple[Node, tuple[int, ...]]]:
        """Return the ops between the sum's terms and the gradient, in order, and what each is linear in."""
        found: dict[int, tuple[Node, tuple[int, ...]]] = {}
        pending = [gradient]
        while pending:
            value = pending.pop()
            node = self._graph.makers[value]
            # What others use too is a term: they need it whole. The forward's ops stay where they are.
            if value in found or node is None or self._uses[value] > 1 or not node.backward:
                continue
            operands = self._linear_in(node)
            if operands:
                found[value] = (node, operands)
                pending += operands
        return sorted(found.values(), key=lambda item: item[0].number)

    def _linear_in(self, node: Node) -> tuple[int, ...]:
        name = operator_name(node.op)
        if len(node.results) != 1:
            return ()
        if name in _LINEAR:
            return (node.operands[0],) if name not in _COLLECTIVES or len(node.operands) == 1 else ()
        if name == _PADS:
            return (node.operands[0],) if self._is_constant(node.operands[2], 0) else ()
        if name in _SCALES_BY_TENSOR:
            return (node.operands[0],) if self._is_scaled_by_constant(node) else ()
        if name == "aten.add.Tensor" and self._is_constant(node.operands[2], 1):
            type_ = self._graph.values[node.results[0]].type
            if all(self._graph.values[operand].type == type_ for operand in node.operands[:2]):
                return (node.operands[0], node.operands[1])
        return ()

    def _is_constant(self, value: int, expected: int) -> bool:
        maker = self._graph.makers[value]
        if maker is None or not maker.op.name.startswith("torch.constant."):
            return False
        attribute = maker.op.attributes.get("value")
        return attribute is not None and bool(attribute.value == expected)

    def _is_scaled_by_constant(self, node: Node) -> bool:
        maker = self._graph.makers[node.operands[1]]
        same = self._graph.values[node.operands[0]].type == self._graph.values[node.results[0]].type
        return same and maker is not None and makes_constants(operator_name(maker.op))

    def _part(self, value: int) -> dict[int, int]:
        if value not in self._parts:
            self._parts[value] = {self._owner(value): value}
        return self._parts[value]

    def _owner(self, term: int) -> int:
        node = self._graph.makers[term]
        if node is None or node.stage is None:
            return self._owners[0]
        owner = nearest_owner(self._owners, node.stage)
        if owner > node.stage and node.backward:
            raise error_at(
                node.op,
                f"makes a term of the gradient of '{self._name}' on stage {node.stage}, but the first stage that holds "
                f"'{self._name}' is {owner}",
            )
        return owner

    def _project(self, node: Node, operands: tuple[int, ...], terms: list[dict[int, int]], stage: int) -> int:
        """Return the value of an op as a stage sees it: of the terms that are its own."""
        own = [term[stage] for term in terms if stage in term]
        if len(operands) == 2 and len(own) == 1:
            return own[0]
        if node.stage == stage and tuple(own) == operands:
            return node.results[0]
        return self._graph.copy(node, [*own, *node.operands[len(own) :]], stage).results[0]
