"""How much of what the forward computes stays alive for the backward."""

from __future__ import annotations

from torch_mlir import ir

from ...dialect.signature import body_of
from ...dialect.types import tensor_type
from ..phases import BACKWARD, Phases
from .regions import is_view


def kept_bytes(function: ir.Operation, phases: Phases) -> int:
    """Return the bytes of the forward's values that the backward uses, each memory counted once.

    A view is its operand's memory. Arguments and literals, which are alive anyhow, do not count; dynamic sizes count
    as 1.

    Args:
        function: a `func.func` with one block.
        phases: of the function.
    """
    base: dict[ir.Value, ir.Value | None] = dict.fromkeys(body_of(function).arguments)
    kept: set[ir.Value] = set()
    for view in body_of(function).operations:
        op = view.operation
        operands = list(op.operands)
        if phases.of(op) == BACKWARD:
            kept.update(memory for memory in map(base.get, operands) if memory is not None)
        elif len(op.results) and op.name != "torch.vtensor.literal":
            shares = is_view(op)
            memory = next((base[operand] for operand in operands if operand in base), None) if shares else None
            for result in op.results:
                if tensor_type(result.type) is not None:
                    base[result] = memory if shares else result
    return sum(type_.bytes for type_ in (tensor_type(value.type) for value in kept) if type_ is not None)
