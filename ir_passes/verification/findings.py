"""What a verification finds: all of it, in one error."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from ...dialect.diagnostics import Diagnostic, IRError, error_at

LIMIT = 20
"""Findings reported in full; one mistake of a pass often shows at every parameter."""


class Findings:
    """Gathers broken rules, so that a user sees them together."""

    def __init__(self) -> None:
        self._errors: list[Diagnostic] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    def add(
        self, op: ir.Operation, message: str, *, notes: Sequence[tuple[ir.Operation, str]] = (), named: bool = True
    ) -> None:
        """Note a broken rule; arguments as for `error_at`."""
        self._errors.extend(error_at(op, message, notes=notes, named=named).diagnostics)

    def raise_any(self) -> None:
        """Raise what was found.

        Raises:
            IRError: anything was.
        """
        if not self._errors:
            return
        shown = self._errors[:LIMIT]
        left = len(self._errors) - LIMIT
        if left > 0:
            shown.append(Diagnostic("error", "", f"{left} more error{'s' if left > 1 else ''} not shown"))
        raise IRError(shown)


def place_in_model(op: ir.Operation) -> str:
    """Return ``" (module 'layers.0')"`` for an op that knows the user's module, or an empty string."""
    module = op.attributes.get("hp.module")
    if isinstance(module, ir.StringAttr) and module.value:
        return f" (module '{module.value}')"
    return ""
