"""What a schedule gives where every task takes the same time and communication none: length, bubble and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .schedule import Action, Kind, Schedule, ScheduleError

UNIT: Mapping[Kind, float] = MappingProxyType({"F": 1, "B": 2, "I": 1, "W": 1})
"""Forward, input backward and weight backward take equally long."""

_SHOWN = 8
"""Actions that a message about a cycle names."""


@dataclass(frozen=True)
class Simulation:
    """A schedule, run with given durations.

    Attributes:
        starts: when each action starts.
        makespan: when the last action ends.
        bubble: the part of all ranks' time up to then in which they are idle, of 1.
        peaks: per rank, the most pairs of a stage and a microbatch whose activations are alive at once: from the
            forward to the end of the backward, or of the weight backward where it is split.
    """

    starts: Mapping[Action, float]
    makespan: float
    bubble: float
    peaks: tuple[int, ...]


def simulate(schedule: Schedule, durations: Mapping[Kind, float] = UNIT) -> Simulation:
    """Run a schedule: every rank runs its actions in order, each as soon as what it needs is done.

    Linear in actions.

    Raises:
        ScheduleError: ranks wait for each other; the text names the actions of the cycle.
    """
    ends: dict[Action, float] = {}
    starts: dict[Action, float] = {}
    positions = [0] * schedule.ranks
    clocks = [0.0] * schedule.ranks
    waiting: dict[Action, list[int]] = {}
    runnable = list(range(schedule.ranks))
    while runnable:
        rank = runnable.pop()
        order = schedule.actions[rank]
        while positions[rank] < len(order):
            action = order[positions[rank]]
            needs = schedule.needs(action)
            missing = next((need for need in needs if need not in ends), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            starts[action] = max([clocks[rank], *(ends[need] for need in needs)])
            clocks[rank] = ends[action] = starts[action] + durations[action.kind]
            positions[rank] += 1
            runnable += waiting.pop(action, ())
    if waiting:
        raise ScheduleError(_cycle(schedule, positions, waiting))
    makespan = max(clocks)
    work = sum(durations[action.kind] for action in ends)
    bubble = 1 - work / (makespan * schedule.ranks) if makespan else 0.0
    return Simulation(starts, makespan, bubble, tuple(map(_peak, schedule.actions)))


def _peak(order: tuple[Action, ...]) -> int:
    alive = peak = 0
    for action in order:
        if action.kind == "F":
            alive += 1
            peak = max(peak, alive)
        elif action.kind != "I":
            alive -= 1
    return peak


def _cycle(schedule: Schedule, positions: list[int], waiting: Mapping[Action, list[int]]) -> str:
    needed = {rank: need for need, ranks in waiting.items() for rank in ranks}
    path: list[int] = []
    rank = min(needed)
    while rank not in path:
        path.append(rank)
        rank = schedule.placement[needed[rank].stage]
        if rank not in needed:  # it has run all it has
            rank = path[-1]
            head = schedule.actions[rank][positions[rank]]
            return f"rank {rank}: {head} needs {needed[rank]}, which is in no rank's order"
    cycle = path[path.index(rank) :]
    heads = [schedule.actions[member][positions[member]] for member in cycle[:_SHOWN]]
    if len(cycle) == 1:
        return f"rank {rank}: {heads[0]} needs {needed[rank]}, which comes later on the same rank"
    steps = [
        f"{head} of rank {member} needs {needed[member]} of rank {schedule.placement[needed[member].stage]}"
        for head, member in zip(heads, cycle, strict=False)
    ]
    more = [f"{len(cycle) - _SHOWN} more"] if len(cycle) > _SHOWN else []
    return "ranks wait for each other: " + ", ".join([*steps, *more])
