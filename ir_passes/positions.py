"""Where each op of a function stands and which phase it belongs to, from one walk over the function."""

from __future__ import annotations

from torch_mlir import ir

from ..dialect.diagnostics import error_at
from ..dialect.signature import body_of

FORWARD, BACKWARD = "forward", "backward"


class Positions:
    """Position and phase of every op of a function at the time this is made; ops made later are unknown to it.

    An op without `hp.phase` (one that MLIR's canonicalizer made, say) has the phase of the op before it that has one.

    Args:
        function: a `func.func` with one block.

    Raises:
        IRError: an op has a region: what stands in there has no position.
    """

    def __init__(self, function: ir.Operation):
        # By first result: an op's hash is that of its contents, which change, and which equal constants share.
        self._index: dict[ir.Value, int] = {}
        self._without_results: list[tuple[ir.Operation, int]] = []
        self._phases: list[str] = []
        phase = FORWARD
        for number, view in enumerate(body_of(function).operations):
            op = view.operation
            if len(op.regions):
                raise error_at(op, "is control flow; a step function is expected to be a straight line of ops")
            attributes = op.attributes
            if "hp.phase" in attributes:
                phase = BACKWARD if str(attributes["hp.phase"]) == '"backward"' else FORWARD
            results = op.results
            if len(results):
                self._index[results[0]] = number
            else:
                self._without_results.append((op, number))
            self._phases.append(phase)

    def __len__(self) -> int:
        return len(self._phases)

    def of(self, op: ir.Operation) -> int:
        """Return the number of ops before `op`."""
        results = op.operation.results
        if len(results):
            return self._index[results[0]]
        return next(number for other, number in self._without_results if other == op.operation)

    def phase(self, op: ir.Operation) -> str:
        """Return ``"forward"`` or ``"backward"``."""
        return self._phases[self.of(op)]

    def earlier(self, one: ir.Operation | None, other: ir.Operation | None) -> ir.Operation | None:
        """Return whichever of two ops stands first; None stands for none."""
        if one is None or other is None:
            return one or other
        return one if self.of(one) <= self.of(other) else other
