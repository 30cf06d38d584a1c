"""``hp.pack`` and ``hp.unpack``: tensors laid out in one for a collective, and taken out again.

Both cost little more than the bytes they move: a pack is a view where its operands lie side by side already (shards of
a buffer, see `state`), else one concatenation; an unpack is views, or one copy per member. Traced with FX proxies they
are plain operators, and the compiler decides about memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import RuntimeFault
from ..packed_layout import BYTES
from .operators import torch_dtype
from .packed_ops import Types, lay_out, read_packed_op
from .program import Op

aten = torch.ops.aten


class _Member(NamedTuple):
    """One tensor among others; numbers count its own elements.

    Attributes:
        shape: whole.
        dtype: its own.
        dim: along which it is cut.
        strides: of the whole, dense.
        pieces: its shape with the pieces as a dim in front.
        strides_in_part: of `pieces` in the packed tensor, the first excepted, which is that of parts.
        strides_in_whole: of `pieces` in a dense tensor.
        offset: in a rank's part.
        ratio: of the packed tensor's elements to one of its own.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    dim: int
    strides: tuple[int, ...]
    pieces: tuple[int, ...]
    strides_in_part: tuple[int, ...]
    strides_in_whole: tuple[int, ...]
    offset: int
    ratio: int


class Packing:
    """How members lie in a packed tensor; see the dialect reference.

    Args:
        types: of the members.
        ranks: pieces that each is cut into.
        alignment: elements of which each piece starts at a multiple.
        dims: along which they are cut, with several ranks.

    Raises:
        RuntimeFault: they cannot.
    """

    def __init__(self, types: Types, ranks: int, alignment: int, dims: Sequence[int] = ()):
        self.layout = layout = lay_out(types, ranks, alignment, tuple(dims))
        self.ranks = ranks
        self.dtype = torch_dtype(layout.dtype)
        self.numel = ranks * layout.length
        self._bytes = layout.dtype == BYTES and {name for name, _ in types} != {BYTES}
        self._members: list[_Member] = []
        for number, (name, shape) in enumerate(types):
            dtype, dim = torch_dtype(name), dims[number] if ranks > 1 else 0
            ratio = dtype.itemsize if self._bytes else 1
            self._members.append(_member(shape, dtype, dim, ranks, layout.offsets[number] // ratio, ratio))
        width = self.dtype.itemsize
        # Where each member that has elements starts, in bytes.
        self._starts = [(n, layout.offsets[n] * width) for n, size in enumerate(layout.sizes) if size]
        self._complex = any(member.dtype.is_complex for member in self._members)
        self._split = [size for pair in zip(layout.sizes, layout.gaps, strict=True) for size in pair]
        # What one operator can take apart.
        self._plain = not any(layout.gaps) and not self._bytes and not any(member.dim for member in self._members)

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the members as one tensor, which shares their memory where they lie in it as they should."""
        if self.ranks > 1 and self._plain and not self._complex:
            rows = [tensor.reshape(self.ranks, size) for tensor, size in zip(tensors, self.layout.sizes, strict=True)]
            return torch.cat(rows, 1).view(-1)
        side_by_side = self._view(tensors) if self.ranks == 1 else None
        return self.concatenate(tensors) if side_by_side is None else side_by_side

    def _view(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """Return the memory of members that lie in one storage as they are to be packed; None where they do not."""
        if not self._starts:
            return None
        leader, origin = self._starts[0]
        first = tensors[leader]
        base = first.data_ptr() - origin
        for number, start in self._starts:
            tensor = tensors[number]
            if tensor.data_ptr() != base + start or not tensor.is_contiguous():
                return None
        if self._complex and any(tensor.is_conj() for tensor in tensors):
            return None
        width = self.dtype.itemsize
        offset = first.storage_offset() * first.dtype.itemsize - origin
        if offset < 0 or offset + self.numel * width > first.untyped_storage().nbytes():
            return None  # not all of it is in the storage of the first: the padding at the end, or another member
        if self._bytes:
            first = first.view(-1).view(torch.uint8)
        return torch.as_strided(first, (self.numel,), (1,), offset // width)

    def concatenate(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the members as one tensor of its own memory. It can be traced."""
        rows: list[Tensor] = []
        for tensor, member, gap in zip(tensors, self._members, self.layout.gaps, strict=True):
            row = self._row(tensor, member)
            rows.append(row)
            if gap:
                rows.append(aten.new_zeros.default(row, [gap] if self.ranks == 1 else [self.ranks, gap]))
        if self.ranks == 1:
            return rows[0] if len(rows) == 1 else _joined(rows, 0)
        packed: Tensor = aten.reshape.default(_joined(rows, 1), [self.numel])
        return packed

    def _row(self, tensor: Tensor, member: _Member) -> Tensor:
        """Return a member's pieces, flat, in the packed dtype; with several ranks a row each."""
        if member.dtype.is_complex:
            tensor = aten.resolve_conj.default(tensor)
        if member.dim:
            tensor = aten.reshape.default(tensor, _cut(member.shape, member.dim, self.ranks))
            tensor = aten.movedim.int(tensor, member.dim, 0)
        size = math.prod(member.shape) // self.ranks
        if self._bytes:
            # The new last dim is dense whatever the strides of the others.
            tensor = aten.view.dtype(aten.unsqueeze.default(tensor, -1), torch.uint8)
            size *= member.ratio
        row: Tensor = aten.reshape.default(tensor, [size] if self.ranks == 1 else [self.ranks, size])
        return row

    def unpack(self, packed: Tensor, layout: str) -> list[Tensor]:
        """Take the members out: with "flat" as views of one piece of memory, with "packed" each in its own.

        Raises:
            RuntimeFault: `packed` is not of their size and dtype.
        """
        if packed.numel() != self.numel or packed.dtype is not self.dtype:
            raise RuntimeFault(f"expected {self.layout.dtype}[{self.numel}] to unpack, got: {list(packed.shape)}")
        if self.ranks == 1:
            views = self._wholes(packed)
            return views if layout == "flat" else [view.clone() for view in views]
        if layout == "packed" and self._plain:
            copies = aten.split_with_sizes_copy.default(
                packed.view(self.ranks, self.layout.length), list(self.layout.sizes), 1
            )
            return [copy.view(member.shape) for copy, member in zip(copies, self._members, strict=True)]
        if layout == "packed":
            values = [packed.new_empty(member.shape, dtype=member.dtype) for member in self._members]
            targets = [
                value.as_strided(member.pieces, member.strides_in_whole)
                for value, member in zip(values, self._members, strict=True)
            ]
        else:
            memory = torch.empty_like(packed)
            values = self._wholes(memory)
            targets = [
                value.as_strided(member.pieces, member.strides_in_whole, value.storage_offset())
                for value, member in zip(values, self._members, strict=True)
            ]
        self._fill(targets, packed)
        return values

    @property
    def by_rows(self) -> bool:
        """Whether `join` can be used: every member is cut along its first dim."""
        return self.ranks > 1 and not any(member.dim for member in self._members)

    def join(self, rows: Sequence[Tensor], layout: str) -> list[Tensor]:
        """Take the members out of the ranks' parts, which are not joined yet; as `unpack` does of the whole.

        Each element is copied once.
        """
        if self._plain and layout == "flat":
            sizes = list(self.layout.sizes)
            cut = [row.split_with_sizes(sizes) for row in rows]
            memory = torch.cat([piece for member in zip(*cut, strict=True) for piece in member])
            return [
                memory.as_strided(member.shape, member.strides, self.ranks * member.offset) for member in self._members
            ]
        # Behind each member is its padding.
        parts = [aten.split_with_sizes.default(row, self._split)[::2] for row in rows]
        if layout == "flat":
            pieces = [piece for member in zip(*parts, strict=True) for piece in member]
            memory = rows[0].new_empty(self.numel)
            sizes = []
            for size, gap in zip(self.layout.sizes, self.layout.gaps, strict=True):
                sizes += [*[size] * self.ranks, self.ranks * gap]
            targets = list(aten.split_with_sizes.default(memory, sizes))
            del targets[self.ranks :: self.ranks + 1]
            torch._foreach_copy_(targets, pieces)
            return self._wholes(memory)
        values = []
        for member, own in zip(self._members, zip(*parts, strict=True), strict=True):
            value = aten.cat.default(list(own))
            values.append((value.view(member.dtype) if self._bytes else value).view(member.shape))
        return values

    def _wholes(self, memory: Tensor) -> list[Tensor]:
        """Return the members as views of memory in which each lies whole, where its pieces' share of it begins."""
        based = _Based(memory)
        return [
            based.view(member.dtype, member.ratio, member.shape, member.strides, self.ranks * member.offset)
            for member in self._members
        ]

    def _fill(self, targets: list[Tensor], packed: Tensor) -> None:
        """Copy each member's pieces into its target."""
        length = self.layout.length
        if self._plain and packed.device.type != "cpu":
            # One kernel there; on a CPU it is no faster than the other.
            aten.split_with_sizes_copy.out(packed.view(self.ranks, length), list(self.layout.sizes), 1, out=targets)
            return
        based = _Based(packed)
        sources = [
            based.view(
                member.dtype,
                member.ratio,
                member.pieces,
                (length // member.ratio, *member.strides_in_part),
                member.offset,
            )
            for member in self._members
        ]
        torch._foreach_copy_(targets, sources)

    def traced(self, packed: Any) -> list[Any]:
        """Take the members out by operators that a compiler may fuse, views of `packed` where that can be."""
        ranks = self.ranks
        whole = packed if ranks == 1 else aten.reshape.default(packed, [ranks, self.layout.length])
        pieces = aten.split_with_sizes.default(whole, self._split, 0 if ranks == 1 else 1)
        values = []
        for number, member in enumerate(self._members):
            value = pieces[2 * number]  # behind each is its padding
            if self._bytes:
                rows = [math.prod(member.shape), member.ratio]  # each a number's bytes
                value = aten.view.dtype(aten.reshape.default(aten.contiguous.default(value), rows), member.dtype)
            if member.dim:
                cut = _cut(member.shape, member.dim, ranks)
                cut.insert(0, cut.pop(member.dim))
                value = aten.movedim.int(aten.reshape.default(value, cut), 0, member.dim)
            values.append(aten.reshape.default(value, list(member.shape)))
        return values


class _Based:
    """Views of one memory in several dtypes."""

    def __init__(self, memory: Tensor):
        self._memory = memory
        self._bases: dict[int, tuple[Tensor, int]] = {}

    def view(self, dtype: torch.dtype, ratio: int, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
        """Return a view; all numbers count elements of `dtype`, each of which is `ratio` of the memory's."""
        key = id(dtype)
        if key not in self._bases:
            base = self._memory if ratio == 1 and dtype is self._memory.dtype else self._memory.view(dtype)
            self._bases[key] = (base, int(base.storage_offset()))
        base, start = self._bases[key]
        return base.as_strided(shape, strides, start + offset)


def _member(shape: tuple[int, ...], dtype: torch.dtype, dim: int, ranks: int, offset: int, ratio: int) -> _Member:
    strides = _dense(shape)
    piece = tuple(size // ranks if number == dim else size for number, size in enumerate(shape))
    apart = strides[dim] * piece[dim] if shape else 0
    if not dim:
        # Row by row, and so without the dims in between.
        size = math.prod(piece)
        return _Member(shape, dtype, dim, strides, (ranks, size), (1,), (size, 1), offset, ratio)
    return _Member(shape, dtype, dim, strides, (ranks, *piece), _dense(piece), (apart, *strides), offset, ratio)


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _cut(shape: Sequence[int], dim: int, ranks: int) -> list[int]:
    """Return a shape with a dim of pieces in front of the dim that is cut."""
    return [*shape[:dim], ranks, shape[dim] // ranks, *shape[dim + 1 :]]


def _joined(tensors: list[Tensor], dim: int) -> Tensor:
    joined: Tensor = aten.cat.default(tensors, dim)
    return joined


@cache
def packing(types: Types, ranks: int, alignment: int, dims: tuple[int, ...] = ()) -> Packing:
    """Return a `Packing`, each made once."""
    return Packing(types, ranks, alignment, dims)


def packing_of(op: Op) -> Packing:
    """Return how an ``hp.pack`` or ``hp.unpack`` lays out its members.

    Raises:
        RuntimeFault: an attribute is missing or malformed.
    """
    said = read_packed_op(op)
    return packing(said.types, said.ranks, said.alignment, said.dims)
