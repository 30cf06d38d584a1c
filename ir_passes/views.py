"""Which operators are views and casts: their result holds one operand's elements and nothing else."""

from __future__ import annotations

from torch_mlir import ir

from ..view_operators import STRIDED_VIEWS

VIEWS = STRIDED_VIEWS | {
    "aten.__getitem__.t",
    "aten.clone",
    "aten.contiguous",
    "aten.reshape",
    "prim.ListUnpack",
}
"""Operators whose results hold elements of their one tensor operand (or list of tensors) and nothing else."""

UNPACKING = frozenset({"aten.__getitem__.t", "prim.ListUnpack"})
"""Of these, those that take tensors out of a list."""

CASTS = frozenset({"aten._to_copy", "aten.to.dtype", "prims.convert_element_type"})
"""Operators that give their one tensor operand in another dtype."""


def operator_name(op: ir.Operation) -> str:
    """Return an operator's name as torch spells it, a default overload left out: ``aten.t``, ``aten.slice.Tensor``."""
    name = op.name
    if name == "torch.operator":
        name = ir.StringAttr(op.attributes["name"]).value
    return str(name).removeprefix("torch.").removesuffix(".default")


def holds_tensors(type_: ir.Type) -> bool:
    """Return whether values of a type are tensors, or lists of tensors."""
    return "tensor" in str(type_)


def is_link(op: ir.Operation) -> bool:
    """Return whether an op is a view or a cast of one tensor and depends on no other."""
    name = operator_name(op)
    if name not in VIEWS and name not in CASTS:
        return False
    return sum(holds_tensors(operand.type) for operand in op.operands) == 1
