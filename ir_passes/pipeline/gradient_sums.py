"""Where a rank's function adds up what a stage function returns for each microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir

from ..views import CASTS, operator_name

ACCUMULATE = "hp.accumulate"


@dataclass(frozen=True, eq=False)
class GradientSum:
    """A sum over microbatches.

    Attributes:
        total: the sum of all.
        steps: for each microbatch but the first, the `hp.accumulate` that adds it, and which of its sums it is.
        cast: of the first microbatch's, to the dtype that is summed in; None where there is none.
    """

    total: ir.Value
    steps: tuple[tuple[ir.Operation, int], ...] = ()
    cast: ir.Operation | None = None


def find_sum(calls: Sequence[ir.Operation], number: int) -> GradientSum | None:
    """Return the sum of result `number` over all calls of a function; None where it is not one chain of additions.

    Args:
        calls: all of one function in a rank's function, in order.
        number: of the result.
    """
    total: ir.Value = calls[0].results[number]
    cast: ir.Operation | None = None
    steps: list[tuple[ir.Operation, int]] = []
    if len(calls) > 1:
        use = _only_use(total)
        if use is not None and operator_name(use.owner.operation) in CASTS:
            cast = use.owner.operation
            total = cast.results[0]
    for call in calls[1:]:
        use, added = _only_use(total), _only_use(call.results[number])
        if use is None or added is None or use.owner.operation.name != ACCUMULATE or added.owner != use.owner:
            return None
        op, place = use.owner.operation, use.operand_number
        if added.operand_number != place + len(op.results):
            return None
        steps.append((op, place))
        total = op.results[place]
    return GradientSum(total, tuple(steps), cast)


def _only_use(value: ir.Value) -> ir.OpOperand | None:
    uses = list(value.uses)
    return uses[0] if len(uses) == 1 else None
