"""A function's ops as blocks: runs of neighbouring operators of one module and phase, and what stands between them."""

from __future__ import annotations

from dataclasses import dataclass

from .program import COLLECTIVES, Function

STARTS = frozenset({*COLLECTIVES, "hp.send", "hp.recv"})
"""Ops that start communication."""


@dataclass(frozen=True, slots=True)
class OpBlock:
    """Neighbouring ops of a function: `first` up to, not including, `last`.

    Attributes:
        kind: ``compute``, ``start`` (one op that starts communication), ``wait`` or ``call`` (one op each).
        module: that the ops came from.
        phase: ``forward``, ``backward`` or empty.
    """

    kind: str
    first: int
    last: int
    module: str = ""
    phase: str = ""


def op_blocks(function: Function) -> tuple[OpBlock, ...]:
    """Return the blocks of a function, in order; each op is in one."""
    blocks: list[OpBlock] = []
    first, where = 0, ("", "")

    def close(last: int) -> None:
        if last > first:
            blocks.append(OpBlock("compute", first, last, *where))

    for number, op in enumerate(function.ops):
        here = op.module, op.phase
        kind = {"hp.wait": "wait", "call": "call"}.get(op.target, "start" if op.target in STARTS else "")
        if kind:
            close(number)
            blocks.append(OpBlock(kind, number, number + 1, *here))
            first = number + 1
        elif number == first:
            where = here
        elif here not in (where, ("", "")):
            # What does not say where it came from stays with the ops around it.
            close(number)
            first, where = number, here
    close(len(function.ops))
    return tuple(blocks)
