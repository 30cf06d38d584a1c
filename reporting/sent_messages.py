"""Until when a rank keeps what it sends."""

from __future__ import annotations

from ..runtime.acknowledgements import acknowledgements
from ..runtime.program import Program


def kept_until(program: Program, position: int) -> dict[int, int]:
    """Return, by the number of a send in a position's training entry, the op after which its tensors may go.

    That is the wait for a message that says that this one has arrived, as at run time. A send that no message speaks of
    is left out: its tensors stay to the end of the step.
    """
    told = acknowledgements(program, "train", position)
    sent: dict[tuple[str, int], list[int]] = {}
    received: dict[int, tuple[tuple[str, int], int]] = {}
    counts: dict[tuple[str, int], int] = {}
    left: dict[tuple[str, int], int] = {}
    until: dict[int, int] = {}
    for number, op in enumerate(program.functions[program.train[position]].ops):
        if op.target in ("hp.send", "hp.recv"):
            peer = op.kwargs["peer"]
            assert isinstance(peer, int)
            link = str(op.kwargs["axis"]), peer
            if op.target == "hp.send":
                sent.setdefault(link, []).append(number)
            else:
                received[op.results[0]] = link, counts.get(link, 0)
                counts[link] = counts.get(link, 0) + 1
        elif op.target == "hp.wait":
            for value in op.operands():
                if value not in received:
                    continue
                link, message = received[value]
                known = told.get(link, ())
                arrived = known[message] if message < len(known) else 0
                before = left.get(link, 0)
                until.update(dict.fromkeys(sent.get(link, [])[before:arrived], number))
                left[link] = max(before, arrived)
    return until
