"""Folding views of views: what undoes a view, and what is made in two steps though one would do.

Only what gives the same strides as before is folded, whatever those of the tensor at the bottom are: every operator
that reads the result does the same, bit for bit. (Dims of size 1 do not count.) Merging dims may copy, splitting them
never does.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch_mlir import ir

from ...dialect.types import tensor_type
from ..views import operator_name

_RESHAPES = frozenset({"aten.reshape", "aten.view"})
_SWAPS = frozenset({"aten.t", "aten.transpose.int"})
# Which op of a checkpointed region computes a value says whether it is computed again.
_REGIONS = ("hp.recompute", "hp.recomputed", "hp.saved")


def fold_views(ops: Iterable[ir.Operation]) -> None:
    """Let users of views that can be folded use what is below; the views stay, for who removes dead ops.

    Args:
        ops: of one block, in order.
    """
    for op in ops:
        name = operator_name(op)
        if name in _SWAPS:
            below = _unswapped(op, name)
        elif name in _RESHAPES:
            below = _unshaped(op)
        else:
            continue
        if below is not None and not _would_return_argument(op, below):
            op.results[0].replace_all_uses_with(below)


def _maker(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def _is_bound(op: ir.Operation) -> bool:
    return any(name in op.attributes for name in _REGIONS)


def _unswapped(op: ir.Operation, name: str) -> ir.Value | None:
    """Return the tensor that two swaps of the same dims leave as it is."""
    inner = _maker(op.operands[0])
    if inner is None or operator_name(inner) != name or _is_bound(op) or _is_bound(inner):
        return None
    if name == "aten.transpose.int" and _dims(op) != _dims(inner):
        return None
    below = inner.operands[0]
    return below if below.type == op.results[0].type else None


def _dims(op: ir.Operation) -> tuple[object, ...]:
    """Return the two dims of a transposition, in order; values that are no constants stand for themselves."""
    parsed = tensor_type(op.results[0].type)
    rank = len(parsed.shape) if parsed is not None else 0
    dims: list[object] = []
    for operand in list(op.operands)[1:]:
        maker = _maker(operand)
        if maker is None or maker.name != "torch.constant.int" or not rank:
            return (op,)  # equal to no other's
        dims.append(ir.IntegerAttr(maker.attributes["value"]).value % rank)
    return tuple(sorted(dims, key=str))


def _unshaped(op: ir.Operation) -> ir.Value | None:
    """Return the tensor that has the shape of a reshape already; else let it reshape what is below, where it may."""
    if _is_bound(op):
        return None
    shape = _static_shape(op.results[0])
    if shape is None:
        return None
    inner = _maker(op.operands[0])
    while inner is not None and operator_name(inner) in _RESHAPES and not _is_bound(inner):
        before, after = _static_shape(inner.operands[0]), _static_shape(inner.results[0])
        if before is None or after is None or not only_splits(before, after):
            break
        op.operands[0] = inner.operands[0]
        inner = _maker(op.operands[0])
    below = op.operands[0]
    return below if below.type == op.results[0].type else None


def _static_shape(value: ir.Value) -> tuple[int, ...] | None:
    parsed = tensor_type(value.type)
    if parsed is None or any(size is None for size in parsed.shape):
        return None
    return tuple(size for size in parsed.shape if size is not None)


def only_splits(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether a reshape takes dims apart and puts none together; dims of size 1 may come and go."""
    if 0 in before:
        return False
    rest = iter(size for size in after if size != 1)
    for size in before:
        left = size
        while left > 1:
            part = next(rest, 0)
            if not part or left % part:
                return False
            left //= part
    return next(rest, 0) == 0


def _would_return_argument(op: ir.Operation, below: ir.Value) -> bool:
    """Return whether the function would return an argument where it returns a view of it now."""
    return isinstance(below.owner, ir.Block) and any(
        use.owner.operation.name == "func.return" for use in op.results[0].uses
    )
