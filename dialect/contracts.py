"""Verifiers of the `hp` dialect, one per op; each message is of the constraint whose number stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mlir import ir

from ..errors import PlanError, nearest
from ..mesh import Mesh, padded_shard_size
from ..packed_layout import PackedLayout
from .attributes import find_mesh, future_types, read_ints, read_strings
from .types import TensorType, tensor_type

_AVERAGED = ("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32")


class _BrokenError(Exception):
    """A constraint does not hold; the text is the message without the op's name."""


def _report(op: ir.Operation, text: str) -> bool:
    op.location.emit_error(f"'{op.name}' op {text}")
    return False


def _contract(check: Callable[[ir.Operation], None]) -> Callable[[ir.Operation], bool]:
    def verify(op: ir.Operation) -> bool:
        try:
            check(op)
        except (_BrokenError, PlanError) as broken:
            return _report(op, str(broken))
        return True

    verify.__doc__ = check.__doc__
    return verify


def _attribute(op: ir.Operation, name: str) -> ir.Attribute:
    # MLIR calls the verifiers here before it checks what the op declares, so that anything may be missing.
    if name not in op.attributes:
        raise _BrokenError(f'attribute "{name}" is expected but not provided')
    return op.attributes[name]


def _operand_type(op: ir.Operation) -> ir.Type:
    if len(op.operands) == 0:
        raise _BrokenError("expects exactly 1 operands, but got 0")
    return op.operands[0].type


def _result_type(op: ir.Operation) -> ir.Type:
    if len(op.results) == 0:
        raise _BrokenError("expects exactly 1 results, but got 0")
    return op.results[0].type


def _tensor(type_: ir.Type, what: str) -> TensorType:
    parsed = tensor_type(type_)
    if parsed is None:
        raise _BrokenError(f"expected {what} to be a tensor of known rank and dtype, got: {type_}")
    return parsed


def _operands(op: ir.Operation) -> list[TensorType]:
    if len(op.operands) == 0:
        raise _BrokenError("expected at least one operand")
    return [_tensor(value.type, f"operand {number}") for number, value in enumerate(op.operands)]


def _future_types(type_: ir.Type) -> list[ir.Type]:
    types = future_types(type_)
    if hasattr(type_, "params") and len(types) != len(ir.ArrayAttr(type_.params[0])):
        raise _BrokenError(f"expected a future of types, got: {type_}")
    return types


def _future(op: ir.Operation, count: int) -> list[TensorType]:
    types = _future_types(_result_type(op))
    if len(types) != count:
        raise _BrokenError(f"expected a future of {count} tensors, got: {len(types)}")
    return [_tensor(type_, f"future element {number}") for number, type_ in enumerate(types)]


def _mesh(op: ir.Operation) -> Mesh:
    attribute = _attribute(op, "mesh")
    if not isinstance(attribute, ir.FlatSymbolRefAttr):
        raise _BrokenError(f"expected mesh to be a symbol, got: {attribute}")
    name = attribute.value
    mesh = find_mesh(op)
    if mesh is None or mesh[0] != name:
        raise _BrokenError(f"expected a mesh named '@{name}' in the module" + (f", found '@{mesh[0]}'" if mesh else ""))
    return mesh[1]


def _strings(op: ir.Operation, name: str) -> tuple[str, ...]:
    attribute = _attribute(op, name)
    values = read_strings(attribute)
    if values is None:
        raise _BrokenError(f"expected {name} to be an array of strings, got: {attribute}")
    return values


def _ints(op: ir.Operation, name: str) -> tuple[int, ...]:
    attribute = _attribute(op, name)
    values = read_ints(attribute)
    if values is None:
        raise _BrokenError(f"expected {name} to be array<i64: ...>, got: {attribute}")
    return values


def _integer(op: ir.Operation, name: str) -> int:
    attribute = _attribute(op, name)
    if not isinstance(attribute, ir.IntegerAttr):
        raise _BrokenError(f"expected {name} to be an integer, got: {attribute}")
    return int(attribute.value)


def _string(op: ir.Operation, name: str) -> str:
    attribute = _attribute(op, name)
    if not isinstance(attribute, ir.StringAttr):
        raise _BrokenError(f"expected {name} to be a string, got: {attribute}")
    return str(attribute.value)


def _axes(op: ir.Operation, mesh: Mesh) -> tuple[str, ...]:
    axes = _strings(op, "axes")
    if not axes:
        raise _BrokenError("expected at least one mesh axis")
    for axis in axes:
        mesh.axis_size(axis)
        if axes.count(axis) > 1:
            raise _BrokenError(f"expected each mesh axis once, '{axis}' is named twice")
    return axes


def _dims(op: ir.Operation, name: str, operands: Sequence[TensorType]) -> tuple[int, ...]:
    dims = _ints(op, name)
    if len(dims) != len(operands):
        raise _BrokenError(f"expected one of {name} per operand ({len(operands)}), got: {len(dims)}")
    for dim, operand in zip(dims, operands, strict=True):
        _check_dim(dim, operand)
    return dims


def _check_dim(dim: int, operand: TensorType) -> None:
    if not 0 <= dim < len(operand.shape):
        raise _BrokenError(f"expected dim < {len(operand.shape)}, got: {dim}")


def _same(actual: TensorType, expected: TensorType, what: str) -> None:
    compatible = len(actual.shape) == len(expected.shape) and all(
        a is None or e is None or a == e for a, e in zip(actual.shape, expected.shape, strict=True)
    )
    if actual.dtype != expected.dtype or not compatible:
        raise _BrokenError(f"expected {what} to be {expected}, got: {actual}")


def _reduce(op: ir.Operation, operands: Sequence[TensorType]) -> None:
    reduce = _string(op, "reduce")
    if reduce not in ("sum", "avg"):
        raise _BrokenError(f"expected reduce to be 'sum' or 'avg', got: '{reduce}'{nearest(reduce, ('sum', 'avg'))}")
    for operand in operands:
        if reduce == "avg" and operand.dtype not in _AVERAGED:
            raise _BrokenError(f"expected floating tensors for reduce = 'avg', got: {operand}")


def _coordinates(op: ir.Operation, mesh: Mesh, axes: Sequence[str]) -> tuple[int, ...] | None:
    if "coordinates" not in op.attributes:
        return None
    coordinates = _ints(op, "coordinates")
    if len(axes) != 1:
        raise _BrokenError(f"expected exactly one axis with coordinates, got: {len(axes)}")
    size = mesh.axis_size(axes[0])
    if not coordinates or list(coordinates) != sorted(set(coordinates)):
        raise _BrokenError(f"expected coordinates to be ascending positions, each once, got: {list(coordinates)}")
    if coordinates[0] < 0 or coordinates[-1] >= size:
        raise _BrokenError(f"expected coordinates < {size} on axis '{axes[0]}', got: {list(coordinates)}")
    return coordinates


def _peer(op: ir.Operation, mesh: Mesh) -> None:
    size = mesh.axis_size(_string(op, "axis"))  # C2
    peer = _integer(op, "peer")
    if not 0 <= peer < size:  # C3
        raise _BrokenError(f"expected peer < {size}, got: {peer}")


@_contract
def verify_mesh(op: ir.Operation) -> None:
    """`hp.mesh`."""
    names, sizes = _strings(op, "axis_names"), _ints(op, "axis_sizes")
    Mesh(names, sizes)  # C1, C2, C3
    parent = op.parent
    if parent is None or parent.name != "builtin.module":
        raise _BrokenError("expected to stand directly in a module")  # C4
    meshes = [child for child in parent.regions[0].blocks[0].operations if child.operation.name == "hp.mesh"]
    if meshes[0].operation != op:
        raise _BrokenError("expected at most one mesh in a module")  # C4


@_contract
def verify_all_gather(op: ir.Operation) -> None:
    """`hp.all_gather`."""
    operands = _operands(op)  # C1
    results = _future(op, len(operands))
    mesh = _mesh(op)
    count = mesh.count(_axes(op, mesh))  # C2
    for operand, result, dim in zip(operands, results, _dims(op, "dims", operands), strict=True):  # C3
        size = operand.shape[dim]
        _same(result, operand.with_size(dim, None if size is None else size * count), "the gathered tensor")  # C4


@_contract
def verify_reduce_scatter(op: ir.Operation) -> None:
    """`hp.reduce_scatter`."""
    operands = _operands(op)  # C1
    results = _future(op, len(operands))
    mesh = _mesh(op)
    count = mesh.count(_axes(op, mesh))  # C2
    for operand, result, dim in zip(operands, results, _dims(op, "dims", operands), strict=True):  # C3
        size = operand.shape[dim]
        if size is not None and size % count:
            raise _BrokenError(f"expected dim {dim} to divide by the group's {count} ranks, got: {size}")  # C4
        _same(result, operand.with_size(dim, None if size is None else size // count), "the scattered tensor")  # C4
    _reduce(op, operands)  # C5


@_contract
def verify_all_reduce(op: ir.Operation) -> None:
    """`hp.all_reduce`."""
    operands = _operands(op)
    for operand, result in zip(operands, _future(op, len(operands)), strict=True):
        _same(result, operand, "the reduced tensor")  # C1
    mesh = _mesh(op)
    axes = _axes(op, mesh)  # C2
    _reduce(op, operands)  # C3
    _coordinates(op, mesh, axes)  # C4


@_contract
def verify_all_to_all(op: ir.Operation) -> None:
    """`hp.all_to_all`."""
    operands = _operands(op)  # C1
    results = _future(op, len(operands))
    mesh = _mesh(op)
    count = mesh.count(_axes(op, mesh))  # C2
    splits, concats = _dims(op, "split_dims", operands), _dims(op, "concat_dims", operands)  # C3
    for operand, result, split, concat in zip(operands, results, splits, concats, strict=True):
        size = operand.shape[split]
        if size is not None and size % count:
            raise _BrokenError(f"expected dim {split} to divide by the group's {count} ranks, got: {size}")  # C4
        expected = operand.with_size(split, None if size is None else size // count)
        size = expected.shape[concat]
        _same(result, expected.with_size(concat, None if size is None else size * count), "the exchanged tensor")  # C4


@_contract
def verify_broadcast(op: ir.Operation) -> None:
    """`hp.broadcast`."""
    operands = _operands(op)
    for operand, result in zip(operands, _future(op, len(operands)), strict=True):
        _same(result, operand, "the broadcast tensor")  # C1
    mesh = _mesh(op)
    axes = _axes(op, mesh)  # C2
    coordinates = _coordinates(op, mesh, axes)  # C3
    root = _integer(op, "root")
    valid = coordinates if coordinates is not None else range(mesh.count(axes))
    if root not in valid:
        raise _BrokenError(f"expected root to be one of {list(valid)}, got: {root}")  # C4


@_contract
def verify_wait(op: ir.Operation) -> None:
    """`hp.wait`."""
    types = _future_types(_operand_type(op))
    if len(types) != len(op.results):
        raise _BrokenError(f"expected {len(types)} results, got: {len(op.results)}")  # C1
    for number, (type_, result) in enumerate(zip(types, op.results, strict=True)):
        if type_ != result.type:
            raise _BrokenError(f"expected result {number} to be {type_}, got: {result.type}")  # C1


@_contract
def verify_shard_slice(op: ir.Operation) -> None:
    """`hp.shard_slice`."""
    operand, result = _tensor(_operand_type(op), "the operand"), _tensor(_result_type(op), "the result")  # C1
    mesh = _mesh(op)
    axes = _axes(op, mesh)  # C2
    dim = _integer(op, "dim")
    _check_dim(dim, operand)  # C3
    size = operand.shape[dim]
    piece = None if size is None else padded_shard_size(size, mesh.sizes(axes))
    _same(result, operand.with_size(dim, piece), "the piece")  # C4


def _packed(op: ir.Operation, members: Sequence[TensorType], packed: TensorType) -> None:
    layout = PackedLayout.of(
        [member.shape for member in members],
        [member.dtype for member in members],
        ranks=_integer(op, "ranks"),
        dims=_ints(op, "dims") if "dims" in op.attributes else (),
        alignment=_integer(op, "alignment"),
    )  # C1, C2, C3
    _same(packed, TensorType((layout.ranks * layout.length,), layout.dtype), "the packed tensor")  # C4


@_contract
def verify_pack(op: ir.Operation) -> None:
    """`hp.pack`."""
    _packed(op, _operands(op), _tensor(_result_type(op), "the result"))


@_contract
def verify_unpack(op: ir.Operation) -> None:
    """`hp.unpack`."""
    results = [_tensor(value.type, f"result {number}") for number, value in enumerate(op.results)]
    _packed(op, results, _tensor(_operand_type(op), "the operand"))
    layout = _string(op, "layout")
    if layout not in ("packed", "flat"):
        raise _BrokenError(f"expected layout to be 'packed' or 'flat', got: '{layout}'")  # C5


@_contract
def verify_send(op: ir.Operation) -> None:
    """`hp.send`."""
    for number, operand in enumerate(_operands(op)):  # C1
        if None in operand.shape and "header" not in op.attributes:
            raise _BrokenError(f"expected a header, as operand {number} has no static shape: {operand}")  # C4
    _peer(op, _mesh(op))


@_contract
def verify_recv(op: ir.Operation) -> None:
    """`hp.recv`."""
    types = _future_types(_result_type(op))
    if not types:
        raise _BrokenError("expected a future of at least one tensor")  # C1
    for number, type_ in enumerate(types):
        if None in _tensor(type_, f"future element {number}").shape and "header" not in op.attributes:
            raise _BrokenError(f"expected a header, as future element {number} has no static shape: {type_}")  # C4
    _peer(op, _mesh(op))


@_contract
def verify_microbatch(op: ir.Operation) -> None:
    """`hp.microbatch`."""
    operand, result = _tensor(_operand_type(op), "the operand"), _tensor(_result_type(op), "the result")  # C1
    index, count, dim = _integer(op, "index"), _integer(op, "count"), _integer(op, "dim")
    if count < 1:
        raise _BrokenError(f"expected count >= 1, got: {count}")  # C2
    if not 0 <= index < count:
        raise _BrokenError(f"expected index < {count}, got: {index}")  # C2
    _check_dim(dim, operand)  # C3
    size = operand.shape[dim]
    part = None if size is None else size // count + (index < size % count)
    _same(result, operand.with_size(dim, part), "the part")  # C4


@_contract
def verify_accumulate(op: ir.Operation) -> None:
    """`hp.accumulate`."""
    count = len(op.operands)
    if count < 2 or count % 2 or len(op.results) * 2 != count:
        raise _BrokenError(
            f"expected N accumulators, N values and N results, got: {count} operands, {len(op.results)} results"
        )
    types = _operands(op)  # C1
    for number, sum_type in enumerate(types[: count // 2]):
        _same(_tensor(op.results[number].type, f"result {number}"), sum_type, f"result {number}")  # C2
        _same(types[count // 2 + number].with_dtype(sum_type.dtype), sum_type, f"value {number}")  # C2


@_contract
def verify_random(op: ir.Operation) -> None:
    """`hp.uniform` and `hp.normal`."""
    result = _tensor(_result_type(op), "the result")
    for number, operand in enumerate(op.operands):
        if str(operand.type) != "!torch.int":
            raise _BrokenError(f"expected operand {number} to be !torch.int, got: {operand.type}")  # C1
    if result.dtype not in _AVERAGED[:4]:
        raise _BrokenError(f"expected a floating result, got: {result}")  # C1
    if len(result.shape) != len(op.operands):
        raise _BrokenError(f"expected one size per dim ({len(result.shape)}), got: {len(op.operands)}")  # C1
    stream = _integer(op, "stream")
    if stream < 0:
        raise _BrokenError(f"expected stream >= 0, got: {stream}")  # C2
    if "rows" in op.attributes:
        rows = _integer(op, "rows")
        if rows < 1:
            raise _BrokenError(f"expected rows >= 1, got: {rows}")  # C3
        if not result.shape or result.shape[0] is None or result.shape[0] % rows:
            raise _BrokenError(f"expected a first dim that divides into {rows} rows, got: {result}")  # C3
