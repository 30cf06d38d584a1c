"""The ops of the `hp` dialect as the simulator runs them, except `hp.wait`: attributes checked once, then closures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from ..errors import RuntimeFault
from ..mesh import Mesh
from . import collective_math
from .exchange import CollectiveCall, Site
from .operators import named_value, recv_types
from .packing import packing_of
from .program import COLLECTIVES, Named, Op

if TYPE_CHECKING:
    from .interpreter import RankInterpreter

Run: TypeAlias = "Callable[[list[Any], RankInterpreter, Site | None], Any]"


@dataclass(frozen=True, slots=True)
class HpOp:
    """What an `hp` op does with its operands' values on a rank.

    `single` says that it gives its one result, not a sequence of results; `communicates` that it needs its site.
    """

    run: Run
    single: bool = True
    communicates: bool = False


def compile_hp_op(op: Op, mesh: Mesh, device: torch.device, overwrite: Sequence[bool]) -> HpOp:
    """Return what an op of `HP_TARGETS` other than ``hp.wait`` does.

    Args:
        op: the op.
        mesh: of the Program.
        device: that the Program runs on.
        overwrite: per operand, whether its memory may take the result.

    Raises:
        RuntimeFault: an attribute is missing or malformed; the text does not say where.
        PlanError: an axis is not one of the mesh's.
    """
    if op.target in COLLECTIVES:
        return _collective(op, mesh)
    builder = {
        "hp.send": _send,
        "hp.recv": _recv,
        "hp.shard_slice": _shard_slice,
        "hp.microbatch": _microbatch,
        "hp.uniform": _random,
        "hp.normal": _random,
    }.get(op.target)
    if builder is not None:
        return builder(op, mesh, device)
    if op.target == "hp.accumulate":
        return _accumulate(op, overwrite)
    if op.target == "hp.pack":
        packing = packing_of(op)
        return HpOp(lambda values, rank, site: packing.pack(_tensors(values)))
    if op.target == "hp.unpack":
        packing, layout = packing_of(op), _str(op, "layout")
        return HpOp(lambda values, rank, site: packing.unpack(values[0], layout), single=False)
    raise RuntimeFault(f"the simulator has no '{op.target}'")


def _malformed(op: Op, name: str, expected: str) -> RuntimeFault:
    return RuntimeFault(f"expected {name} to be {expected}, got: {op.kwargs.get(name)!r}")


def _int(op: Op, name: str) -> int:
    value = op.kwargs.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _malformed(op, name, "an integer")
    return value


def _str(op: Op, name: str) -> str:
    value = op.kwargs.get(name)
    if not isinstance(value, str):
        raise _malformed(op, name, "a string")
    return value


def _axes(op: Op, mesh: Mesh) -> tuple[str, ...]:
    value = op.kwargs.get("axes")
    axes = tuple(axis for axis in value if isinstance(axis, str)) if isinstance(value, tuple) else ()
    if not axes or axes != value or len(set(axes)) != len(axes):
        raise _malformed(op, "axes", "mesh axes, each once")
    mesh.sizes(axes)
    return axes


def _dims(op: Op, name: str) -> tuple[int, ...]:
    value = op.kwargs.get(name)
    dims = tuple(dim for dim in value if isinstance(dim, int) and dim >= 0) if isinstance(value, tuple) else ()
    if dims != value or len(dims) != len(op.args):
        raise _malformed(op, name, f"one dim for each of {len(op.args)} operands")
    return dims


def _coordinates(op: Op, mesh: Mesh, axes: tuple[str, ...]) -> tuple[int, ...] | None:
    value = op.kwargs.get("coordinates")
    if value is None:
        return None
    found = tuple(item for item in value if isinstance(item, int)) if isinstance(value, tuple) else ()
    if len(axes) != 1 or not found or found != value or list(found) != sorted(set(found)):
        raise _malformed(op, "coordinates", "ascending positions on one axis")
    if found[0] < 0 or found[-1] >= mesh.axis_size(axes[0]):
        raise _malformed(op, "coordinates", f"positions on an axis of {mesh.axis_size(axes[0])} ranks")
    return found


def _collective(op: Op, mesh: Mesh) -> HpOp:
    if not op.args:
        raise RuntimeFault("expected at least one operand")
    axes = _axes(op, mesh)
    coordinates = _coordinates(op, mesh, axes)
    attributes: tuple[tuple[str, object], ...]
    compute: Callable[[Sequence[Tensor], int], list[Tensor]]
    reserved: Callable[[int, int], int] = _unchanged
    if op.target == "hp.all_gather":
        dims = _dims(op, "dims")
        attributes, reserved = (("dims", dims),), _multiplied
        compute = lambda inputs, number: collective_math.all_gather(inputs, dims[number])  # noqa: E731
    elif op.target == "hp.reduce_scatter":
        dims, reduce = _dims(op, "dims"), _str(op, "reduce")
        attributes, reserved = (("dims", dims), ("reduce", reduce)), _divided
        compute = lambda inputs, number: collective_math.reduce_scatter(inputs, dims[number], reduce)  # noqa: E731
    elif op.target == "hp.all_reduce":
        reduce = _str(op, "reduce")
        attributes = (("reduce", reduce),)
        compute = lambda inputs, number: collective_math.all_reduce(inputs, reduce)  # noqa: E731
    elif op.target == "hp.all_to_all":
        splits, concats = _dims(op, "split_dims"), _dims(op, "concat_dims")
        attributes = (("split_dims", splits), ("concat_dims", concats))
        compute = lambda inputs, number: collective_math.all_to_all(  # noqa: E731
            inputs, splits[number], concats[number]
        )
    else:
        root = _int(op, "root")
        positions = coordinates if coordinates is not None else tuple(range(mesh.count(axes)))
        if root not in positions:
            raise _malformed(op, "root", f"one of {list(positions)}")
        attributes = (("root", root),)
        compute = lambda inputs, number: collective_math.broadcast(inputs, positions.index(root))  # noqa: E731
    call = CollectiveCall(op.target, axes, coordinates, attributes, compute, reserved)

    def run(values: list[Any], rank: RankInterpreter, site: Site | None) -> Any:
        assert site is not None
        return rank.exchange.collective(call, _tensors(values), site)

    return HpOp(run, communicates=True)


def _unchanged(size: int, count: int) -> int:
    return size


def _multiplied(size: int, count: int) -> int:
    return size * count


def _divided(size: int, count: int) -> int:
    return size // count


def _tensors(values: list[Any]) -> list[Tensor]:
    for value in values:
        if not isinstance(value, Tensor):
            raise RuntimeFault(f"expected tensors, got: {type(value).__name__}")
    return values


def _peer(op: Op, mesh: Mesh) -> Callable[[int], int]:
    """Return a function from a rank to the rank at position `peer` of the axis."""
    axis, peer = _str(op, "axis"), _int(op, "peer")
    if not 0 <= peer < mesh.axis_size(axis):
        raise RuntimeFault(f"expected peer < {mesh.axis_size(axis)}, got: {peer}")

    def of(rank: int) -> int:
        other = mesh.rank({**mesh.coordinate(rank), axis: peer})
        if other == rank:
            raise RuntimeFault(f"position {peer} on axis '{axis}' is this rank itself")
        return other

    return of


def _send(op: Op, mesh: Mesh, device: torch.device) -> HpOp:
    peer = _peer(op, mesh)

    def run(values: list[Any], rank: RankInterpreter, site: Site | None) -> Any:
        assert site is not None
        rank.exchange.send(peer(rank.rank), _tensors(values), site)
        return ()

    return HpOp(run, single=False, communicates=True)


def _recv(op: Op, mesh: Mesh, device: torch.device) -> HpOp:
    peer, types = _peer(op, mesh), recv_types(op)

    def run(values: list[Any], rank: RankInterpreter, site: Site | None) -> Any:
        assert site is not None
        return rank.exchange.receive(peer(rank.rank), types, site)

    return HpOp(run, communicates=True)


def _shard_slice(op: Op, mesh: Mesh, device: torch.device) -> HpOp:
    axes, dim = _axes(op, mesh), _int(op, "dim")
    counts = mesh.sizes(axes)
    positions = [mesh.position(rank, axes) for rank in range(mesh.size)]
    return HpOp(lambda values, rank, site: collective_math.shard_slice(values[0], dim, counts, positions[rank.rank]))


def _microbatch(op: Op, mesh: Mesh, device: torch.device) -> HpOp:
    index, count, dim = _int(op, "index"), _int(op, "count"), _int(op, "dim")
    if not 0 <= index < count:
        raise RuntimeFault(f"expected index < {count}, got: {index}")
    return HpOp(lambda values, rank, site: collective_math.microbatch_slice(values[0], index, count, dim))


def _random(op: Op, mesh: Mesh, device: torch.device) -> HpOp:
    kind, stream, dtype = op.target.removeprefix("hp."), _int(op, "stream"), op.kwargs.get("dtype")
    if not isinstance(dtype, Named) or dtype.kind != "dtype":
        raise _malformed(op, "dtype", "a dtype")
    torch_dtype = named_value(dtype, device)
    assert isinstance(torch_dtype, torch.dtype)
    rows = None if op.kwargs.get("rows") is None else _int(op, "rows")
    return HpOp(
        lambda values, rank, site: rank.random.draw(kind, values[0], torch_dtype, device, stream=stream, rows=rows)
    )


def _accumulate(op: Op, overwrite: Sequence[bool]) -> HpOp:
    count = len(op.args) // 2
    if not count or len(op.args) % 2 or len(op.results) != count:
        raise RuntimeFault(
            f"expected N accumulators, N values and N results, got: {len(op.args)} operands, {len(op.results)} results"
        )

    def run(values: list[Any], rank: RankInterpreter, site: Site | None) -> Any:
        sums = []
        for number, accumulator in enumerate(values[:count]):
            value = values[count + number]
            if accumulator.shape != value.shape:
                raise RuntimeFault(f"expected a value of shape {list(accumulator.shape)}, got: {list(value.shape)}")
            if overwrite[number]:
                sums.append(accumulator.add_(value))
            else:
                sums.append(accumulator.add(value).to(accumulator.dtype))
        return sums

    return HpOp(run, single=False)
