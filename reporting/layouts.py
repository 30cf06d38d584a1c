"""In which order the elements of values lie in memory: what decides whether a reshape is a view or copies."""

from __future__ import annotations

from collections.abc import Mapping

from ..operator_costs import plain_name
from ..runtime.program import Named, Op, TensorType

Order = tuple[int, ...]
"""The dims of a tensor, outermost in memory first."""

_UNKNOWN: Order = ()
_IN_ORDER = Named("memory_format", "contiguous_format")
_TRANSPOSES = frozenset({"aten.numpy_T", "aten.permute", "aten.t", "aten.transpose.int"})
# Their results lie as the operand of the same shape does.
_POINTWISE = frozenset(
    {
        "aten._to_copy",
        "aten.add.Tensor",
        "aten.alias",
        "aten.clone",
        "aten.detach",
        "aten.div.Tensor",
        "aten.gelu",
        "aten.mul.Scalar",
        "aten.mul.Tensor",
        "aten.neg",
        "aten.relu",
        "aten.sigmoid",
        "aten.silu",
        "aten.sub.Tensor",
        "aten.tanh",
        "prims.convert_element_type",
    }
)


class Layouts:
    """The orders of a function's values that are not the usual one, row by row.

    Args:
        types: of the function's values.
    """

    def __init__(self, types: Mapping[int, TensorType]):
        self._types = types
        self._orders: dict[int, Order] = {}

    def in_order(self, value: int) -> bool:
        """Return whether the elements of a value lie row by row."""
        return value not in self._orders

    def note(self, op: Op, is_view: bool) -> None:
        """Note how the results of an op lie; the ops of a function come in order."""
        name = plain_name(op.target)
        if name.startswith("aten._scaled_dot_product_"):
            # Attention writes [batch, length, heads, size], whatever way round its results are seen.
            for value in op.results:
                if value in self._types and len(self._types[value].shape) == 4:
                    self._set(value, (0, 2, 1, 3))
            return
        operand = next((value for value in op.operands() if value in self._types), None)
        if operand is None or not op.results or op.kwargs.get("memory_format") == _IN_ORDER:
            return
        order = self._orders.get(operand, tuple(range(len(self._types[operand].shape))))
        if name in _TRANSPOSES:
            moved = _permutation(name, op, len(self._types[operand].shape))
            order = tuple(moved.index(dim) for dim in order) if order and moved else _UNKNOWN
        elif name in _POINTWISE or name == "aten.expand":
            result = self._types.get(op.results[0])
            same = result is not None and result.shape == self._types[operand].shape
            if not same and name != "aten.expand":
                return
            order = order if same else _UNKNOWN
        elif is_view and operand in self._orders:
            order = _UNKNOWN
        else:
            return
        for value in op.results:
            self._set(value, order)

    def _set(self, value: int, order: Order) -> None:
        type_ = self._types.get(value)
        if type_ is not None and order != tuple(range(len(type_.shape))):
            self._orders[value] = order


def _permutation(name: str, op: Op, dims: int) -> Order:
    """Return which dim of the operand each dim of the result is; empty where that is not known."""
    numbers = list(range(dims))
    if name == "aten.transpose.int" and len(op.args) == 3:
        _, first, second = op.args
        if isinstance(first, int) and isinstance(second, int):
            numbers[first], numbers[second] = numbers[second], numbers[first]
            return tuple(numbers)
        return ()
    if name == "aten.permute" and len(op.args) == 2 and isinstance(op.args[1], tuple):
        chosen = [dim % dims for dim in op.args[1] if isinstance(dim, int)]
        return tuple(chosen) if len(chosen) == dims else ()
    return tuple(reversed(numbers))
