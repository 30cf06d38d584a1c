"""Rule V23: ranks that wait for each other in a circle, told as a circle."""

from __future__ import annotations

from collections.abc import Mapping

from torch_mlir import ir

from .channels import Group, Traffic
from .findings import Findings
from .rank_execution import Arrival
from .rank_functions import RankFunction


def report_deadlock(
    blocked: Mapping[int, tuple[ir.Operation, Arrival]],
    ranks: tuple[RankFunction, ...],
    traffic: Traffic,
    findings: Findings,
) -> None:
    """Report the circle that the lowest blocked position waits in.

    Args:
        blocked: by position, the wait that it cannot pass. All ends match, so what it waits for stands behind another
            position's wait.
        ranks: the functions of all positions.
        traffic: of these.
        findings: gets the error.
    """
    path: list[int] = []
    position = min(blocked)
    missing: dict[int, tuple[int, ir.Operation]] = {}
    while position not in path:
        path.append(position)
        missing[position] = _missing(position, blocked, traffic)
        position = missing[position][0]
    circle = path[path.index(position) :]
    start = circle.index(min(circle))
    circle = circle[start:] + circle[:start]
    told = ", ".join(f"@{ranks[here].name} waits for @{ranks[missing[here][0]].name}" for here in circle)
    notes: list[tuple[ir.Operation, str]] = []
    for here in circle:
        other, op = missing[here]
        if here != circle[0]:
            notes.append((blocked[here][0], f"@{ranks[here].name} waits here for @{ranks[other].name}"))
        notes.append((op, f"@{ranks[other].name} would come to what @{ranks[here].name} waits for here"))
    findings.add(blocked[circle[0]][0], f"deadlock: {told}", notes=notes)


def _missing(
    position: int, blocked: Mapping[int, tuple[ir.Operation, Arrival]], traffic: Traffic
) -> tuple[int, ir.Operation]:
    """Return the position that a blocked one waits for, and the op there that would end the wait."""
    _, arrival = blocked[position]
    place, number = arrival.place, arrival.number
    if not isinstance(place, Group):
        return place[0], traffic.sends[place][number].op
    ends = traffic.collectives[place]
    return next(
        (other, ends[other][number].op)
        for other in place.positions
        if other in blocked and not _reached(blocked[other][0], ends[other][number].op)
    )


def _reached(wait: ir.Operation, op: ir.Operation) -> bool:
    """Return whether a rank that is blocked at `wait` has passed `op` of the same function."""
    return bool(op.is_before_in_block(wait))
