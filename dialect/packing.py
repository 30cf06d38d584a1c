"""The ops of the `hp` dialect that put the tensors of a bucket into one, and take them out again."""

# No `from __future__ import annotations` here: the dialect is defined by the annotations, which must be objects.
from collections.abc import Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects.ext import Operand, Pure, Result

from . import contracts
from .hp import VariadicOp


class PackOp(VariadicOp, name="pack", traits=[Pure]):
    """Lay tensors out one after the other in one dim: what one collective is given for a bucket.

    Each operand is cut into `ranks` equal pieces along its dim. For each rank, in order, the result has that rank's
    piece of every operand, row by row, and behind each piece padding (of no meaning) up to a multiple of `alignment`
    elements. Operands of several dtypes lie there as their bytes: the result is of `ui8`, and `alignment` counts bytes.
    At run time it is no copy where the operands lie like this already.

    - C1: at least one operand; operands are tensors of static shape.
    - C2: `ranks` and `alignment` are at least 1; with several dtypes the size of each element divides `alignment`.
    - C3: with `ranks` above 1, `dims` has one dim per operand, within the operand's rank, whose size `ranks` divides;
      otherwise there is no `dims`.
    - C4: the result has one dim, of `ranks` times the pieces of all operands, padding included, and the operands'
      dtype, or `ui8` where they differ.

    ```mlir
    %p = "hp.pack"(%a, %b) {ranks = 2 : i64, dims = array<i64: 0, 1>, alignment = 4 : i64}
        : (!torch.vtensor<[4,3],f32>, !torch.vtensor<[2,2],f32>) -> !torch.vtensor<[24],f32>
    ```
    """

    inputs: Sequence[Operand[Any]]
    ranks: ir.IntegerAttr
    alignment: ir.IntegerAttr
    packed: Result[Any]

    def verify_contract(self) -> bool:  # noqa: D102
        return contracts.verify_pack(self.operation)


class UnpackOp(VariadicOp, name="unpack", traits=[Pure]):
    """Take tensors out of one that has them one after the other: the inverse of `hp.pack`, padding dropped.

    With `layout = "packed"` each result owns its memory, so that freeing one does not keep the others. With
    `layout = "flat"` the results are views of one piece of memory.

    - C1: at least one result; results are tensors of static shape.
    - C2: `ranks` and `alignment` are at least 1; with several dtypes the size of each element divides `alignment`.
    - C3: with `ranks` above 1, `dims` has one dim per result, within the result's rank, whose size `ranks` divides;
      otherwise there is no `dims`.
    - C4: the operand is what `hp.pack` would make of the results.
    - C5: `layout` is "packed" or "flat".

    ```mlir
    %a, %b = "hp.unpack"(%p) {ranks = 2 : i64, dims = array<i64: 0, 1>, alignment = 4 : i64, layout = "packed"}
        : (!torch.vtensor<[24],f32>) -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[2,2],f32>)
    ```
    """

    packed: Operand[Any]
    ranks: ir.IntegerAttr
    alignment: ir.IntegerAttr
    layout: ir.StringAttr
    values: Sequence[Result[Any]]

    def verify_contract(self) -> bool:  # noqa: D102
        return contracts.verify_unpack(self.operation)
