"""Gathering outputs whose sizes differ between ranks, or are known only at run time, as ops of a Program."""

from __future__ import annotations

from collections.abc import Sequence

from ..runtime.program import Arg, Named, Ref, TensorType
from .step_totals import Emit

_INT = TensorType((None,), "int64")


def gather_uneven(emit: Emit, value: int, type_: TensorType, dim: int, axes: Sequence[str]) -> tuple[int, TensorType]:
    """Concatenate what every rank has along `dim`, in rank order.

    Ranks tell each other their sizes, pad to the largest, gather, and take the padding out. Sizes of other dims must be
    equal, or every rank says that they are not.

    Args:
        emit: appends an op.
        value: the tensor's number.
        type_: its type.
        dim: the dim to concatenate along.
        axes: mesh axes of the group.

    Returns:
        The number of the result and its type.
    """
    builder = _Builder(emit)
    dynamic = [number for number, size in enumerate(type_.shape) if size is None or number == dim]
    own = [builder.integer("aten.size.int", Ref(value), number) for number in dynamic]
    told = [
        emit("aten.full.default", ((1,), Ref(size)), (TensorType((1,), "int64"),), dtype=Named("dtype", "int64"))[0]
        for size in own
    ]
    (future,) = emit("hp.all_gather", tuple(map(Ref, told)), (None,), axes=tuple(axes), dims=(0,) * len(told))
    sizes = emit("hp.wait", (Ref(future),), (_INT,) * len(told))
    largest = [builder.extreme("aten.max.default", Ref(size)) for size in sizes]
    for number, size, most in zip(dynamic, sizes, largest, strict=True):
        if number != dim:
            least = builder.extreme("aten.min.default", Ref(size))
            equal = builder.integer("aten.eq.int", Ref(most), Ref(least))
            message = f"dim {number} of an output differs between data ranks: pad it to one size"
            emit("aten._assert_scalar.default", (Ref(equal), message), ())
    rows = largest[dynamic.index(dim)]
    missing = builder.integer("aten.sub.int", Ref(rows), Ref(own[dynamic.index(dim)]))
    pads: list[Arg] = [0, 0] * (len(type_.shape) - 1 - dim) + [0, Ref(missing)]
    unknown = TensorType((*type_.shape[:dim], None, *type_.shape[dim + 1 :]), type_.dtype)
    (padded,) = emit("aten.constant_pad_nd.default", (Ref(value), tuple(pads)), (unknown,))
    (future,) = emit("hp.all_gather", (Ref(padded),), (None,), axes=tuple(axes), dims=(dim,))
    (gathered,) = emit("hp.wait", (Ref(future),), (unknown,))
    index = builder.kept(gathered, dim, rows, sizes[dynamic.index(dim)])
    (result,) = emit("aten.index_select.default", (Ref(gathered), dim, Ref(index)), (unknown,))
    return result, unknown


class _Builder:
    def __init__(self, emit: Emit):
        self.emit = emit

    def integer(self, target: str, *args: Arg) -> int:
        (value,) = self.emit(target, args, (None,))
        return int(value)

    def extreme(self, target: str, sizes: Ref) -> int:
        (tensor,) = self.emit(target, (sizes,), (TensorType((), "int64"),))
        return self.integer("aten._local_scalar_dense.default", Ref(tensor))

    def kept(self, gathered: int, dim: int, rows: int, sizes: int) -> int:
        """Return the positions along `dim` that are no padding: every rank has `rows`, of which `sizes` count."""
        emit = self.emit
        total = self.integer("aten.size.int", Ref(gathered), dim)
        (position,) = emit("aten.arange.default", (Ref(total),), (_INT,))
        (rank,) = emit("aten.floor_divide.Scalar", (Ref(position), Ref(rows)), (_INT,))
        (within,) = emit("aten.remainder.Scalar", (Ref(position), Ref(rows)), (_INT,))
        (limit,) = emit("aten.index_select.default", (Ref(sizes), 0, Ref(rank)), (_INT,))
        (keep,) = emit("aten.lt.Tensor", (Ref(within), Ref(limit)), (TensorType((None,), "bool"),))
        (found,) = emit("aten.nonzero.default", (Ref(keep),), (TensorType((None, 1), "int64"),))
        (index,) = emit("aten.squeeze.dim", (Ref(found), 1), (_INT,))
        return int(index)
