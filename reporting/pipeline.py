"""What a timeline says of a pipeline: what each position does when, its bubble, live microbatches, and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .timeline import RankTimeline, Task, Timeline

FORWARD = "forward"


@dataclass(frozen=True)
class PipelinePosition:
    """What ranks at one position of the pipeline axis do.

    Attributes:
        position: on the axis.
        timeline: of the ranks.
        stages: that they run, ascending.
        steady: when the first backward begins: before it is the warm-up.
        cool_down: when the last forward is over, or the steady state begins, if that is later.
        done: when the last task is over.
        bubble: the part of the step in which they are idle for other stages, of 1.
        stalled: how long compute stands still for other positions, before it has nothing more to do.
        live: the most pairs of a stage and a microbatch whose activations are alive at once: from the forward's end to
            the end of the backward, or of its last part. A stage that has no backward keeps none.
    """

    position: int
    timeline: RankTimeline
    stages: tuple[int, ...]
    steady: float
    cool_down: float
    done: float
    bubble: float
    stalled: float
    live: int


@dataclass(frozen=True, slots=True)
class Channel:
    """The messages that one position sends to another per step, in each column of ranks along the axis."""

    sender: int
    receiver: int
    messages: int
    size: int


@dataclass(frozen=True)
class Pipeline:
    """A timeline as a pipeline's.

    Attributes:
        axis: of the mesh.
        timeline: of all ranks.
        positions: one per timeline of ranks, by position, then by rank.
        channels: by sender, then by receiver.
    """

    axis: str
    timeline: Timeline
    positions: list[PipelinePosition]
    channels: list[Channel]

    @property
    def stages(self) -> int:
        """Stages of all positions."""
        return len({stage for position in self.positions for stage in position.stages})

    def first_ranks(self) -> list[PipelinePosition]:
        """Return one entry for each position: its first rank's."""
        return list({each.position: each for each in reversed(self.positions)}.values())[::-1]


def pipeline_of(timeline: Timeline) -> Pipeline | None:
    """Return a timeline as a pipeline's; None where there is no pipeline."""
    axis = timeline.axis
    if axis is None:
        return None
    positions = [_position(timeline, each, axis) for each in timeline.ranks]
    positions.sort(key=lambda each: (each.position, each.timeline.ranks))
    pipeline = Pipeline(axis, timeline, positions, [])
    pipeline.channels.extend(_channels(pipeline.first_ranks()))
    return pipeline


def _position(timeline: Timeline, each: RankTimeline, axis: str) -> PipelinePosition:
    steady, cool_down, done = phases(each.tasks)
    return PipelinePosition(
        position=timeline.mesh.coordinate(each.ranks[0])[axis],
        timeline=each,
        stages=tuple(sorted({task.stage for task in each.tasks})),
        steady=steady,
        cool_down=cool_down,
        done=done,
        bubble=timeline.bubble_of(each),
        stalled=each.stalled(axis),
        live=peak_live(each.tasks),
    )


def phases(tasks: Sequence[Task]) -> tuple[float, float, float]:
    """Return when a rank's steady state begins, when its cool-down does, and when that is over.

    Args:
        tasks: of the rank, in order. Where none is a backward, all is warm-up.
    """
    done = tasks[-1].end if tasks else 0.0
    steady = next((task.begin for task in tasks if task.kind != FORWARD), done)
    last = max((task.end for task in tasks if task.kind == FORWARD), default=0.0)
    return steady, max(steady, last), done


def peak_live(tasks: Sequence[Task]) -> int:
    """Return the most pairs of a stage and a microbatch whose activations are alive at once; see `PipelinePosition`."""
    ends = {(task.stage, task.microbatch): number for number, task in enumerate(tasks) if task.kind != FORWARD}
    live = peak = 0
    for number, task in enumerate(tasks):
        last = ends.get((task.stage, task.microbatch), -1)
        if task.kind == FORWARD:
            live += last > number
            peak = max(peak, live)
        elif last == number:
            live -= 1
    return peak


def _channels(positions: Sequence[PipelinePosition]) -> list[Channel]:
    sent: dict[tuple[int, int], list[int]] = {}
    for each in positions:
        for transfer in each.timeline.transfers:
            if transfer.kind == "send" and transfer.peer is not None:
                sent.setdefault((each.position, transfer.peer), []).append(transfer.size)
    return [Channel(*ends, len(sizes), sum(sizes)) for ends, sizes in sorted(sent.items())]
