"""FX to IR: a captured joint graph becomes `@joint` in a module at level "joint".

torch-mlir's `FxImporter` makes the ops; what is ours is the signature (`hp.role`, ...), `hp.module` and `hp.phase` on
every op, one source line per op, and literals written inline.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import torch
from torch.fx import Graph, Node
from torch_mlir import ir
from torch_mlir.extras.fx_importer import FxImporter, FxImporterHooks, GraphNodeImporter

from ..dialect.attributes import i64_attr, ints_attr, strings_attr
from ..dialect.context import make_context
from ..dialect.levels import set_level
from ..dialect.signature import Signature, ValueInfo, write_signature
from ..dialect.types import ELEMENT_TYPES, TORCH_DTYPE_CODES, TensorType
from ..errors import CaptureError
from ..runtime.operators import dtype_name
from ..runtime.program import HP_ATTRIBUTES
from .capture import random_ops
from .capture.advice import unknown_dtype
from .capture.joint_graph import Described, JointGraph
from .capture.normalize import place_of
from .complex_import import complex_constant, complex_literal, use_scalar_overloads
from .static_values import write_static_inputs


class _NodeImporter(GraphNodeImporter):  # type: ignore[misc]  # torch-mlir is untyped
    """Marks each op with the module and phase of the node it was made for."""

    def _import_torch_op_overload(self, loc: Any, node: Node, concrete_target: Any = None) -> None:
        target = node.target
        try:
            if target in random_ops.TARGETS:
                self._import_draw(loc, node)
                return
            super()._import_torch_op_overload(loc, node, concrete_target)
        except (NotImplementedError, TypeError, ValueError, AssertionError, RuntimeError, LookupError) as error:
            reason = str(error) or type(error).__name__
            raise CaptureError(f"{place_of(node)}: torch-mlir cannot import operator '{target}': {reason}") from None

    def _import_argument(self, loc: Any, arg: Any, expected_jit_type: Any = None) -> Any:
        if isinstance(arg, complex):
            with loc:
                return complex_constant(arg)
        return super()._import_argument(loc, arg, expected_jit_type)

    def _import_draw(self, loc: Any, node: Node) -> None:
        sizes: Any = node.args[0]
        operands = [self._import_argument(loc, size, torch.IntType.get()) for size in sizes]
        number = ir.IntegerType.get_signless(64)
        attributes = {
            name: ir.IntegerAttr.get(number, value)
            for name, value in node.kwargs.items()
            if name in HP_ATTRIBUTES[random_ops.TARGETS[node.target]]
        }
        op = ir.Operation.create(
            random_ops.TARGETS[node.target],
            results=[self._cc.node_val_to_type(node)],
            operands=operands,
            attributes=attributes,
            loc=loc,
        )
        self.bind_node_value(node, op.result)

    def bind_node_value(self, node: Node, value: Any, result_index: int = 0) -> None:
        """Bind a node to a value and annotate the op that defines it."""
        super().bind_node_value(node, value, result_index)
        if result_index == 0 and node.op == "call_function" and isinstance(value, ir.OpResult):
            attributes = value.owner.attributes
            module, phase = node.meta.get("hp.module"), node.meta.get("hp.phase")
            if module:
                attributes["hp.module"] = ir.StringAttr.get(module)
            if phase:
                attributes["hp.phase"] = ir.StringAttr.get(phase)
            if "hp.recompute" in node.meta:
                attributes["hp.recompute"] = i64_attr(node.meta["hp.recompute"])
                if "hp.saved" in node.meta:
                    attributes["hp.saved"] = ints_attr(node.meta["hp.saved"])


class _Hooks(FxImporterHooks):  # type: ignore[misc]  # torch-mlir is untyped
    """Writes tensor literals inline, so that the text of a module is whole, and dtypes by torch's own numbers."""

    def resolve_literal(self, gni: Any, literal: Any, info: Any) -> Any:
        """Return the value of a tensor literal or a dtype, None for any other."""
        if isinstance(literal, torch.dtype):
            # torch-mlir's importer is off by one for complex dtypes, and lacks some.
            name = dtype_name(literal)
            if name not in TORCH_DTYPE_CODES:
                raise NotImplementedError(unknown_dtype("its result", literal))
            return ir.Operation.create(
                "torch.constant.int",
                results=[ir.Type.parse("!torch.int")],
                attributes={"value": i64_attr(TORCH_DTYPE_CODES[name])},
            ).result
        if not isinstance(literal, torch.Tensor):
            return None
        return complex_literal(literal, _real_literal) if literal.is_complex() else _real_literal(literal)


def _real_literal(literal: torch.Tensor) -> ir.Value:
    type_ = TensorType(tuple(literal.shape), dtype_name(literal.dtype))
    shaped = f"tensor<{''.join(f'{size}x' for size in type_.shape)}{ELEMENT_TYPES[type_.dtype]}>"
    elements = ir.Attribute.parse(f"dense<{_dense_text(literal)}> : {shaped}")
    return ir.Operation.create(
        "torch.vtensor.literal", results=[type_.to_mlir()], attributes={"value": elements}
    ).result


def _dense_text(tensor: torch.Tensor) -> str:
    """Spell a tensor's values as MLIR's dense attribute does; floats by their bits, so that none is rounded."""
    if tensor.numel() == 0:
        return ""
    if tensor.dim():
        return f"[{', '.join(_dense_text(row) for row in tensor)}]"
    if tensor.is_floating_point():
        width = tensor.element_size()
        bits = tensor.detach().reshape(1).view({2: torch.int16, 4: torch.int32, 8: torch.int64}[width]).item()
        return f"0x{int(bits) & (2 ** (8 * width) - 1):0{2 * width}X}"
    return str(tensor.item()).lower()


def import_joint(joint: JointGraph, *, context: ir.Context | None = None) -> ir.Module:
    """Import a captured step.

    Args:
        joint: what `capture` gave; its graph is copied, not changed.
        context: from `make_context`; a new one by default.

    Returns:
        A verified module at level "joint" with the one function `@joint`.

    Raises:
        CaptureError: an op or a dtype that the torch dialect has no spelling of, at the user's line.
    """
    context = context if context is not None else make_context()
    # A graph alone, whose Python code nobody needs; torch-mlir looks its constants up in the module.
    graph = deepcopy(joint.graph_module.graph)
    graph.owning_module = joint.graph_module
    graph.set_codegen(torch.fx.graph.CodeGen())
    for node in graph.nodes:
        # The same step is the same IR on every machine: tensors are made on the device that runs it.
        if node.op == "call_function" and "device" in node.kwargs:
            node.kwargs = {key: value for key, value in node.kwargs.items() if key != "device"}
    use_scalar_overloads(graph)
    _check_dtypes(graph, joint)
    with context, ir.Location.unknown():
        importer = FxImporter(context=context, hooks=_Hooks(), graph_node_importer_cls=_NodeImporter)
        try:
            function = importer.import_stateless_graph(graph, func_name="joint").operation
        except (NotImplementedError, TypeError, ValueError, AssertionError, RuntimeError, KeyError) as error:
            raise CaptureError(f"{joint.source}: cannot import the captured step: {error}") from None
        module = importer.module
        nodes = list(graph.nodes)
        returned: Any = graph.output_node().args[0]
        arguments = [
            _info(index, described, node)
            for index, (described, node) in enumerate(
                zip(joint.arguments, (n for n in nodes if n.op == "placeholder"), strict=True)
            )
        ]
        results = [
            _info(index, described, node)
            for index, (described, node) in enumerate(zip(joint.results, returned, strict=True))
        ]
        write_signature(function, Signature(tuple(arguments), tuple(results)))
        if joint.output_tree is not None:
            function.attributes["hp.output_tree"] = ir.StringAttr.get(json.dumps(joint.output_tree))
        write_static_inputs(function, joint.static_inputs)
        if joint.guards:
            function.attributes["hp.guards"] = strings_attr(joint.guards)
    set_level(module.operation, "joint")
    module.operation.verify()
    return module


def _info(index: int, described: Described, node: Node) -> ValueInfo:
    value = node.meta["val"]
    if described.role == "size":
        type_ = TensorType((), "int64")
    else:
        shape = tuple(size if isinstance(size, int) else None for size in value.shape)
        type_ = TensorType(shape, dtype_name(value.dtype))
    return ValueInfo(
        index=index,
        role=described.role,
        type=type_,
        names=described.names,
        trainable=described.trainable,
        batch_dim=described.batch_dim,
        dim_names=described.dim_names,
        example=described.example,
        full_shape=type_.shape,
    )


def _check_dtypes(graph: Graph, joint: JointGraph) -> None:
    arguments = iter(joint.arguments)
    for node in graph.nodes:
        value = node.meta.get("val")
        argument = next(arguments) if node.op == "placeholder" else None
        if not isinstance(value, torch.Tensor) or dtype_name(value.dtype) in ELEMENT_TYPES:
            continue
        what = f"the result of '{node.target}'" if argument is None else f"{argument.role} '{argument.names[0]}'"
        place = place_of(node) if argument is None else joint.source
        raise CaptureError(f"{place}: {unknown_dtype(what, value.dtype)}")
