"""Which phase of the step each op of a function belongs to, and which of two ops stands first."""

from __future__ import annotations

from torch_mlir import ir

from ..dialect.diagnostics import IRError, error_at
from ..dialect.signature import body_of

FORWARD, BACKWARD = "forward", "backward"


class Phases:
    """The phase of every op of a function, from one walk over it.

    An op without `hp.phase` (one that MLIR's canonicalizer made, say) has the phase of the op before it that has one.
    Ops inserted after the walk must have `hp.phase`.

    Args:
        function: a `func.func` with one block.

    Raises:
        IRError: an op has a region: the phase of what stands in there, and when it runs, is unknown.
    """

    def __init__(self, function: ir.Operation):
        self._backward = ir.StringAttr.get(BACKWARD, function.context)
        # By first result: the hash of an op is that of its contents, which change, and which equal constants share.
        self._inherited: dict[ir.Value, str] = {}
        phase = FORWARD
        for view in body_of(function).operations:
            op = view.operation
            if len(op.regions):
                raise control_flow_error(op)
            attributes = op.attributes
            if "hp.phase" in attributes:
                phase = BACKWARD if attributes["hp.phase"] == self._backward else FORWARD
            elif phase == BACKWARD and len(op.results):
                self._inherited[op.results[0]] = phase

    def of(self, op: ir.Operation) -> str:
        """Return ``"forward"`` or ``"backward"``.

        A return is of the forward: what it returns as it is, an output, was asked for by the forward.
        """
        attributes = op.attributes
        if "hp.phase" in attributes:
            return BACKWARD if attributes["hp.phase"] == self._backward else FORWARD
        results = op.results
        return self._inherited.get(results[0], FORWARD) if len(results) else FORWARD


def control_flow_error(op: ir.Operation) -> IRError:
    """Build the error for an op that has a region."""
    return error_at(op, "is control flow; a step function is expected to be a straight line of ops")


def earlier(one: ir.Operation | None, other: ir.Operation | None) -> ir.Operation | None:
    """Return whichever of two ops of a block stands first; None stands for none."""
    if one is None or other is None:
        return one or other
    return other if other.is_before_in_block(one) else one
