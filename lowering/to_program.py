"""IR to Program: an spmd-level module becomes the op lists that every rank runs.

Each `torch.aten.xyz` op becomes the torch operator of that name, constants become plain arguments, views become
`reshape` (values in the IR have no strides), devices become "the device it runs on". The step function around it, with
its loop over microbatches, is made by `step_function`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch_mlir import ir

from ..dialect.attributes import find_mesh, future_types, read_ints, read_strings
from ..dialect.diagnostics import error_at, place_of
from ..dialect.hp import COMMUNICATION
from ..dialect.levels import require_level
from ..dialect.signature import Signature, ValueInfo, body_of, function_name, read_signature, step_functions
from ..dialect.types import TensorType as IRTensorType
from ..dialect.types import tensor_type as read_tensor_type
from ..mesh import Mesh
from ..runtime.program import (
    HP_ATTRIBUTES,
    Arg,
    Argument,
    Function,
    Named,
    Op,
    Program,
    Ref,
    Result,
    TensorType,
)
from . import rank_programs
from .call_arguments import call_arguments
from .collective_members import CollectiveMembers
from .complex_import import CONSTANT as COMPLEX_CONSTANT
from .literals import literal_data
from .static_values import read_static_inputs
from .step_function import assemble, prune

# Views that depend on layout or are computed only when read, and what they are where values have no strides.
_AS_VALUES = {
    "aten.view.default": "aten.reshape.default",
    "aten._unsafe_view.default": "aten.reshape.default",
    "aten._conj.default": "aten.conj_physical.default",
    "aten._neg_view.default": "aten.neg.default",
}

# Operators that read the memory of a dense operand; canonicalize has deleted the copy that made it so.
_DENSE_OPERAND = frozenset({"aten.view_as_complex.default", "aten.view.dtype"})

# What must know at run time the types that these ops have in the IR.
_TYPED: dict[str, Callable[[ir.Operation], list[ir.Type]]] = {
    "hp.recv": lambda op: future_types(op.results[0].type),
    "hp.pack": lambda op: [operand.type for operand in op.operands],
    "hp.unpack": lambda op: [result.type for result in op.results],
}

# Spellings of the torch dialect that torch itself has under another name, or only as a twin without optional lists.
_ALIASES = {
    "aten._unsafe_index_put.hacked_twin": "aten._unsafe_index_put.default",
    "aten.index_put.hacked_twin": "aten.index_put.default",
    "aten.index.Tensor_hacked_twin": "aten.index.Tensor",
    "aten.to.prim_dtype": "aten.to.dtype",
}


def to_program(
    module: ir.Module,
    *,
    microbatches: int | None = None,
    seed: int = 0,
    reference: ir.Module | None = None,
    allow: Sequence[str] = (),
) -> Program:
    """Lower a module at level "joint" (one rank), "spmd" or "program" to a Program.

    Args:
        module: with one step function, or with one per pipeline position and what they call; it is not changed.
        microbatches: parts each data rank's batch is split into; the function's inputs are one part. None for 1, or for
            what a module at level "program" says.
        seed: of the random streams.
        reference: the module before any partitioning, kept in the Program for `hp-run --check`.
        allow: custom-op namespaces, as for `Program.load`.

    Returns:
        The Program, validated.

    Raises:
        IRError: another level, an op that cannot be lowered, or a malformed signature, at the op.
        PlanError: a module at level "program" is for another number of microbatches.
        RuntimeFault: an operator of a namespace that is not allowed.
    """
    operation = module.operation
    level = require_level(operation, "lowering to a Program", ("joint", "spmd", "program"))
    found = find_mesh(operation)
    mesh = found[1] if found else Mesh(("all",), (1,))
    axis = None
    if level == "program":
        axis = rank_programs.pipeline_axis(operation)
        microbatches = rank_programs.module_microbatches(operation, microbatches)
        data_axes = rank_programs.scheduled_data_axes(operation, mesh)
        functions, entries = rank_programs.lower_rank_functions(operation, mesh, lambda op: lower_function(op, mesh))
        train, evaluate = entries["train"], entries["evaluate"]
        step = operation
    else:
        microbatches = 1 if microbatches is None else microbatches
        step = _only_function(operation)
        data_axes = read_signature(step, mesh).data_axes
        functions, *names = assemble(lower_function(step, mesh), mesh, data_axes, microbatches)
        train, evaluate = ((name,) for name in names)
    if reference is not None:
        joint = lower_function(_only_function(reference.operation), mesh)
        functions["joint"] = replace(prune(joint, lambda result: True), name="joint")
    program = Program(
        mesh=mesh,
        data_axes=data_axes,
        microbatches=microbatches,
        functions=functions,
        train=train,
        evaluate=evaluate,
        reference="joint" if reference is not None else None,
        pipeline_axis=axis,
        seed=seed,
        output_tree=_output_tree(step),
        static_inputs=read_static_inputs(step),
        guards=(read_strings(step.attributes["hp.guards"]) or ()) if "hp.guards" in step.attributes else (),
        text=str(module),
    )
    program.validate(allow=allow)
    return program


def _output_tree(step: ir.Operation) -> Any:
    """Return the structure of the outputs, which the step function or the scheduled module says."""
    if "hp.output_tree" not in step.attributes:
        return None
    return json.loads(ir.StringAttr(step.attributes["hp.output_tree"]).value)


def _only_function(module: ir.Operation) -> ir.Operation:
    functions = list(step_functions(module))
    if len(functions) != 1:
        names = ", ".join(f"@{function_name(function)}" for function in functions) or "none"
        raise error_at(module, f"expected one function to lower, got: {names}", named=False)
    return functions[0]


def lower_function(function: ir.Operation, mesh: Mesh | None) -> Function:
    """Lower one function with a signature to an op list, in one walk.

    Raises:
        IRError: an op that has no counterpart in torch, or operands that are not constants where torch needs them.
    """
    signature = read_signature(function, mesh)
    lowering = _FunctionLowering(len(signature.arguments), _first_names(signature))
    block = body_of(function)
    for index, argument in enumerate(block.arguments):
        lowering.values[argument] = Ref(index)
    results: list[Arg] = []
    for view in block.operations:
        op = view.operation
        if op.name == "func.return":
            results = [lowering.values[operand] for operand in op.operands]
        else:
            lowering.lower(op)
    arguments = tuple(_argument(info) for info in signature.arguments)
    returned = []
    for info, value in zip(signature.results, results, strict=True):
        assert isinstance(value, Ref)
        returned.append(_result(info, value.index))
    return Function(function_name(function), arguments, tuple(lowering.ops), tuple(returned), *_task(function))


def _task(function: ir.Operation) -> tuple[int | None, str]:
    """Return the stage and the task of a stage function; (None, "") of any other one."""
    stage, task = (function.attributes.get(name) for name in ("hp.stage", "hp.task"))
    if not isinstance(stage, ir.IntegerAttr) or not isinstance(task, ir.StringAttr):
        return None, ""
    return int(stage.value), str(task.value)


def _first_names(signature: Signature) -> dict[str, str]:
    return {name: info.name for info in signature.arguments if info.role == "param" for name in info.names}


def _type(type_: IRTensorType) -> TensorType:
    return TensorType(type_.shape, type_.dtype)


def _argument(info: ValueInfo) -> Argument:
    sharding = info.sharding if info.sharding is not None else ((),) * len(info.type.shape)
    return Argument(
        _type(info.type),
        info.role,
        info.names,
        info.trainable,
        info.batch_dim,
        sharding,
        info.full_shape,
        info.dim_names,
        info.example,
        info.buffer,
        info.offset,
    )


def _result(info: ValueInfo, value: int) -> Result:
    sharding = info.sharding if info.sharding is not None else ((),) * len(info.type.shape)
    return Result(value, _type(info.type), info.role, info.names, info.batch_dim, sharding, info.full_shape)


class _FunctionLowering:
    """The state of one walk: SSA values seen so far as Program arguments, and the ops made."""

    def __init__(self, next_value: int, first_names: Mapping[str, str]):
        self._members = CollectiveMembers(first_names)
        self.values: dict[ir.Value, Arg] = {}
        self.ops: list[Op] = []
        self._types: dict[ir.Type, TensorType | None] = {}
        self._next = next_value

    def lower(self, op: ir.Operation) -> None:
        """Lower one op."""
        name = op.name
        if name.startswith("torch.constant."):
            self.values[op.results[0]] = _constant(op)
        elif name in ("torch.prim.ListConstruct", "torch.prim.TupleConstruct"):
            self.values[op.results[0]] = tuple(self.values[operand] for operand in op.operands)
        elif name == "torch.vtensor.literal":
            self._literal(op)
        elif name in (
            "torch.derefine",
            "torch.copy.to_vtensor",
            "torch.copy.to_tensor",
            "torch.tensor_static_info_cast",
        ):
            self.values[op.results[0]] = self.values[op.operands[0]]
        elif name.startswith("hp."):
            self._hp(op)
        elif name.startswith("torch."):
            self._torch(op)
        elif name == "func.call":
            self._call(op)
        else:
            raise error_at(op, "has no counterpart at run time")

    def _literal(self, op: ir.Operation) -> None:
        type_ = read_tensor_type(op.results[0].type)
        data = literal_data(op.attributes["value"])
        if type_ is None or data is None:
            raise error_at(op, "expected a dense literal of a known dtype")
        self._append(op, "literal", (), {"data": _nest(data, type_.shape)})

    def _define(self, op: ir.Operation) -> tuple[tuple[int, ...], tuple[TensorType | None, ...]]:
        numbers, types = [], []
        for result in op.results:
            self.values[result] = Ref(self._next)
            numbers.append(self._next)
            self._next += 1
            mlir_type = result.type
            if mlir_type not in self._types:  # a type is read from its text, and few differ
                type_ = read_tensor_type(mlir_type)
                self._types[mlir_type] = None if type_ is None else _type(type_)
            types.append(self._types[mlir_type])
        return tuple(numbers), tuple(types)

    def _append(self, op: ir.Operation, target: str, args: tuple[Arg, ...], kwargs: dict[str, Arg]) -> None:
        results, types = self._define(op)
        origin = (*_origin(op), *self._members.of(op)) if op.name in COMMUNICATION else _origin(op)
        self.ops.append(Op(target, args, kwargs, results, types, *origin))

    def _hp(self, op: ir.Operation) -> None:
        kwargs: dict[str, Arg] = {}
        for key in HP_ATTRIBUTES.get(op.name, ()):
            if key in op.attributes:
                kwargs[key] = _attribute(op.attributes[key])
        operands = tuple(self.values[operand] for operand in op.operands)
        if op.name in ("hp.uniform", "hp.normal"):
            type_ = read_tensor_type(op.results[0].type)
            assert type_ is not None
            kwargs["dtype"] = Named("dtype", type_.dtype)
            operands = (operands,)
        if op.name in _TYPED:
            kwargs["types"] = tuple(
                (type_.dtype, type_.shape) for type_ in map(read_tensor_type, _TYPED[op.name](op)) if type_ is not None
            )
        self._append(op, op.name, operands, kwargs)

    def _call(self, op: ir.Operation) -> None:
        kwargs: dict[str, Arg] = {"function": ir.FlatSymbolRefAttr(op.attributes["callee"]).value}
        if "hp.microbatch" in op.attributes:
            kwargs["microbatch"] = _attribute(op.attributes["hp.microbatch"])
        self._append(op, "call", tuple(self.values[operand] for operand in op.operands), kwargs)

    def _torch(self, op: ir.Operation) -> None:
        name = op.attributes["name"].value if op.name == "torch.operator" else op.name
        if name == COMPLEX_CONSTANT:
            self._complex(op)
            return
        _, namespace, base, *overload = name.split(".")
        target = f"{namespace}.{base}.{overload[0] if overload else 'default'}"
        target = _ALIASES.get(target, target)
        operator = _find_operator(target)
        if operator is None:
            raise error_at(op, f"torch has no operator '{target}'")
        operands = [self.values[operand] for operand in op.operands]
        args, kwargs = call_arguments(op, operator, operands)
        if target in _DENSE_OPERAND:
            args = (self._contiguous(op, args[0]), *args[1:])
        self._append(op, _AS_VALUES.get(target, target), args, kwargs)

    def _contiguous(self, op: ir.Operation, operand: Arg) -> Ref:
        type_ = read_tensor_type(op.operands[0].type)
        results, types = (self._next,), (None if type_ is None else _type(type_),)
        self._next += 1
        self.ops.append(Op("aten.contiguous.default", (operand,), {}, results, types, *_origin(op)))
        return Ref(results[0])

    def _complex(self, op: ir.Operation) -> None:
        real, imaginary = (self.values[operand] for operand in op.operands)
        if not isinstance(real, float) or not isinstance(imaginary, float):
            raise error_at(op, "expected the parts of a complex number to be constants")
        self.values[op.results[0]] = complex(real, imaginary)


def _origin(op: ir.Operation) -> tuple[str, str, str]:
    """Return module, phase and source line of an op."""
    attributes = op.attributes
    module = attributes["hp.module"].value if "hp.module" in attributes else ""
    phase = attributes["hp.phase"].value if "hp.phase" in attributes else ""
    return module, phase, place_of(op.location).removesuffix(":0")


_operators: dict[str, Any] = {}


def _find_operator(target: str) -> Any:
    if target not in _operators:
        namespace, base, overload = target.split(".")
        packet = getattr(getattr(torch.ops, namespace), base, None)
        _operators[target] = getattr(packet, overload, None) if packet is not None else None
    return _operators[target]


def _attribute(attribute: ir.Attribute) -> Arg:
    if isinstance(attribute, ir.UnitAttr):
        return True
    strings = read_strings(attribute)
    if strings is not None:
        return strings
    ints = read_ints(attribute)
    if ints is not None:
        return ints
    value = attribute.value
    return value if isinstance(value, (int, str)) else str(value)


def _constant(op: ir.Operation) -> Arg:
    kind = op.name.removeprefix("torch.constant.")
    if kind == "none":
        return None
    if kind == "device":
        return Named("device", "")
    value = op.attributes["value"].value
    if kind == "bool":
        return bool(value)
    if kind in ("int", "number") and isinstance(value, int):
        return value
    if kind in ("float", "number"):
        return float(value)
    return str(value)


def _nest(flat: Sequence[Arg], shape: Sequence[int | None]) -> Arg:
    if not shape:
        return flat[0]
    rows = shape[0] or 0
    width = len(flat) // rows if rows else 0
    return tuple(_nest(flat[row * width : (row + 1) * width], shape[1:]) for row in range(rows))
