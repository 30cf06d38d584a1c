"""Arithmetic on dynamic sizes: what Python computes of them becomes torch's scalar operators.

Tracing records ``n // 2`` as Python's own `operator.floordiv`. Every such node becomes the scalar overload of the same
meaning (``aten.floordiv.int``), so that the IR and a Program hold operators only. Semantics are Python's: a remainder
has the sign of the divisor.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from ...errors import CaptureError
from .source_places import last_user_place

aten = torch.ops.aten

# By kinds of the operands: all integers, all floats; None where both must first be floats.
_BINARY: dict[Callable[..., Any], tuple[Any, Any]] = {
    operator.add: (aten.add.int, aten.add.float),
    operator.sub: (aten.sub.int, aten.sub.float),
    operator.mul: (aten.mul.int, aten.mul.float),
    operator.truediv: (aten.div.int, aten.div.float),
    operator.floordiv: (aten.floordiv.int, aten.floordiv.float),
    operator.mod: (aten.remainder.int, aten.remainder.float),
    operator.eq: (aten.eq.int, aten.eq.float),
    operator.ne: (aten.ne.int, aten.ne.float),
    operator.lt: (aten.lt.int, aten.lt.float),
    operator.le: (aten.le.int, aten.le.float),
    operator.gt: (aten.gt.int, aten.gt.float),
    operator.ge: (aten.ge.int, aten.ge.float),
    operator.pow: (aten.pow.int_to_int, aten.pow.float),
    torch.sym_max: (torch.ops.prim.max.int, torch.ops.prim.max.float),
    torch.sym_min: (torch.ops.prim.min.int, torch.ops.prim.min.float),
}
_UNARY: dict[Callable[..., Any], tuple[Any, Any]] = {
    operator.neg: (aten.neg.int, aten.neg.float),
    torch.sym_float: (aten.Float.int, None),
    torch.sym_int: (None, aten.Int.float),
    math.sqrt: (aten.sqrt.int, aten.sqrt.float),
    math.floor: (None, aten.floor.float),
    math.ceil: (None, aten.ceil.float),
    math.trunc: (None, aten.Int.float),
}
_SIZES = {
    aten.sym_size.int: aten.size.int,
    aten.sym_numel.default: aten.numel.default,
}
_SQRT = getattr(torch, "_sym_sqrt", None)
if _SQRT is not None:
    _UNARY[_SQRT] = _UNARY[math.sqrt]


def use_scalar_operators(graph: Graph) -> None:
    """Make every node that computes a number of sizes a call of a torch operator, in place.

    Raises:
        CaptureError: it is computed in a way that no operator knows, at the user's line.
    """
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _SIZES:
            node.target = _SIZES[node.target]
        elif isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)) and not isinstance(
            node.target, torch._ops.OpOverload
        ):
            _use_operator(node)


def _use_operator(node: Node) -> None:
    kinds = [_kind(arg) for arg in node.args]
    pair = _BINARY.get(node.target) if len(kinds) == 2 else _UNARY.get(node.target)  # type: ignore[arg-type]
    whole, real = pair if pair is not None else (None, None)
    if (whole is None and real is None) or node.kwargs:
        place = last_user_place(node.meta.get("stack_trace") or "")
        name = getattr(node.target, "__name__", str(node.target))
        raise CaptureError(
            f"{place or '<unknown>:0'}: cannot compute '{name}' of a size that changes: leave the size out of "
            "dynamic, or compute with tensors"
        )
    if node.target is operator.pow and not isinstance(node.meta["val"], torch.SymInt):
        whole = None
    if all(kind is int for kind in kinds):
        if whole is not None:
            node.target = whole
            return
        if len(kinds) == 1:
            # The floor of an integer, say: it is the integer.
            _drop(node)
            return
    if real is None:
        _drop(node)
        return
    node.args = tuple(_as_float(node, arg, kind) for arg, kind in zip(node.args, kinds, strict=True))
    node.target = real


def _drop(node: Node) -> None:
    (operand,) = node.all_input_nodes
    node.replace_all_uses_with(operand)
    node.graph.erase_node(node)


def _kind(arg: Any) -> type:
    value = arg.meta["val"] if isinstance(arg, Node) else arg
    if isinstance(value, (torch.SymFloat, float)):
        return float
    return int


def _as_float(node: Node, arg: Any, kind: type) -> Any:
    if kind is float:
        return arg
    if not isinstance(arg, Node):
        return float(arg)
    with node.graph.inserting_before(node):
        made = node.graph.call_function(aten.Float.int, (arg,))
    made.meta = {**node.meta, "val": arg.meta["val"].__sym_float__()}
    return made
