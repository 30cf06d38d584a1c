"""Signatures of step functions as data: what each argument and result is (`hp.role`, `hp.fqn`, `hp.sharding`, ...).

`read_signature` checks the attributes once, so that passes and lowerings need not; `write_signature` puts changed ones
back. The attributes are those of the table in the dialect reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch_mlir import ir

from ..errors import nearest
from ..mesh import Mesh, Sharding, local_shape
from .attributes import i64_attr, ints_attr, read_ints, read_sharding, read_strings, sharding_attr, strings_attr
from .diagnostics import error_at
from .types import DTYPE_BYTES, TensorType, tensor_type

ARGUMENT_ROLES = ("param", "buffer", "input", "size", "constant", "incoming", "saved", "gathered")
RESULT_ROLES = ("loss", "weight", "output", "grad", "buffer", "outgoing", "saved", "partial")
STATE_ROLES = ("param", "buffer", "constant")
CROSSING_ROLES = ("incoming", "outgoing", "saved")
"""What goes from one function of a stage to another: to other stages, or to a later function of the same one.

At level "program" a stage function may also be given a "gathered" parameter, and return a "partial" gradient, one that
is not yet reduced over the data axes: both have the parameter's `hp.fqn`.
"""


@dataclass(frozen=True)
class ValueInfo:
    """What an argument or a result of a step function is.

    `index` is its position; the `type` of a size, which is no tensor, is that of an integer without dims. `names` are
    the FQNs of a parameter, buffer, constant or gradient, the leaf path of an input or output, and ``("loss",)`` or
    ``("weight",)``. `sharding` is None where the attribute is absent (replicated). `full_shape` is always filled in:
    the global shape. `dim_names` has, for an input with dynamic sizes, the name of each dim, empty for a fixed size.
    `example` is, for a size, what it was when the step was captured: what estimates use. Parameters with the same
    `buffer` are to lie in one piece of memory, each from byte `offset` on. `stages` are those that hold a parameter,
    buffer or constant, in order; empty before stages are assigned.
    """

    index: int
    role: str
    type: TensorType
    names: tuple[str, ...]
    trainable: bool = False
    batch_dim: int | None = None
    sharding: Sharding | None = None
    full_shape: tuple[int | None, ...] = ()
    dim_names: tuple[str, ...] = ()
    example: int | None = None
    buffer: str = ""
    offset: int = 0
    stages: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The first name: what messages use."""
        return self.names[0]

    @property
    def axes(self) -> tuple[str, ...]:
        """All mesh axes that split it."""
        return tuple(axis for dim in self.sharding or () for axis in dim)


@dataclass(frozen=True)
class Signature:
    """Arguments and results of a step function, in order."""

    arguments: tuple[ValueInfo, ...]
    results: tuple[ValueInfo, ...]

    def with_role(self, role: str) -> tuple[ValueInfo, ...]:
        """Return the arguments of a role."""
        return tuple(info for info in self.arguments if info.role == role)

    def results_with_role(self, role: str) -> tuple[ValueInfo, ...]:
        """Return the results of a role."""
        return tuple(info for info in self.results if info.role == role)

    @property
    def data_axes(self) -> tuple[str, ...]:
        """Mesh axes that split the inputs along their batch dims, in order of appearance: they see different data."""
        axes: dict[str, None] = {}
        for info in self.arguments:
            if info.role == "input" and info.batch_dim is not None and info.sharding is not None:
                axes.update(dict.fromkeys(info.sharding[info.batch_dim]))
        return tuple(axes)


def step_functions(module: ir.Operation) -> Iterator[ir.Operation]:
    """Yield the `func.func` ops of a module that have a body, in order."""
    for child in module.operation.regions[0].blocks[0].operations:
        op = child.operation
        if op.name == "func.func" and len(op.regions[0].blocks):
            yield op


def function_name(function: ir.Operation) -> str:
    """Return the symbol name of a function, without the `@`."""
    return str(ir.StringAttr(function.attributes["sym_name"]).value)


def body_of(function: ir.Operation) -> ir.Block:
    """Return the one block of a function.

    Raises:
        IRError: it has control flow.
    """
    blocks = function.regions[0].blocks
    if len(blocks) != 1:
        raise error_at(function, f"expected one block in @{function_name(function)}, got: {len(blocks)}")
    return blocks[0]


def return_of(function: ir.Operation) -> ir.Operation:
    """Return the terminator of a function."""
    operations = body_of(function).operations
    return operations[len(operations) - 1].operation


def read_signature(function: ir.Operation, mesh: Mesh | None = None) -> Signature:
    """Read a step function's signature.

    Args:
        function: a `func.func` with a body.
        mesh: the module's mesh; needed where a value has `hp.sharding`.

    Raises:
        IRError: an attribute is missing, malformed or contradicts the type; the text names argument or result and key.
    """
    function_type = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    arguments = _read_side(function, "argument", function_type.inputs, "arg_attrs", ARGUMENT_ROLES, mesh)
    results = _read_side(function, "result", function_type.results, "res_attrs", RESULT_ROLES, mesh)
    return Signature(arguments, results)


def _dictionaries(function: ir.Operation, key: str, count: int) -> list[ir.DictAttr | None]:
    if key not in function.attributes:
        return [None] * count
    return [ir.DictAttr(item) for item in ir.ArrayAttr(function.attributes[key])]


def _read_side(
    function: ir.Operation, side: str, types: Sequence[ir.Type], key: str, roles: Sequence[str], mesh: Mesh | None
) -> tuple[ValueInfo, ...]:
    infos = []
    for index, (type_, attributes) in enumerate(zip(types, _dictionaries(function, key, len(types)), strict=True)):
        where = f"{side} {index} of @{function_name(function)}"
        infos.append(_read_value(function, where, index, type_, attributes, roles, mesh))
    return tuple(infos)


def _read_value(
    function: ir.Operation,
    where: str,
    index: int,
    type_: ir.Type,
    attributes: ir.DictAttr | None,
    roles: Sequence[str],
    mesh: Mesh | None,
) -> ValueInfo:
    if attributes is None or "hp.role" not in attributes:
        raise error_at(function, f"{where} has no hp.role")
    role_attribute = attributes["hp.role"]
    role = role_attribute.value if isinstance(role_attribute, ir.StringAttr) else str(role_attribute)
    if role not in roles:
        raise error_at(function, f"{where}: unknown hp.role '{role}'{nearest(role, roles)}")
    type_info = tensor_type(type_)
    if type_info is None:
        if role != "size":
            raise error_at(function, f"{where}: expected a tensor of known rank and dtype, got: {type_}")
        type_info = TensorType((), "int64")
    info = ValueInfo(index, role, type_info, _read_names(function, where, role, attributes), full_shape=type_info.shape)
    if "hp.trainable" in attributes:
        info = replace(info, trainable=True)
    if "hp.batch_dim" in attributes:
        dim_attribute = attributes["hp.batch_dim"]
        dim = ir.IntegerAttr(dim_attribute).value if isinstance(dim_attribute, ir.IntegerAttr) else -1
        if not 0 <= dim < len(type_info.shape):
            raise error_at(function, f"{where}: expected hp.batch_dim < {len(type_info.shape)}, got: {dim_attribute}")
        info = replace(info, batch_dim=dim)
    if "hp.dim_names" in attributes:
        info = replace(info, dim_names=_read_dim_names(function, where, info, attributes["hp.dim_names"]))
    if "hp.example" in attributes:
        example = attributes["hp.example"]
        if role != "size" or not isinstance(example, ir.IntegerAttr) or example.value < 0:
            raise error_at(function, f"{where}: expected hp.example to be the example of a size, got: {example}")
        info = replace(info, example=example.value)
    if "hp.stages" in attributes:
        info = replace(info, stages=_read_stages(function, where, role, attributes["hp.stages"]))
    if "hp.buffer" in attributes or "hp.offset" in attributes:
        info = _read_buffer(function, where, info, attributes)
    if "hp.sharding" in attributes:
        info = _read_sharding(function, where, info, attributes["hp.sharding"], mesh)
    if "hp.full_shape" in attributes:
        full = read_ints(attributes["hp.full_shape"])
        if full is None or len(full) != len(type_info.shape):
            raise error_at(
                function,
                f"{where}: expected hp.full_shape to have {len(type_info.shape)} sizes, "
                f"got: {attributes['hp.full_shape']}",
            )
        info = replace(info, full_shape=tuple(None if size < 0 else size for size in full))
    return info


def _read_stages(function: ir.Operation, where: str, role: str, attribute: ir.Attribute) -> tuple[int, ...]:
    stages = read_ints(attribute)
    if role not in STATE_ROLES or not stages or min(stages) < 0 or list(stages) != sorted(set(stages)):
        raise error_at(function, f"{where}: expected hp.stages to be the stages of state in order, got: {attribute}")
    return tuple(stages)


def _read_buffer(function: ir.Operation, where: str, info: ValueInfo, attributes: ir.DictAttr) -> ValueInfo:
    if "hp.buffer" not in attributes or "hp.offset" not in attributes:
        raise error_at(function, f"{where}: expected hp.buffer and hp.offset together")
    buffer, offset = attributes["hp.buffer"], attributes["hp.offset"]
    if info.role != "param" or None in info.type.shape:
        raise error_at(function, f"{where}: expected hp.buffer on a parameter of static shape, got: {info.role}")
    if not isinstance(buffer, ir.StringAttr) or not buffer.value:
        raise error_at(function, f"{where}: expected hp.buffer to be a name, got: {buffer}")
    size = DTYPE_BYTES[info.type.dtype]
    if not isinstance(offset, ir.IntegerAttr) or offset.value < 0 or offset.value % size:
        raise error_at(function, f"{where}: expected hp.offset to be a multiple of {size} bytes, got: {offset}")
    return replace(info, buffer=buffer.value, offset=offset.value)


def _read_dim_names(function: ir.Operation, where: str, info: ValueInfo, attribute: ir.Attribute) -> tuple[str, ...]:
    names = read_strings(attribute)
    if names is None or len(names) != len(info.type.shape):
        raise error_at(
            function, f"{where}: expected hp.dim_names to have {len(info.type.shape)} names, got: {attribute}"
        )
    for dim, (name, size) in enumerate(zip(names, info.type.shape, strict=True)):
        if bool(name) != (size is None):
            what = "a name" if size is None else "no name"
            raise error_at(function, f"{where}: expected {what} in hp.dim_names for dim {dim}, got: {attribute}")
    return names


def _read_names(function: ir.Operation, where: str, role: str, attributes: ir.DictAttr) -> tuple[str, ...]:
    if "hp.fqn" in attributes:
        names = read_strings(attributes["hp.fqn"])
        if not names:
            raise error_at(function, f"{where}: expected hp.fqn to be a list of names, got: {attributes['hp.fqn']}")
        return names
    if "hp.name" in attributes:
        name = attributes["hp.name"]
        if not isinstance(name, ir.StringAttr):
            raise error_at(function, f"{where}: expected hp.name to be a string, got: {name}")
        return (name.value,)
    if role in ("loss", "weight"):
        return (role,)
    raise error_at(function, f"{where} has role '{role}' but neither hp.fqn nor hp.name")


def _read_sharding(
    function: ir.Operation, where: str, info: ValueInfo, attribute: ir.Attribute, mesh: Mesh | None
) -> ValueInfo:
    parsed = read_sharding(attribute)
    if parsed is None:
        raise error_at(function, f"{where}: expected an #hp.sharding, got: {attribute}")
    name, sharding = parsed
    if mesh is None:
        raise error_at(function, f"{where}: hp.sharding names '@{name}' but the module has no mesh")
    if len(sharding) != len(info.type.shape):
        raise error_at(
            function, f"{where}: expected hp.sharding to have {len(info.type.shape)} dims, got: {len(sharding)}"
        )
    seen: set[str] = set()
    for axis in (axis for dim in sharding for axis in dim):
        if axis not in mesh.axis_names:
            raise error_at(function, f"{where}: mesh has no axis '{axis}'{nearest(axis, mesh.axis_names)}")
        if axis in seen:
            raise error_at(function, f"{where}: axis '{axis}' splits it twice")
        seen.add(axis)
    full = tuple(
        None if size is None else size * mesh.count(axes) for size, axes in zip(info.type.shape, sharding, strict=True)
    )
    return replace(info, sharding=sharding, full_shape=full)


def value_attributes(info: ValueInfo, mesh_name: str = "", mesh: Mesh | None = None) -> ir.DictAttr:
    """Build the attribute dictionary of an argument or result in the current context."""
    attributes: dict[str, ir.Attribute] = {"hp.role": ir.StringAttr.get(info.role)}
    if info.role in ("input", "output", "size", *CROSSING_ROLES):
        attributes["hp.name"] = ir.StringAttr.get(info.name)
    elif info.role not in ("loss", "weight"):
        attributes["hp.fqn"] = strings_attr(info.names)
    if info.trainable:
        attributes["hp.trainable"] = ir.UnitAttr.get()
    if info.batch_dim is not None:
        attributes["hp.batch_dim"] = i64_attr(info.batch_dim)
    if info.dim_names:
        attributes["hp.dim_names"] = strings_attr(info.dim_names)
    if info.example is not None:
        attributes["hp.example"] = i64_attr(info.example)
    if info.stages:
        attributes["hp.stages"] = ints_attr(info.stages)
    if info.buffer:
        attributes["hp.buffer"] = ir.StringAttr.get(info.buffer)
        attributes["hp.offset"] = i64_attr(info.offset)
    if info.sharding is not None:
        attributes["hp.sharding"] = sharding_attr(mesh_name, info.sharding)
        if mesh is not None:
            even = tuple(
                None if size is None else size * mesh.count(axes)
                for size, axes in zip(info.type.shape, info.sharding, strict=True)
            )
            if even != info.full_shape:
                attributes["hp.full_shape"] = ints_attr([-1 if size is None else size for size in info.full_shape])
    return ir.DictAttr.get(attributes)


def write_signature(
    function: ir.Operation, signature: Signature, mesh_name: str = "", mesh: Mesh | None = None
) -> None:
    """Put a changed signature back: attributes and the function type (block argument types are the caller's to set).

    The function type is taken from the block's arguments and the terminator's operands, so call this last.
    """
    with function.context:
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [value_attributes(info, mesh_name, mesh) for info in signature.arguments]
        )
        function.attributes["res_attrs"] = ir.ArrayAttr.get(
            [value_attributes(info, mesh_name, mesh) for info in signature.results]
        )
        refresh_function_type(function)


def refresh_function_type(function: ir.Operation) -> None:
    """Set the function type from the block's arguments and the terminator's operands."""
    with function.context:
        inputs = [argument.type for argument in body_of(function).arguments]
        results = [operand.type for operand in return_of(function).operands]
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))


def shard(info: ValueInfo, sharding: Sharding, mesh: Mesh) -> ValueInfo:
    """Return `info` with its global shape kept and its type made local to a rank under `sharding`."""
    full = tuple(size if size is not None else -1 for size in info.full_shape)
    return replace(info, type=info.type.with_shape(local_shape(full, sharding, mesh)), sharding=sharding)
