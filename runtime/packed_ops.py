"""What an ``hp.pack`` or ``hp.unpack`` of a Program says, checked; without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..errors import PlanError, RuntimeFault
from ..packed_layout import PackedLayout
from .program import Op, TensorType

Types: TypeAlias = "tuple[tuple[str, tuple[int, ...]], ...]"
"""Dtype name and shape of each member."""


@dataclass(frozen=True)
class PackedOp:
    """The attributes of a pack or an unpack.

    Attributes:
        types: of the members.
        ranks: pieces that each is cut into.
        alignment: elements of which each piece starts at a multiple.
        dims: along which they are cut, with several ranks.
        layout: where the members lie in the packed tensor.
    """

    types: Types
    ranks: int
    alignment: int
    dims: tuple[int, ...]
    layout: PackedLayout

    @property
    def members(self) -> list[TensorType]:
        """The types of the members."""
        return [TensorType(shape, dtype) for dtype, shape in self.types]

    @property
    def whole(self) -> TensorType:
        """The type of the packed tensor."""
        return TensorType((self.ranks * self.layout.length,), self.layout.dtype)


def lay_out(types: Types, ranks: int, alignment: int, dims: tuple[int, ...] = ()) -> PackedLayout:
    """Return where members lie.

    Raises:
        RuntimeFault: they cannot be laid out like this.
    """
    names, shapes = [name for name, _ in types], [shape for _, shape in types]
    try:
        return PackedLayout.of(shapes, names, ranks=ranks, dims=dims, alignment=alignment)
    except PlanError as error:
        raise RuntimeFault(str(error)) from None


def read_packed_op(op: Op) -> PackedOp:
    """Return what a pack or an unpack says.

    Raises:
        RuntimeFault: an attribute is missing or malformed.
    """
    pairs, dims = op.kwargs.get("types"), op.kwargs.get("dims", ())
    types = []
    for pair in pairs if isinstance(pairs, tuple) else ():
        dtype, sizes = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
        if not isinstance(dtype, str) or not isinstance(sizes, tuple):
            raise RuntimeFault(f"malformed types: {pairs!r}")
        shape = tuple(size for size in sizes if isinstance(size, int) and size >= 0)
        if shape != sizes:
            raise RuntimeFault(f"malformed types: {pairs!r}")
        types.append((dtype, shape))
    ranks, alignment = op.kwargs.get("ranks"), op.kwargs.get("alignment")
    if not isinstance(ranks, int) or not isinstance(alignment, int):
        raise RuntimeFault(f"expected ranks and alignment to be integers, got: {ranks!r} and {alignment!r}")
    cut = tuple(dim for dim in dims if isinstance(dim, int)) if isinstance(dims, tuple) else ()
    if cut != dims:
        raise RuntimeFault(f"expected dims to be integers, got: {dims!r}")
    if op.target == "hp.unpack" and op.kwargs.get("layout") not in ("packed", "flat"):
        raise RuntimeFault(f"expected layout to be 'packed' or 'flat', got: {op.kwargs.get('layout')!r}")
    members = tuple(types)
    return PackedOp(members, ranks, alignment, cut, lay_out(members, ranks, alignment, cut))
