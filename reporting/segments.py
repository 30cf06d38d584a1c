"""A function of a Program as segments: runs of neighbouring operators of one module, and what stands between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..costs import Costs, tensor_bytes
from ..mesh import Mesh
from ..runtime.blocks import op_blocks
from ..runtime.program import COLLECTIVES, Function, Op, Program, TensorType


@dataclass(frozen=True, slots=True)
class Communication:
    """What an op that starts communication moves.

    Attributes:
        kind: ``all_gather``, ..., ``send`` or ``recv``.
        axes: mesh axes it goes over.
        peer: of a message, the position of the other rank on the axis; None for a collective.
        coordinates: the positions on the axis that take part; None for all.
        ranks: members of the group.
        size: bytes of the whole tensors: what a gather gives, what any other kind is given.
        seconds: how long it takes once all members are there.
    """

    kind: str
    axes: tuple[str, ...]
    peer: int | None
    coordinates: tuple[int, ...] | None
    ranks: int
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A block of a function (see `hpir.runtime.blocks.OpBlock`), with what it costs.

    Attributes:
        kind: ``compute``, ``start``, ``wait`` or ``call``.
        first: its first op.
        last: the op after its last.
        module: that its ops came from.
        phase: ``forward``, ``backward`` or empty.
        seconds: that the ops take on the rank itself.
        future: of a start or a wait, the value between them; -1 where there is none.
        callee: of a call.
        communication: of a start.
    """

    kind: str
    first: int
    last: int
    module: str = ""
    phase: str = ""
    seconds: float = 0.0
    future: int = -1
    callee: str = ""
    communication: Communication | None = None


@dataclass(frozen=True)
class SegmentedProgram:
    """The functions of a Program as segments, each made when it is first asked for."""

    program: Program
    costs: Costs

    @cached_property
    def _made(self) -> dict[str, tuple[Segment, ...]]:
        return {}

    def function(self, name: str) -> tuple[Segment, ...]:
        """Return the segments of a function, in order."""
        found = self._made.get(name)
        if found is None:
            function = self.program.functions[name]
            found = self._made[name] = _segments(function, self.program.mesh, self.costs)
        return found


def value_types(function: Function) -> dict[int, TensorType]:
    """Return the types of a function's values; those that are no tensors are left out."""
    types = {index: argument.type for index, argument in enumerate(function.arguments)}
    for op in function.ops:
        types.update((value, type_) for value, type_ in zip(op.results, op.types, strict=True) if type_ is not None)
    return types


def lies_packed(op: Op, function: Function) -> bool:
    """Return whether an op packs parameters that lie side by side in a buffer already: nothing is moved then."""
    if op.target != "hp.pack" or op.kwargs.get("ranks") != 1:
        return False
    operands = list(op.operands())
    if max(operands) >= len(function.arguments):
        return False
    buffers = {function.arguments[operand].buffer for operand in operands}
    return len(buffers) == 1 and buffers != {""}


def _segments(function: Function, mesh: Mesh, costs: Costs) -> tuple[Segment, ...]:
    types = value_types(function)
    segments: list[Segment] = []
    for block in op_blocks(function):
        op = function.ops[block.first]
        place = block.kind, block.first, block.last, block.module, block.phase
        if block.kind == "call":
            segments.append(Segment(*place, callee=str(op.kwargs["function"])))
        elif block.kind == "wait":
            segments.append(Segment(*place, future=next(iter(op.operands()))))
        elif block.kind == "start":
            moved = communication_of(op, types, mesh, costs)
            future = op.results[0] if op.results else -1
            segments.append(Segment(*place, costs.compute.op_overhead, future, communication=moved))
        else:
            seconds = 0.0
            for op in function.ops[block.first : block.last]:
                if lies_packed(op, function):
                    continue
                operands = [types[value] for value in op.operands() if value in types]
                results = [type_ for type_ in op.types if type_ is not None]
                seconds += costs.estimate(op.target, operands, results)
            segments.append(Segment(*place, seconds))
    return tuple(segments)


def communication_of(op: Op, types: Mapping[int, TensorType], mesh: Mesh, costs: Costs) -> Communication:
    """Return what an op that starts communication moves.

    Args:
        op: a collective, a send or a receive.
        types: of its operands.
        mesh: of the Program.
        costs: how long it takes.
    """
    kind, size = op.target.removeprefix("hp."), transferred_bytes(op, types, mesh)
    if op.target not in COLLECTIVES:
        axis, peer = str(op.kwargs["axis"]), op.kwargs["peer"]
        assert isinstance(peer, int)
        return Communication(kind, (axis,), peer, None, 2, size, costs.p2p_seconds(size, axis))
    axes, coordinates, ranks = _group(op, mesh)
    seconds = costs.collective_seconds(kind, size, ranks, axes)
    return Communication(kind, axes, None, coordinates, ranks, size, seconds)


def transferred_bytes(op: Op, types: Mapping[int, TensorType], mesh: Mesh) -> int:
    """Return the bytes of the whole tensors that an op moves: what a gather gives, what any other kind is given."""
    if op.target == "hp.recv":
        received = op.kwargs["types"]
        assert isinstance(received, tuple)
        return sum(tensor_bytes(_received(item)) for item in received)
    size = sum(tensor_bytes(types[value]) for value in op.operands())
    return size * _group(op, mesh)[2] if op.target == "hp.all_gather" else size


def _group(op: Op, mesh: Mesh) -> tuple[tuple[str, ...], tuple[int, ...] | None, int]:
    """Return a collective's axes, the positions on them that take part, and how many ranks those are."""
    listed, chosen = op.kwargs["axes"], op.kwargs.get("coordinates")
    assert isinstance(listed, tuple)
    axes = tuple(map(str, listed))
    if not isinstance(chosen, tuple):
        return axes, None, mesh.count(axes)
    coordinates = tuple(item for item in chosen if isinstance(item, int))
    return axes, coordinates, len(coordinates)


def _received(item: object) -> TensorType:
    assert isinstance(item, tuple)
    dtype, sizes = item
    return TensorType(tuple(sizes), str(dtype))
