"""Operators that only make another view of a tensor: what passes, the cost model and reports know of them.

Nothing here imports torch or MLIR.
"""

from __future__ import annotations

STRIDED_VIEWS = frozenset(
    {
        "aten._reshape_alias",
        "aten._unsafe_view",
        "aten.alias",
        "aten.detach",
        "aten.diagonal",
        "aten.expand",
        "aten.numpy_T",
        "aten.permute",
        "aten.select.int",
        "aten.slice.Tensor",
        "aten.split.Tensor",
        "aten.split_with_sizes",
        "aten.squeeze",
        "aten.squeeze.dim",
        "aten.squeeze.dims",
        "aten.t",
        "aten.transpose.int",
        "aten.unbind.int",
        "aten.unsqueeze",
        "aten.view",
    }
)
"""Views whatever the strides of their operand, in its dtype; a default overload is left out of a name."""
