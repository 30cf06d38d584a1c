"""Which of its messages a rank knows to have arrived when it has received one.

What a peer sends after it has waited for a message says that the message is there. Pairs of ranks run fixed lists of
ops, so that this is known before they run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .program import Function, Op, Program

Acknowledgements = Mapping[tuple[str, int], Sequence[int]]
"""By axis and position of a peer: for each message received from it, how many of those sent to it have arrived."""


def acknowledgements(program: Program, kind: str, position: int) -> Acknowledgements:
    """Return what the messages that a pipeline coordinate receives say of those that it sends.

    Args:
        program: a valid Program.
        kind: "train" or "evaluate".
        position: on the pipeline axis.
    """
    axis = program.pipeline_axis
    names = program.train if kind == "train" else program.evaluate
    if axis is None:
        return {}
    entries = [program.functions[name] for name in names]
    peers = sorted({_peer(op) for op in entries[position].ops if _is_message(op, axis)})
    return {(axis, peer): _arrived(entries[peer], axis, position) for peer in peers}


def _is_message(op: Op, axis: str) -> bool:
    return op.target in ("hp.send", "hp.recv") and op.kwargs.get("axis") == axis


def _peer(op: Op) -> int:
    peer = op.kwargs["peer"]
    assert isinstance(peer, int)
    return peer


def _arrived(peer: Function, axis: str, position: int) -> list[int]:
    """Return, for each send of `peer` to a position, how many receives from there it has waited for before."""
    number: dict[int, int] = {}  # of the receive that a future is of
    waited: set[int] = set()
    arrived = 0
    counts = []
    for op in peer.ops:
        if _is_message(op, axis) and _peer(op) == position:
            if op.target == "hp.recv":
                number[op.results[0]] = len(number)
            else:
                counts.append(arrived)
        elif op.target == "hp.wait":
            waited.update(number[value] for value in op.operands() if value in number)
            while arrived in waited:
                arrived += 1
    return counts
