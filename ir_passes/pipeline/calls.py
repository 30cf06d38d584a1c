"""The calls of each rank: the actions of a schedule with the stage functions that carry them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...dialect.diagnostics import error_at
from ..stage_function import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, StageFunction
from .schedules import Schedule
from .staged import StagedModule

_TASKS = {
    "F": (FORWARD,),
    "B": (BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT),
    "I": (BACKWARD_INPUT,),
    "W": (BACKWARD_WEIGHT,),
}
"""The tasks that carry out an action of each kind, in order; functions that do not exist are passed over."""


@dataclass(frozen=True, slots=True)
class Call:
    """A stage function run for one microbatch."""

    function: StageFunction
    microbatch: int

    def __str__(self) -> str:
        return f"{self.function} of microbatch {self.microbatch}"


Calls = tuple[tuple[Call, ...], ...]
"""Per position on the pipeline axis, its calls in order."""


@dataclass(frozen=True, slots=True)
class Place:
    """A call's position on the pipeline axis and its index among the calls there."""

    position: int
    index: int


def training_calls(staged: StagedModule, schedule: Schedule) -> Calls:
    """Return the calls of a training step.

    Raises:
        IRError: the schedule splits the backward and the module does not.
    """
    whole = [function for function in staged.functions.values() if function.task == BACKWARD]
    split = any(action.kind in ("I", "W") for actions in schedule.actions for action in actions)
    if split and whole:
        raise error_at(
            whole[0].op,
            f"schedule '{schedule.name}' runs the backward in two parts and {whole[0]} is whole: "
            "split the stages with hp-split-stages{split-backward}",
        )
    return _calls(staged, schedule, ("F", "B", "I", "W"))


def evaluation_calls(staged: StagedModule, schedule: Schedule) -> Calls:
    """Return the calls of a forward-only step: the forwards, in the order in which training runs them."""
    return _calls(staged, schedule, ("F",))


def _calls(staged: StagedModule, schedule: Schedule, kinds: Sequence[str]) -> Calls:
    return tuple(
        tuple(
            Call(staged.functions[action.stage, task], action.microbatch)
            for action in actions
            if action.kind in kinds
            for task in _TASKS[action.kind]
            if (action.stage, task) in staged.functions
        )
        for actions in schedule.actions
    )


def places_of(calls: Calls) -> dict[tuple[str, int], Place]:
    """Return where each call stands, by function name and microbatch."""
    return {
        (call.function.name, call.microbatch): Place(position, index)
        for position, own in enumerate(calls)
        for index, call in enumerate(own)
    }


def check_order(staged: StagedModule, calls: Calls, name: str) -> None:
    """Refuse calls that can never all run: each waits for the calls before it and for those that make what it takes.

    Args:
        staged: the module.
        calls: of all positions, in a training step; the forwards alone can run if these can.
        name: of the schedule, for messages.

    Raises:
        IRError: calls wait for each other; the text names them.
    """
    places = places_of(calls)
    done = [0] * len(calls)
    waiting: dict[tuple[str, int], list[int]] = {}
    ready = list(range(len(calls)))
    while ready:
        position = ready.pop()
        while done[position] < len(calls[position]):
            call = calls[position][done[position]]
            missing = _missing(staged, call, places, done)
            if missing is not None:
                waiting.setdefault((missing.function.name, missing.microbatch), []).append(position)
                break
            done[position] += 1
            ready += waiting.pop((call.function.name, call.microbatch), [])
    said: list[tuple[Call, str]] = []
    for position, own in enumerate(calls):
        missing = None if done[position] == len(own) else _missing(staged, own[done[position]], places, done)
        if missing is not None:
            call, place = own[done[position]], places[missing.function.name, missing.microbatch]
            where = f"call {place.index} of rank {place.position}"
            said.append((call, f"rank {position}: call {done[position]}, {call}, waits for {missing}, {where}"))
    if said:
        (first, text), *others = said
        notes = [(call.function.op, other) for call, other in others]
        raise error_at(first.function.op, f"schedule '{name}' cannot run: {text}", notes=notes)


def _missing(
    staged: StagedModule, call: Call, places: Mapping[tuple[str, int], Place], done: Sequence[int]
) -> Call | None:
    """Return a call that makes what this one takes and has not run."""
    for info in call.function.taken:
        maker = staged.makers[info.name]
        place = places[maker.name, call.microbatch]
        if done[place.position] <= place.index:
            return Call(maker, call.microbatch)
    return None
