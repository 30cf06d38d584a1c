"""Operands of collectives as backends are given them, and results as they come back.

All of it is torch operators on tensors whose dtype and shape are known, so that FX proxies with both can be traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .device import Group

aten = torch.ops.aten

# What every backend moves and adds. All else is moved as bits of the same width and added in a wider dtype.
_NATIVE = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
    }
)
_CARRIERS = {1: torch.uint8, 2: torch.float16, 4: torch.int32, 8: torch.int64}
# Two's complement sums are the same with and without a sign.
_SUM_AS_BITS = {torch.uint32: torch.int32, torch.uint64: torch.int64}

# Larger operands are sent by themselves: copying them together costs more than another message.
_MOST_PACKED_BYTES = 1 << 19

Finish = Callable[[Any], Any]


def is_native(dtype: torch.dtype) -> bool:
    """Return whether every backend moves and adds a dtype as it is."""
    return dtype in _NATIVE


class Wire(NamedTuple):
    """One operand as a backend is given it.

    Attributes:
        tensor: contiguous, in a dtype that the backend takes.
        shape: of `tensor`.
        dtype: of the operand; its wire may be packed with others where backends take the dtype as it is.
        finish: from what arrives for `tensor` to the operand's result; None where that is the same.
    """

    tensor: Any
    shape: tuple[int, ...]
    dtype: torch.dtype
    finish: Finish | None


class Part(NamedTuple):
    """What arrives in one piece.

    Attributes:
        value: it.
        positions: of the results in a future.
        finish: gives these results, or the one result there.
        rows: gives, for the one gathered 1-d result, the pieces it is joined of; None where they arrive joined.
    """

    value: Any
    positions: tuple[int, ...]
    finish: Finish | None
    rows: Finish | None = None


class Future:
    """Tensors of a collective on their way.

    Attributes:
        parts: what is to arrive; not to be read before the wait.
        is_there: nothing has to be waited for.
    """

    __slots__ = ("is_there", "parts")

    def __init__(self, parts: list[Part], *, is_there: bool = False):
        self.parts = parts
        self.is_there = is_there


def arrived(tensors: Sequence[Tensor]) -> Future:
    """Return a future of tensors that are there."""
    return Future([Part(tensor, (position,), None) for position, tensor in enumerate(tensors)], is_there=True)


def buckets(wires: Sequence[Wire]) -> list[list[int]]:
    """Return positions of wires that are to travel together: small ones of one dtype."""
    together: dict[torch.dtype, list[int]] = {}
    alone = []
    for position, wire in enumerate(wires):
        if wire.dtype in _NATIVE and math.prod(wire.shape) * wire.dtype.itemsize <= _MOST_PACKED_BYTES:
            together.setdefault(wire.dtype, []).append(position)
        else:
            alone.append([position])
    return [*together.values(), *alone]


def by_dtype(wires: Sequence[Wire]) -> list[list[int]]:
    """Return positions of wires of one dtype each."""
    together: dict[torch.dtype, list[int]] = {}
    for position, wire in enumerate(wires):
        together.setdefault(wire.tensor.dtype, []).append(position)
    return list(together.values())


def pack(wires: Sequence[Wire], rows: int = 1) -> Tensor:
    """Return wires as one 1-d tensor; with `rows` above 1 each is that many rows, and so is the whole."""
    lead = [rows] if rows > 1 else []
    flat = [aten.reshape.default(wire.tensor, [*lead, math.prod(wire.shape) // rows]) for wire in wires]
    packed: Tensor = flat[0] if len(flat) == 1 else aten.cat.default(flat, len(lead))
    return packed


def unpack(wires: Sequence[Wire], before: int, after: int) -> Finish:
    """Return what takes apart what arrived for `pack(wires, before)`.

    Args:
        wires: what was packed.
        before: rows that each had; with more than one they are its dim 0.
        after: rows that each has now: as many, or one.
    """
    sizes = [math.prod(wire.shape) // before for wire in wires]
    shapes = [list(wire.shape if before == after else wire.shape[1:]) for wire in wires]

    def run(value: Any) -> list[Any]:
        whole = aten.view.default(value, [after, sum(sizes)] if after > 1 else [sum(sizes)])
        pieces = aten.split_with_sizes.default(whole, sizes, 1 if after > 1 else 0)
        results = []
        for index, (wire, shape) in enumerate(zip(wires, shapes, strict=True)):
            piece = aten.reshape.default(pieces[index], shape)
            results.append(piece if wire.finish is None else wire.finish(piece))
        return results

    return run


def chain(*steps: Finish | None) -> Finish | None:
    """Return what runs these steps one after the other; None where there are none."""
    present = [step for step in steps if step is not None]
    if len(present) < 2:
        return present[0] if present else None

    def run(value: Any) -> Any:
        for step in present:
            value = step(value)
        return value

    return run


def carrier(tensor: Tensor) -> tuple[Tensor, Finish | None]:
    """Return a contiguous tensor of the same bits in a dtype that backends move, and the way back."""
    dtype = tensor.dtype
    if dtype in _NATIVE:
        return aten.contiguous.default(tensor), None
    if dtype.is_complex:
        real = aten.view_as_real.default(aten.resolve_conj.default(tensor))
        return aten.contiguous.default(real), aten.view_as_complex.default
    bits = aten.view.dtype(aten.contiguous.default(tensor), _CARRIERS[dtype.itemsize])
    return bits, lambda value: aten.view.dtype(value, dtype)


def summable(tensor: Tensor) -> tuple[Tensor, Finish | None]:
    """Return a tensor whose elementwise sum over ranks, taken back, is this one's."""
    dtype = tensor.dtype
    if dtype in _NATIVE:
        return tensor, None
    if dtype.is_complex:
        return aten.view_as_real.default(aten.resolve_conj.default(tensor)), aten.view_as_complex.default
    if dtype == torch.bool:
        return aten._to_copy.default(tensor, dtype=torch.int32), lambda value: aten.ne.Scalar(value, 0)
    if dtype in _SUM_AS_BITS:
        return aten.view.dtype(tensor, _SUM_AS_BITS[dtype]), lambda value: aten.view.dtype(value, dtype)
    wide = torch.float32 if dtype.is_floating_point else torch.int32
    return aten._to_copy.default(tensor, dtype=wide), lambda value: aten._to_copy.default(value, dtype=dtype)


def _in_torch_order(pieces: Any, group: Group) -> list[Tensor]:
    """Return pieces by position as torch numbers their receivers."""
    if group.order is None:
        return [pieces[index] for index in range(group.size)]
    placed: list[Any] = [None] * group.size
    for position, index in enumerate(group.order):
        placed[index] = pieces[position]
    return placed


def _by_position(pieces: Any, group: Group) -> list[Tensor]:
    """Return pieces as torch numbers their senders by position."""
    return [pieces[index] for index in (group.order or range(group.size))]


def joined_pieces(tensor: Tensor, dim: int, group: Group) -> Tensor:
    """Return the pieces along `dim` one after the other along dim 0."""
    if dim == 0 and group.order is None:
        joined: Tensor = aten.contiguous.default(tensor)
    else:
        joined = aten.cat.default(_in_torch_order(aten.chunk.default(tensor, group.size, dim), group), 0)
    return joined


def stacked_pieces(tensor: Tensor, dim: int, group: Group) -> Tensor:
    """Return the pieces along `dim` as a new dim 0."""
    if dim == 0 and group.order is None:
        stacked: Tensor = aten.unflatten.int(aten.contiguous.default(tensor), 0, [group.size, -1])
    else:
        stacked = aten.stack.default(_in_torch_order(aten.chunk.default(tensor, group.size, dim), group), 0)
    return stacked


def gathered(group: Group, dim: int) -> Finish | None:
    """Return what puts pieces that arrived along dim 0 in order along `dim`."""
    if dim == 0 and group.order is None:
        return None
    return lambda value: aten.cat.default(_by_position(aten.chunk.default(value, group.size, 0), group), dim)


def concatenated(group: Group, dim: int) -> Finish:
    """Return what puts pieces that arrived along a new dim 0 in order along `dim`."""
    if dim == 0 and group.order is None:
        return lambda value: aten.flatten.using_ints(value, 0, 1)
    return lambda value: aten.cat.default(_by_position(aten.unbind.int(value, 0), group), dim)


def average(group: Group) -> Finish:
    """Return what makes a sum over the group the mean, in place."""
    return lambda value: aten.div_.Scalar(value, group.size)


def piece_shape(tensor: Tensor, dim: int, group: Group) -> tuple[int, ...]:
    """Return the shape of one of the equal pieces of `tensor` along `dim`."""
    return tuple(size // group.size if index == dim else size for index, size in enumerate(tensor.shape))
