"""What a torch operator costs in itself: floating-point operations, and bytes to and from memory.

Operators are named as a Program names them (``aten.mm.default``) or as the IR does (``torch.aten.mm``); shapes have
None for a size that is known only at run time, which counts as 1. Nothing here imports torch or MLIR.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

from .view_operators import STRIDED_VIEWS

Shape = Sequence["int | None"]
"""Sizes of a tensor; None for one known only at run time."""


class Typed(Protocol):
    """The type of a tensor: what both the IR and a Program have of it."""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Its sizes."""

    @property
    def dtype(self) -> str:
        """Its dtype, as torch names it: ``float32``."""


# No kernel runs for these: they make another view of a tensor, or none at all.
_FREE = STRIDED_VIEWS | {
    "aten.reshape",
    "aten.view.dtype",
    "aten.view_as_complex",
    "aten.view_as_real",
    "hp.microbatch",
    "hp.wait",
    "literal",
}


@cache
def plain_name(target: str) -> str:
    """Return an operator's name without what a Program or the IR adds: ``aten.mm``, ``aten.slice.Tensor``."""
    return target.removeprefix("torch.").removesuffix(".default")


@cache
def is_free(target: str) -> bool:
    """Return whether an operator only makes a view, or is no tensor operator: nothing is computed or copied."""
    name = plain_name(target)
    return name in _FREE or name.startswith(("constant.", "prim.", "vtensor.", "sym_", "aten.sym_", "func."))


@cache
def item_bytes(dtype: str) -> int:
    """Return the bytes of an element: 4 for ``float32``, 1 for ``bool`` and ``float8_e4m3fn``."""
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits[0]) // 8) if bits else 1


def elements(shape: Shape) -> int:
    """Return the number of elements; unknown sizes count as 1."""
    return math.prod(1 if size is None else size for size in shape)


def tensor_bytes(tensor: Typed) -> int:
    """Return the bytes of a dense tensor; unknown sizes count as 1."""
    return elements(tensor.shape) * item_bytes(tensor.dtype)


def moved_bytes(target: str, operands: Sequence[Typed], results: Sequence[Typed]) -> int:
    """Return the bytes an operator reads and writes: all of its operands and results once; none for a view."""
    return 0 if is_free(target) else sum(map(tensor_bytes, (*operands, *results)))


def op_flops(target: str, operand_shapes: Sequence[Shape], result_shapes: Sequence[Shape]) -> int:
    """Return the floating-point operations of an operator, a multiplication and an addition counting as two.

    Matrix products, convolutions and attention are counted by their sizes, as torch's `FlopCounterMode` does; every
    other operator that computes counts one per element of its largest operand or result.

    Args:
        target: the operator.
        operand_shapes: shapes of its tensor operands, in order.
        result_shapes: shapes of its results.

    Example:
        >>> op_flops("aten.mm.default", [(8, 4), (4, 2)], [(8, 2)])
        128
    """
    if is_free(target):
        return 0
    count = _FORMULAS.get(plain_name(target))
    if count is not None and len(operand_shapes) >= count.operands and result_shapes:
        return count.flops(operand_shapes, result_shapes)
    return max(map(elements, (*operand_shapes, *result_shapes)), default=0)


class _Formula:
    def __init__(self, operands: int, flops: Callable[[Sequence[Shape], Sequence[Shape]], int]):
        self.operands = operands
        self.flops = flops


def _size(shape: Shape, dim: int) -> int:
    size = shape[dim] if -len(shape) <= dim < len(shape) else 1
    return 1 if size is None else size


def _product(first: int) -> _Formula:
    """Return the formula of a matrix product whose left factor is operand `first`."""
    return _Formula(first + 1, lambda given, made: 2 * elements(made[0]) * _size(given[first], -1))


def _convolution(given: Sequence[Shape], made: Sequence[Shape]) -> int:
    # Each output element is a product with one filter: all of the weight but its output channels.
    return 2 * elements(made[0]) * (elements(given[1]) // max(1, _size(given[1], 0)))


def _convolution_backward(given: Sequence[Shape], made: Sequence[Shape]) -> int:
    # As the forward, once for each of the input's and the weight's gradients. Operands: gradient, input, weight.
    wanted = sum(len(shape) == len(given[0]) for shape in made[:2])
    return wanted * 2 * elements(given[0]) * (elements(given[2]) // max(1, _size(given[2], 0)))


def _attention(query: int, products: int) -> _Formula:
    """Return the formula of attention: so many products of query rows with all keys. Queries are operand `query`."""

    def flops(given: Sequence[Shape], made: Sequence[Shape]) -> int:
        return products * 2 * elements(given[query]) * _size(given[query + 1], -2)

    return _Formula(query + 2, flops)


_ATTENTION = (
    "flash_attention",
    "flash_attention_for_cpu",
    "efficient_attention",
    "cudnn_attention",
    "fused_attention_overrideable",
)
_FORMULAS: dict[str, _Formula] = {
    "aten.mm": _product(0),
    "aten.bmm": _product(0),
    "aten.mv": _product(0),
    "aten.dot": _product(0),
    "aten.matmul": _product(0),
    "aten.linear": _product(0),
    "aten.addmm": _product(1),
    "aten.addmv": _product(1),
    "aten.baddbmm": _product(1),
    "aten._grouped_mm": _product(0),
    "aten._scaled_mm": _product(0),
    "aten.convolution": _Formula(2, _convolution),
    "aten.convolution_backward": _Formula(3, _convolution_backward),
    **{f"aten._scaled_dot_product_{kind}": _attention(0, 2) for kind in _ATTENTION},
    # Five products, the recomputed one included; operand 0 is the gradient.
    **{f"aten._scaled_dot_product_{kind}_backward": _attention(1, 5) for kind in _ATTENTION},
}
_COMPUTE_BOUND = frozenset(_FORMULAS)


@cache
def is_matrix_product(target: str) -> bool:
    """Return whether an operator's operations are those of matrix products, which run at the rate of its dtype."""
    return plain_name(target) in _COMPUTE_BOUND
