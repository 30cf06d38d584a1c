"""Whether an order of actions is a schedule: everything once, on its rank, after what it needs."""

from __future__ import annotations

from .schedule import Action, Kind, Schedule, ScheduleError
from .simulate import simulate


def validate(schedule: Schedule, microbatches: int) -> None:
    """Check that every task of every stage is run exactly once per microbatch, where and when it can be.

    Args:
        schedule: what to check.
        microbatches: how many each stage has to run.

    Raises:
        ScheduleError: the text names rank and action.
    """
    ranks, stages = schedule.ranks, schedule.stages
    for stage, rank in enumerate(schedule.placement):
        if not 0 <= rank < ranks:
            raise ScheduleError(f"stage {stage} is placed on rank {rank}, expected 0 to {ranks - 1}")
    seen: dict[Action, int] = {}
    for rank, order in enumerate(schedule.actions):
        for action in order:
            _check_place(schedule, rank, action, microbatches)
            if action in seen:
                raise ScheduleError(f"rank {rank}: {action} is there twice")
            seen[action] = rank
    kinds: tuple[Kind, ...] = ("F", "I", "W") if schedule.split_backward else ("F", "B")
    for stage in range(stages):
        for microbatch in range(microbatches):
            for kind in kinds:
                action = Action(kind, stage, microbatch)
                if action not in seen:
                    raise ScheduleError(f"rank {schedule.placement[stage]}: {action} is missing")
    if len(seen) != len(kinds) * stages * microbatches:
        stray = next(action for action in seen if action.kind not in kinds)
        other = "no I of its stage and microbatch" if stray.kind == "W" else "input and weight backwards"
        raise ScheduleError(f"rank {seen[stray]}: {stray} beside {other}")
    simulate(schedule)


def _check_place(schedule: Schedule, rank: int, action: Action, microbatches: int) -> None:
    if not 0 <= action.stage < schedule.stages:
        raise ScheduleError(f"rank {rank}: {action} is of no stage, expected stages 0 to {schedule.stages - 1}")
    if not 0 <= action.microbatch < microbatches:
        raise ScheduleError(f"rank {rank}: {action} is of no microbatch, expected 0 to {microbatches - 1}")
    if schedule.placement[action.stage] != rank:
        raise ScheduleError(f"rank {rank}: {action} belongs to rank {schedule.placement[action.stage]}")
