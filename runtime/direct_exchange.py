"""Collectives in which every member sends to every other at once: what is fastest over gloo.

gloo's all-gather passes pieces around a ring, step after step; its reduce-scatter is an all-reduce of which most is
thrown away. An exchange between all pairs takes one step and moves no more than is needed, and what a member has itself
stays where it is. Small operands are packed: a message costs more than a copy of what is small. Sums are made in the
order of positions, so that they do not depend on the transport.

All of it is torch operators on tensors of known dtype and shape, as in `wires`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .device import Group
from .wires import (
    Finish,
    Part,
    Wire,
    buckets,
    carrier,
    chain,
    concatenated,
    is_native,
    pack,
    piece_shape,
    stacked_pieces,
    summable,
    unpack,
)

aten = torch.ops.aten

# Beyond this, an all-reduce among more than two moves less data as gloo does it, in several steps.
_MOST_REDUCED_ELEMENTS = 1 << 14

Launch = Callable[[Any, "tuple[int, ...]"], "tuple[Any, Finish | None]"]
"""Starts a transfer of a tensor of a shape; returns what will arrive, and what makes the result of it."""


class DirectExchange:
    """Collectives over one backend's all-to-all.

    Args:
        functional: ``torch.ops._c10d_functional``.
    """

    def __init__(self, functional: Any):
        self._functional = functional

    def all_gather(self, tensors: Sequence[Tensor], dims: Sequence[int], group: Group) -> list[Part]:
        """Start to gather each tensor along its dim."""
        if len(tensors) == 1 and len(tensors[0].shape) == 1 and is_native(tensors[0].dtype):
            return [self._gather_flat(tensors[0], group)]
        wires = []
        for tensor in tensors:
            bits, back = carrier(tensor)
            shape = (*tensor.shape, 2) if tensor.dtype.is_complex else tuple(tensor.shape)
            wires.append(Wire(bits, shape, tensor.dtype, back))
        parts = []
        for bucket in buckets(wires):
            together = [wires[position] for position in bucket]
            elements = sum(math.prod(wire.shape) for wire in together)
            value = self._send_others(self._for_all(pack(together, 1), group), elements, group)
            arrives = _joined(together, [dims[position] for position in bucket], group)
            parts.append(Part(value, tuple(bucket), arrives))
        return parts

    def _gather_flat(self, tensor: Tensor, group: Group) -> Part:
        """Start to gather a bucket, or what else is one row."""
        own = aten.contiguous.default(tensor)
        elements = tensor.shape[0]
        rows = _rows(own, elements, group)
        value = self._send_others(self._for_all(own, group), elements, group)
        return Part(value, (0,), lambda arrived: aten.cat.default(list(rows(arrived))), rows)

    def reduce_scatter(
        self, tensors: Sequence[Tensor], dims: Sequence[int], group: Group, mean: Finish | None
    ) -> list[Part]:
        """Start to sum each tensor over the group and give each member its piece along the tensor's dim."""
        if group.size == 2 and len(tensors) == 1 and len(tensors[0].shape) == 1 and is_native(tensors[0].dtype):
            return [self._reduce_flat(tensors[0], group, mean)]
        wires = []
        for tensor, dim in zip(tensors, dims, strict=True):
            terms, back = summable(tensor)
            pieces = piece_shape(tensor, dim, group)
            width = (2,) if tensor.dtype.is_complex else ()
            wires.append(Wire(stacked_pieces(terms, dim, group), (group.size, *pieces, *width), tensor.dtype, back))

        def launch(stacked: Any, shape: tuple[int, ...]) -> tuple[Any, Finish | None]:
            if group.size > 2:
                return self._send(stacked, group), chain(_sum(group), mean)
            mine = own_number(group)
            own, other = (aten.select.int(stacked, 0, number) for number in (mine, 1 - mine))
            elements = math.prod(shape[1:])
            value = self._send_others(aten.reshape.default(other, [elements]), elements, group)
            return value, chain(_sum_with(own, shape[1:], group), mean)

        return _launched(wires, launch, before=group.size)

    def _reduce_flat(self, tensor: Tensor, group: Group, mean: Finish | None) -> Part:
        """Start to reduce and scatter a bucket, or what else is one row, between two."""
        elements = tensor.shape[0] // 2
        whole = aten.contiguous.default(tensor)
        halves = [aten.slice.Tensor(whole, 0, at * elements, (at + 1) * elements) for at in range(2)]
        own, other = halves[own_number(group)], halves[1 - own_number(group)]
        value = self._send_others(other, elements, group)
        return Part(value, (0,), chain(lambda arrived: aten.add_.Tensor(arrived, own), mean))

    def all_reduce(self, tensors: Sequence[Tensor], group: Group, mean: Finish | None) -> list[Part]:
        """Start to sum each tensor over the group."""
        wires = []
        for tensor in tensors:
            terms, back = summable(tensor)
            width = (2,) if tensor.dtype.is_complex else ()
            wires.append(Wire(aten.contiguous.default(terms), (*tensor.shape, *width), tensor.dtype, back))

        def launch(tensor: Any, shape: tuple[int, ...]) -> tuple[Any, Finish | None]:
            elements = math.prod(shape)
            if group.size > 2 and elements > _MOST_REDUCED_ELEMENTS:
                return self._functional.all_reduce.default(tensor, "sum", group.name), mean
            flat = self._for_all(aten.reshape.default(tensor, [elements]), group)
            return self._send_others(flat, elements, group), chain(_sum_with(tensor, shape, group), mean)

        return _launched(wires, launch)

    def all_to_all(
        self, tensors: Sequence[Tensor], splits: Sequence[int], concats: Sequence[int], group: Group
    ) -> list[Part]:
        """Start to give each member its piece of each tensor along one dim; they are joined along another."""
        wires = []
        for tensor, split, concat in zip(tensors, splits, concats, strict=True):
            bits, back = carrier(tensor)
            shape = (group.size, *piece_shape(tensor, split, group))
            finish = chain(concatenated(group, concat), back)
            wires.append(Wire(stacked_pieces(bits, split, group), shape, tensor.dtype, finish))
        return _launched(
            wires, lambda stacked, shape: (self._send(stacked, group), None), before=group.size, after=group.size
        )

    def broadcast(self, tensors: Sequence[Tensor], source: int, group: Group) -> list[Part]:
        """Start to give everyone the tensors of the member that torch numbers `source`."""
        wires = []
        for tensor in tensors:
            bits, back = carrier(tensor)
            wires.append(Wire(bits, tuple(tensor.shape), tensor.dtype, back))
        return _launched(
            wires, lambda tensor, shape: (self._functional.broadcast.default(tensor, source, group.name), None)
        )

    def _send(self, stacked: Tensor, group: Group) -> Tensor:
        """Send row i to member i."""
        ones = [1] * group.size
        result: Tensor = self._functional.all_to_all_single.default(stacked, ones, ones, group.name)
        return result

    def _for_all(self, flat: Tensor, group: Group) -> Tensor:
        """Return a 1-d tensor once for each other member."""
        repeated: Tensor = flat if group.size == 2 else aten.cat.default([flat] * (group.size - 1))
        return repeated

    def _send_others(self, flat: Tensor, elements: int, group: Group) -> Tensor:
        """Send `elements` each of a 1-d tensor to the other members, in torch's order of them."""
        sizes = [elements] * group.size
        sizes[own_number(group)] = 0
        result: Tensor = self._functional.all_to_all_single.default(flat, sizes, sizes, group.name)
        return result


def own_number(group: Group) -> int:
    """Return torch's number of this rank in its group."""
    return group.position if group.order is None else group.order[group.position]


def _launched(wires: Sequence[Wire], launch: Launch, *, before: int = 1, after: int = 1) -> list[Part]:
    """Start a transfer for each operand, small ones packed.

    Args:
        wires: the operands.
        launch: starts it for one tensor.
        before: rows of an operand, one for each member of the group; 1 where it has none.
        after: rows of what arrives.
    """
    parts = []
    for bucket in buckets(wires):
        together = [wires[position] for position in bucket]
        if len(together) == 1:
            value, arrive = launch(together[0].tensor, together[0].shape)
            finish = chain(arrive, together[0].finish)
        else:
            elements = sum(math.prod(wire.shape) for wire in together)
            shape = (before, elements // before) if before > 1 else (elements,)
            value, arrive = launch(pack(together, before), shape)
            finish = chain(arrive, unpack(together, before, after))
        parts.append(Part(value, tuple(bucket), finish))
    return parts


def _by_position(pieces: Sequence[Any], group: Group) -> Sequence[Any]:
    """Return pieces as torch numbers their senders by position."""
    return pieces if group.order is None else [pieces[number] for number in group.order]


def _with_own(own: Any, received: Sequence[Any], group: Group) -> Sequence[Any]:
    """Return the pieces by position: a rank's own, and those of the others as torch numbers their senders."""
    mine = own_number(group)
    return _by_position([*received[:mine], own, *received[mine:]], group)


def _joined(wires: Sequence[Wire], dims: Sequence[int], group: Group) -> Finish:
    """Return what makes gathered tensors of this rank's pieces, `wires`, and of what the others sent of theirs.

    From each other member comes a row of all its pieces, one after the other. Each result is made by one copy.
    """
    sizes = [math.prod(wire.shape) for wire in wires]
    others = group.size - 1

    def run(value: Any) -> Any:
        rows = aten.view.default(value, [others, sum(sizes)])
        members = aten.split_with_sizes.default(rows, sizes, 1) if len(wires) > 1 else [rows]
        results = []
        for index, (wire, dim) in enumerate(zip(wires, dims, strict=True)):
            shape = list(wire.shape)
            if others == 1:
                received = [aten.view.default(members[index], shape)]
            else:
                each = aten.unbind.int(members[index], 0)
                received = [aten.view.default(each[number], shape) for number in range(others)]
            joined = aten.cat.default(_with_own(wire.tensor, received, group), dim)
            results.append(joined if wire.finish is None else wire.finish(joined))
        return results if len(results) > 1 else results[0]

    return run


def _rows(own: Tensor, elements: int, group: Group) -> Finish:
    """Return what gives the pieces of all members, of a 1-d tensor of which `own` is this rank's."""
    if group.size == 2:
        return lambda value: _with_own(own, [value], group)
    sizes = [elements] * (group.size - 1)

    def run(value: Any) -> Any:
        received = aten.split_with_sizes.default(value, sizes)
        return _with_own(own, [received[number] for number in range(group.size - 1)], group)

    return run


def _sum(group: Group) -> Finish:
    """Return the sum of rows, one from each member."""

    def run(value: Any) -> Any:
        rows = aten.unbind.int(value, 0)
        return _total(_by_position([rows[number] for number in range(group.size)], group))

    return run


def _sum_with(own: Any, shape: Sequence[int], group: Group) -> Finish:
    """Return the sum of a rank's own tensor of a shape and those that the others sent."""
    others = group.size - 1

    def run(value: Any) -> Any:
        if others == 1:
            received = [aten.view.default(value, list(shape))]
        else:
            rows = aten.unbind.int(aten.view.default(value, [others, *shape]), 0)
            received = [rows[number] for number in range(others)]
        return _total(_with_own(own, received, group))

    return run


def _total(pieces: Sequence[Any]) -> Any:
    total = aten.add.Tensor(pieces[0], pieces[1])
    for piece in pieces[2:]:
        total = aten.add_.Tensor(total, piece)
    return total
