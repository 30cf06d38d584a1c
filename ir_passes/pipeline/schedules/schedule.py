"""What a schedule is: which rank runs which stage's work on which microbatch, and in which order."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ....errors import HpirError

Kind = Literal["F", "B", "I", "W"]
"""Forward, whole backward, backward of the input (what the neighbour waits for), backward of the weights."""

KINDS: dict[Kind, str] = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
"""The task of a stage function by kind."""


class ScheduleError(HpirError):
    """A schedule is not defined for the counts asked for, or an order is wrong; the text says what would work."""


class Action(NamedTuple):
    """One stage's task on one microbatch."""

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.microbatch}"


@dataclass(frozen=True)
class Schedule:
    """An order of actions for every position of the pipeline axis.

    Every stage has either whole backwards (B) or pairs of input and weight backward (I, W), the same for all stages.

    Attributes:
        name: of the algorithm, or of a user's table.
        placement: the position that runs each stage.
        actions: per position, in the order in which it runs them.
    """

    name: str
    placement: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]

    @property
    def ranks(self) -> int:
        """Positions of the pipeline axis."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """Stages over all positions."""
        return len(self.placement)

    @property
    def microbatches(self) -> int:
        """Microbatches of one data rank's step."""
        return 1 + max((action.microbatch for order in self.actions for action in order), default=-1)

    @property
    def split_backward(self) -> bool:
        """Whether backwards are split into input and weight backwards."""
        return any(action.kind == "I" for order in self.actions for action in order)

    def needs(self, action: Action) -> tuple[Action, ...]:
        """Return the actions that must be done before `action`, whichever rank runs them."""
        kind, stage, microbatch = action
        if kind == "F":
            return (Action("F", stage - 1, microbatch),) if stage else ()
        if kind == "W":
            return (Action("I", stage, microbatch),)
        forward = Action("F", stage, microbatch)
        return (forward, Action(kind, stage + 1, microbatch)) if stage + 1 < self.stages else (forward,)


class RankOrder:
    """Writes down one rank's order: each call appends a stage's next microbatch.

    Microbatches from `microbatches` on are counted and not written. A schedule without all actions of some microbatch
    is a schedule still, for no microbatch waits for another; so an algorithm that is defined from some count on gives
    an order for fewer.
    """

    def __init__(self, microbatches: int) -> None:
        self.actions: list[Action] = []
        self._microbatches = microbatches
        self._next: defaultdict[tuple[Kind, int], int] = defaultdict(int)
        self._weights: deque[int] = deque()

    def forward(self, stage: int) -> None:
        """The stage's next forward."""
        self._append("F", stage)

    def backward(self, stage: int) -> None:
        """The stage's next whole backward."""
        self._append("B", stage)

    def backward_input(self, stage: int) -> None:
        """The stage's next input backward; its weight backward is owed."""
        self._append("I", stage)
        self._weights.append(stage)

    def backward_weight(self) -> None:
        """The weight backward that has been owed for longest."""
        self._append("W", self._weights.popleft())

    def backward_weights(self) -> None:
        """All weight backwards that are owed."""
        while self._weights:
            self.backward_weight()

    def _append(self, kind: Kind, stage: int) -> None:
        microbatch = self._next[kind, stage]
        self._next[kind, stage] += 1
        if microbatch < self._microbatches:
            self.actions.append(Action(kind, stage, microbatch))
