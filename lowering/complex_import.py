"""Complex numbers in the IR, where torch-mlir's importer has no spelling of them.

- A Python number is ``torch.operator "torch.aten.Complex.float_float"`` of its two parts, as TorchScript spells it.
- A tensor literal is a real one with a last dim of two, and `view_as_complex`: MLIR's Python bindings cannot read dense
  complex attributes.
- An operator called with a Python number in a tensor's place is its ``Scalar`` overload, which promotes dtypes as eager
  does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch_mlir import ir

from ..dialect.types import TensorType

CONSTANT = "torch.aten.Complex.float_float"
"""The operator that stands for a complex number."""


def complex_constant(value: complex) -> ir.Value:
    """Emit a Python number at the current place."""
    kind = ir.Type.parse("!torch.float")
    parts = [
        ir.Operation.create("torch.constant.float", results=[kind], attributes={"value": ir.FloatAttr.get_f64(part)})
        for part in (value.real, value.imag)
    ]
    return ir.Operation.create(
        "torch.operator",
        results=[ir.Type.parse("!torch.number")],
        operands=[part.result for part in parts],
        attributes={"name": ir.StringAttr.get(CONSTANT)},
    ).result


def complex_literal(tensor: torch.Tensor, real_literal: Callable[[torch.Tensor], ir.Value]) -> ir.Value:
    """Emit a tensor's values at the current place; `real_literal` emits those of a real one."""
    parts = real_literal(torch.view_as_real(tensor.resolve_conj()))
    type_ = TensorType(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    return ir.Operation.create("torch.aten.view_as_complex", results=[type_.to_mlir()], operands=[parts]).result


def use_scalar_overloads(graph: Graph) -> None:
    """Call the ``Scalar`` overload of operators that are given a complex number in a tensor's place, in place.

    The conjugate of a number, which autograd asks for, is a number too.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or not any(isinstance(arg, complex) for arg in node.args):
            continue
        if node.target in _CONJUGATES:
            _replace_by_number(node, complex(node.args[0]).conjugate())
            continue
        target: Any = node.target
        if not isinstance(target, torch._ops.OpOverload):
            continue
        kinds = [argument.type for argument in target._schema.arguments]
        if any(
            isinstance(arg, complex) and isinstance(kind, torch.TensorType)
            for arg, kind in zip(node.args, kinds, strict=False)
        ):
            node.target = getattr(target.overloadpacket, "Scalar", target)


_CONJUGATES = (torch.ops.aten._conj.default, torch.ops.aten.conj_physical.default)


def _replace_by_number(node: Node, value: complex) -> None:
    def replaced(arg: Node) -> Any:
        return value if arg is node else arg

    for user in list(node.users):
        user.args, user.kwargs = map_arg(user.args, replaced), map_arg(user.kwargs, replaced)
    node.graph.erase_node(node)
