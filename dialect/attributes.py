"""Reading and building the attributes of the `hp` dialect: meshes, shardings, roles, names."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from ..mesh import Mesh, Sharding


def read_strings(attribute: ir.Attribute) -> tuple[str, ...] | None:
    """Return the strings of `["a", "b"]`, or None for anything else."""
    if not isinstance(attribute, ir.ArrayAttr):
        return None
    values = []
    for item in attribute:
        if not isinstance(item, ir.StringAttr):
            return None
        values.append(item.value)
    return tuple(values)


def read_ints(attribute: ir.Attribute) -> tuple[int, ...] | None:
    """Return the integers of `array<i64: 1, 2>`, or None for anything else."""
    if not isinstance(attribute, ir.DenseI64ArrayAttr):
        return None
    return tuple(attribute)


def strings_attr(values: Sequence[str]) -> ir.ArrayAttr:
    """Build `["a", "b"]` in the current context."""
    return ir.ArrayAttr.get([ir.StringAttr.get(value) for value in values])


def ints_attr(values: Sequence[int]) -> ir.DenseI64ArrayAttr:
    """Build `array<i64: 1, 2>` in the current context."""
    return ir.DenseI64ArrayAttr.get(list(values))


def i64_attr(value: int) -> ir.IntegerAttr:
    """Build `3 : i64` in the current context."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def future_types(type_: ir.Type) -> list[ir.Type]:
    """Return the tensor types of an `!hp.future<[...]>`; an element that is no type is left out."""
    elements = ir.ArrayAttr(type_.params[0]) if hasattr(type_, "params") else []
    return [ir.TypeAttr(element).value for element in elements if isinstance(element, ir.TypeAttr)]


def future_type(types: Sequence[ir.Type]) -> ir.Type:
    """Build `!hp.future<[...]>` in the current context."""
    from .hp import Future

    return Future.get(ir.ArrayAttr.get([ir.TypeAttr.get(type_) for type_ in types]))


def sharding_attr(mesh: str, sharding: Sequence[Sequence[str]]) -> ir.Attribute:
    """Build `#hp.sharding<@mesh, [["dp"], []]>` in the current context; `mesh` without the `@`."""
    from .hp import ShardingAttr

    return ShardingAttr.get(ir.FlatSymbolRefAttr.get(mesh), ir.ArrayAttr.get([strings_attr(axes) for axes in sharding]))


def read_sharding(attribute: ir.Attribute) -> tuple[str, Sharding] | None:
    """Return (mesh name, axes per dim) of an `#hp.sharding`, or None for anything else."""
    from .hp import ShardingAttr

    if not isinstance(attribute, ShardingAttr):
        return None
    axes = []
    for dim in ir.ArrayAttr(attribute.axes):
        names = read_strings(dim)
        if names is None:
            return None
        axes.append(names)
    return ir.FlatSymbolRefAttr(attribute.mesh).value, tuple(axes)


def module_of(op: ir.Operation) -> ir.Operation | None:
    """Return the outermost enclosing op, or None when `op` stands in no module."""
    while op.name != "builtin.module":
        parent = op.parent
        if parent is None:
            return None
        op = parent.operation
    return op


def find_mesh(op: ir.Operation) -> tuple[str, Mesh] | None:
    """Return (symbol name, mesh) of the module that `op` is or stands in, or None where it has no well-formed one."""
    module = module_of(op)
    if module is None:
        return None
    for child in module.regions[0].blocks[0].operations:
        inner = child.operation
        if inner.name == "hp.mesh":
            attributes = inner.attributes
            # Asked while a module is being verified, the mesh itself may be malformed; its own verifier says so.
            if not all(name in attributes for name in ("sym_name", "axis_names", "axis_sizes")):
                return None
            symbol = attributes["sym_name"]
            names, sizes = read_strings(attributes["axis_names"]), read_ints(attributes["axis_sizes"])
            if names is None or sizes is None or not isinstance(symbol, ir.StringAttr):
                return None
            return symbol.value, Mesh(names, sizes)
    return None
