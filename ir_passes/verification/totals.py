"""Sums over microbatches, stages and ranks, and what they are divided by: rule V26.

- V26: every rank returns the loss and, where there is one, the weight. Of each trainable parameter that it holds and a
  stage has a gradient of, it returns that gradient. Each of these adds every microbatch of every stage that has a part
  in it exactly once, and is divided once: a mean by the number of microbatches, a weighted sum by the total weight, or
  not at all if the loss is not either. Buffers are those that all microbatches have updated. Over the data axes, the
  loss and the weight are reduced, as the gradients are (V10 to V12).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch_mlir import ir

from ...dialect.signature import ValueInfo
from ..views import CASTS, VIEWS, operator_name
from .channels import COLLECTIVES, Group
from .findings import Findings
from .microbatch_values import Known, Packed, Total, UnequalError, Zero, add
from .rank_functions import Pipeline

_KEEPS = VIEWS | CASTS | {"aten.cat", "aten.constant_pad_nd", "hp.shard_slice"}
"""Operators whose result is their first operand in another shape or dtype; `aten.cat` puts pieces of it together."""

_ZEROS = frozenset({"aten.new_zeros", "aten.zeros", "aten.zeros_like"})
_FILLED = {"aten.full": 1, "aten.full_like": 1, "aten.new_full": 2}
"""Operators that fill a tensor, and the operand that they fill it with."""


def role_of_total(info: ValueInfo) -> str:
    """Return what a result of a stage function is a part of: the loss, the weight or a gradient; empty for neither."""
    role = "grad" if info.role == "partial" else info.role
    return role if role in ("loss", "weight", "grad") else ""


class Totals:
    """Follows sums through the ops of rank functions."""

    def __init__(self, pipeline: Pipeline, findings: Findings):
        self._pipeline = pipeline
        self._findings = findings
        full = (1 << pipeline.microbatches) - 1
        makers: dict[tuple[str, str], set[int]] = {}
        for function in pipeline.stages.functions:
            for info in function.signature.results:
                role = role_of_total(info)
                for name in info.names if role else ():
                    makers.setdefault((role, name), set()).add(function.stage)
        self.expected = {key: tuple((stage, full) for stage in sorted(stages)) for key, stages in makers.items()}
        """By role and name, the parts of the whole sum."""

    def is_complete(self, total: Total) -> bool:
        """Return whether a sum has all its parts."""
        return total.parts == self.expected.get((total.role, total.names[0]))

    def visit(self, op: ir.Operation, given: Sequence[Known | None]) -> list[Known | None]:
        """Return what an op makes of values; of a collective over data axes, what arrives."""
        name = op.name
        if name == "hp.accumulate":
            half = len(given) // 2
            return [self._add(op, given[i], given[half + i]) for i in range(half)]
        if name in COLLECTIVES:
            return list(given)
        if name == "hp.pack":
            return [Packed(tuple(given))]
        if name == "hp.unpack":
            packed = given[0]
            members = packed.members if isinstance(packed, Packed) else ()
            return list(members) if len(members) == len(op.results) else [None] * len(op.results)
        operator = operator_name(op)
        if operator in _KEEPS:
            return [given[0] if given else None] * len(op.results)
        if operator == "prim.ListConstruct":  # of pieces of one value, or of anything
            return [given[0] if given and all(value == given[0] for value in given) else None]
        if operator in _ZEROS or (operator in _FILLED and _constant(op.operands[_FILLED[operator]]) == 0):
            return [Zero()]
        if operator == "aten.add.Tensor" and _constant(op.operands[2]) == 1:
            return [self._add(op, given[0], given[1])]
        if operator in ("aten.div.Scalar", "aten.div.Tensor") and isinstance(given[0], Total):
            return [self._divide(op, given[0], given[1])]
        return [None] * len(op.results)

    def _add(self, op: ir.Operation, left: Known | None, right: Known | None) -> Known | None:
        try:
            return add(left, right)
        except UnequalError as unequal:  # V26
            self._findings.add(op, str(unequal))
            return None

    def _divide(self, op: ir.Operation, total: Total, by: Known | None) -> Known | None:
        number = _constant(op.operands[1])
        if number == 1:
            return total
        if isinstance(by, Total) and by.role == "weight":
            if not self.is_complete(by):  # V26
                self._findings.add(op, f"divides {total} by the weight of some microbatches only")
            divisor = "weight"
        elif number == self._pipeline.microbatches:
            divisor = "microbatches"
        else:  # V26
            what = "something else" if number is None else f"{number:g}"
            self._findings.add(
                op, f"divides {total} by {what}, expected hp.microbatches = {self._pipeline.microbatches} or the weight"
            )
            return None
        if total.divisor:  # V26
            self._findings.add(op, f"divides {total} a second time")
            return None
        return replace(total, divisor=divisor)

    def meet(
        self, op: ir.Operation, group: Group, members: Sequence[Sequence[Known | None]]
    ) -> list[list[Known | None]]:
        """Return what each position of a group gets from a collective over the pipeline axis.

        Args:
            op: one position's op.
            group: the positions.
            members: the operands of each position.
        """
        if op.name == "hp.broadcast":
            root = self._root(op, group)
            return [list(members[root])] * len(members)
        if op.name != "hp.all_reduce":
            return [[None] * len(members[0])] * len(members)
        sums: list[Known | None] = list(members[0])
        for member in members[1:]:
            sums = [self._add(op, mine, theirs) for mine, theirs in zip(sums, member, strict=True)]
        reduce = ir.StringAttr(op.attributes["reduce"]).value
        for value in sums:
            if reduce != "sum" and value is not None:  # V26
                self._findings.add(op, f"takes the '{reduce}' of {value} over stages, expected 'sum'")
        return [sums] * len(members)

    def _root(self, op: ir.Operation, group: Group) -> int:
        """Return the index among a group's positions of the one that sends."""
        root = int(ir.IntegerAttr(op.attributes["root"]).value)
        if "coordinates" in op.attributes:
            return group.positions.index(root)
        mesh, axis = self._pipeline.stages.mesh, self._pipeline.stages.axis
        axes = [ir.StringAttr(name).value for name in ir.ArrayAttr(op.attributes["axes"])]
        behind = mesh.count(axes[axes.index(axis) + 1 :])
        return root // behind % mesh.axis_size(axis)


def _constant(value: ir.Value) -> float | None:
    """Return the number that a value is, or None where it is no constant."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    op = owner.operation
    if op.name not in ("torch.constant.int", "torch.constant.float"):
        return None
    attribute = op.attributes["value"]
    if isinstance(attribute, ir.IntegerAttr):
        return float(attribute.value)
    return float(ir.FloatAttr(attribute).value)
