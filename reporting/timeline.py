"""What ranks do when: blocks of operators, communication under way, and how long compute stood still for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..mesh import Mesh


@dataclass(slots=True)
class Block:
    """Something a rank's compute did from `begin` to `end`, in seconds from the begin of the step.

    Attributes:
        kind: ``compute``, ``launch`` (communication is started) or ``wait`` (nothing is done until something arrives).
        module: that its operators came from.
        phase: ``forward``, ``backward`` or empty.
        ops: how many operators.
    """

    begin: float
    end: float
    kind: str
    module: str
    phase: str
    ops: int


@dataclass(slots=True)
class Task:
    """A call of a stage's function, from `begin` to `end`.

    Attributes:
        stage: of the pipeline.
        kind: ``forward``, ``backward``, ``backward_input`` or ``backward_weight``.
        microbatch: that it is for.
    """

    stage: int
    kind: str
    microbatch: int
    begin: float
    end: float = 0.0


@dataclass(slots=True)
class Transfer:
    """A collective or a message of a rank.

    Attributes:
        lane: which of the rank's communication lanes: what is in one lane goes one after the other.
        kind: ``all_gather``, ..., ``send`` or ``recv``.
        name: for people: its bucket, its members or the module it is for; empty where none of these is known.
        axes: mesh axes it goes over.
        function: that starts it.
        op: which op there.
        module: of the op.
        phase: of the op.
        size: bytes of the whole tensors.
        launched: when the rank started it.
        begin: when data began to move; measured, the same as `launched`.
        end: when all had arrived; measured, when that was noticed.
        waited: when compute came to its wait; None where nothing waits.
        exposed: how long compute then stood still.
        peer: of a message, the position of the other rank on the axis; None for a collective.
    """

    lane: str
    kind: str
    name: str
    axes: tuple[str, ...]
    function: str
    op: int
    module: str
    phase: str
    size: int
    launched: float
    begin: float = 0.0
    end: float = 0.0
    waited: float | None = None
    exposed: float = 0.0
    peer: int | None = None

    @property
    def title(self) -> str:
        """Its kind and name: ``all-gather layers.0``."""
        return f"{self.kind.replace('_', '-')} {self.name}".rstrip()


@dataclass
class RankTimeline:
    """One timeline, and the ranks that have it.

    Attributes:
        ranks: that do the same at the same time; one, where it was measured.
        entry: the function they enter.
        blocks: of the compute lane, in order.
        transfers: of the communication lanes, in the order they were launched.
        tasks: calls of stage functions, in order.
        end: when the last of them was done.
    """

    ranks: tuple[int, ...]
    entry: str
    blocks: list[Block] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    end: float = 0.0

    @property
    def lanes(self) -> list[str]:
        """The communication lanes, by name."""
        return sorted({transfer.lane for transfer in self.transfers})

    def busy(self) -> float:
        """Return how long compute did something."""
        return sum(block.end - block.begin for block in self.blocks if block.kind != "wait")

    def exposed(self) -> float:
        """Return how long compute stood still for communication."""
        return sum(transfer.exposed for transfer in self.transfers)

    def stalled(self, axis: str) -> float:
        """Return how long compute stood still for other ranks along an axis: a pipeline's, for other stages."""
        return sum(transfer.exposed for transfer in self.transfers if axis in transfer.axes)

    def stopped(self) -> float:
        """Return when compute had nothing more to do."""
        return self.blocks[-1].end if self.blocks else 0.0


@dataclass
class Timeline:
    """The timelines of all ranks.

    Attributes:
        source: ``simulated`` or ``measured``.
        mesh: of the Program.
        seconds: from the begin of the step to the end of the last rank's.
        ranks: the timelines; each rank is in one.
        axis: of the pipeline; None where there is none.
    """

    source: str
    mesh: Mesh
    seconds: float
    ranks: list[RankTimeline]
    axis: str | None = None

    def of(self, rank: int) -> RankTimeline | None:
        """Return the timeline that a rank has; None for one that was not measured."""
        return next((timeline for timeline in self.ranks if rank in timeline.ranks), None)

    def bubble_of(self, timeline: RankTimeline) -> float:
        """Return which part of the step ranks are idle in a pipeline.

        That is: they wait for other stages, or for the last to end. Waiting for data ranks of one's own stage is none.
        """
        if self.axis is None or not self.seconds:
            return 0.0
        return (timeline.stalled(self.axis) + self.seconds - timeline.stopped()) / self.seconds

    def bubble(self) -> float:
        """Return which part of all ranks' time is idle in a pipeline."""
        ranks = sum(len(timeline.ranks) for timeline in self.ranks)
        idle = sum(self.bubble_of(timeline) * len(timeline.ranks) for timeline in self.ranks)
        return idle / ranks if ranks else 0.0


@dataclass(frozen=True)
class Exposure:
    """How much of one communication op's time compute stood still for, over all the times it ran.

    Attributes:
        transfer: its first run.
        runs: how often it ran.
        seconds: how long it was under way, together.
        exposed: how long compute stood still for it, together.
    """

    transfer: Transfer
    runs: int
    seconds: float
    exposed: float

    @property
    def place(self) -> tuple[str, int]:
        """The function, and which op there."""
        return self.transfer.function, self.transfer.op


def exposures(timeline: RankTimeline) -> list[Exposure]:
    """Return the communication ops of a rank, those that compute waited for the longest first."""
    runs: dict[tuple[str, int], list[Transfer]] = {}
    for transfer in timeline.transfers:
        runs.setdefault((transfer.function, transfer.op), []).append(transfer)
    listed = [
        Exposure(each[0], len(each), sum(run.end - run.begin for run in each), sum(run.exposed for run in each))
        for each in runs.values()
    ]
    return sorted(listed, key=lambda exposure: (-exposure.exposed, -exposure.seconds))


def merged(blocks: list[Block]) -> Iterator[Block]:
    """Yield blocks with those of one module and phase that follow one another put together."""
    held: Block | None = None
    for block in blocks:
        if (
            held is not None
            and held.kind == block.kind == "compute"
            and (held.module, held.phase) == (block.module, block.phase)
            and block.begin <= held.end
        ):
            held = Block(held.begin, block.end, held.kind, held.module, held.phase, held.ops + block.ops)
            continue
        if held is not None:
            yield held
        held = block
    if held is not None:
        yield held
