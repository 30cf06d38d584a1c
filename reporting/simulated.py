"""When the ranks of a Program do what, by a cost model.

A rank's compute runs its ops one after the other. A collective begins when all members of its group have started it and
its lane is free: a group has one lane, as a communicator of NCCL has one stream, and different groups do not slow each
other down. A message begins when sender and receiver have started it; the messages from one rank to another are in
order. ``hp.wait`` holds compute until the data are there: that is exposed communication.

Ranks that enter the same function do the same at the same time, because the costs are the same: one of each is enough,
however many data ranks there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field

from ..costs import Costs
from ..errors import RuntimeFault
from ..runtime.program import Program
from .names import lane_name, microbatch_of, transfer_name
from .segments import Communication, Segment, SegmentedProgram
from .timeline import Block, RankTimeline, Task, Timeline, Transfer


def simulate_timeline(segments: SegmentedProgram) -> Timeline:
    """Return the timeline of a training step.

    Raises:
        RuntimeFault: the ranks wait for each other and none can go on.
    """
    return _Simulation(segments).run()


@dataclass(slots=True)
class _Meeting:
    """A collective that not all have started, or a message that one side has not."""

    ranks: frozenset[int]
    seconds: float
    arrived: dict[int, Transfer] = field(default_factory=dict)


@dataclass(slots=True)
class _Channel:
    """The meetings that have something in common, in order: each rank's n-th part is of the n-th of them.

    Attributes:
        open: those that are not complete.
        complete: how many came before them.
        started: by pipeline position, how many it has started its part of.
    """

    open: deque[_Meeting] = field(default_factory=deque)
    complete: int = 0
    started: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Rank:
    """One position on the pipeline axis."""

    position: int
    timeline: RankTimeline
    now: float = 0.0
    blocked: Transfer | None = None
    done: set[int] = field(default_factory=set)


class _Simulation:
    def __init__(self, segments: SegmentedProgram):
        self.segments = segments
        self.program: Program = segments.program
        self.costs: Costs = segments.costs
        program = self.program
        self.axis = program.pipeline_axis
        positions = range(len(program.train))
        members: list[list[int]] = [[] for _ in positions]
        for rank in range(program.mesh.size):
            members[self._position(rank)].append(rank)
        self.ranks = [_Rank(p, RankTimeline(tuple(members[p]), program.train[p])) for p in positions]
        self.channels: dict[tuple[object, ...], _Channel] = {}
        self.free: dict[tuple[int, str], float] = {}
        self.resolved: set[int] = set()

    def _position(self, rank: int) -> int:
        return self.program.mesh.coordinate(rank)[self.axis] if self.axis else 0

    def run(self) -> Timeline:
        running = [self._enter(rank, rank.timeline.entry, {}) for rank in self.ranks]
        left = set(range(len(running)))
        while left:
            before = len(self.resolved), len(left)
            for number in sorted(left):
                if next(running[number], False) is False:
                    left.discard(number)
            if (len(self.resolved), len(left)) == before:
                raise RuntimeFault(self._deadlock(left))
        for rank in self.ranks:
            last = max((transfer.end for transfer in rank.timeline.transfers), default=0.0)
            rank.timeline.end = max(rank.now, last)
        seconds = max(rank.timeline.end for rank in self.ranks)
        return Timeline("simulated", self.program.mesh, seconds, [rank.timeline for rank in self.ranks], self.axis)

    def _deadlock(self, left: set[int]) -> str:
        lines = [f"deadlock: {len(left)} of {len(self.ranks)} pipeline positions cannot proceed"]
        for number in sorted(left):
            transfer = self.ranks[number].blocked
            if transfer is not None:
                lines.append(f"  position {number}: {transfer.function}: op {transfer.op} waits for {transfer.kind}")
        return "\n".join(lines)

    def _enter(self, rank: _Rank, name: str, futures: dict[int, Transfer]) -> Generator[bool, None, None]:
        """Run a function on a rank; yields while it is blocked."""
        blocks = rank.timeline.blocks
        for segment in self.segments.function(name):
            begin = rank.now
            if segment.kind == "call":
                task = self._task(name, segment, begin)
                if task is not None:
                    rank.timeline.tasks.append(task)
                yield from self._enter(rank, segment.callee, {})
                if task is not None:
                    task.end = rank.now
            elif segment.kind == "wait":
                transfer = futures[segment.future]
                while id(transfer) not in self.resolved:
                    rank.blocked = transfer
                    yield True
                rank.blocked = None
                transfer.waited, transfer.exposed = begin, max(0.0, transfer.end - begin)
                rank.now = max(begin, transfer.end)
                blocks.append(Block(begin, rank.now, "wait", segment.module, segment.phase, 1))
            else:
                rank.now += segment.seconds
                kind = "launch" if segment.kind == "start" else "compute"
                ops = segment.last - segment.first
                blocks.append(Block(begin, rank.now, kind, segment.module, segment.phase, ops))
                if segment.communication is not None:
                    transfer = self._start(rank, name, segment, segment.communication)
                    if segment.future >= 0:
                        futures[segment.future] = transfer

    def _task(self, name: str, segment: Segment, begin: float) -> Task | None:
        """Return the task that a call is; None where the callee is no stage's."""
        callee = self.program.functions[segment.callee]
        if callee.stage is None:
            return None
        return Task(callee.stage, callee.task, microbatch_of(self.program.functions[name].ops[segment.first]), begin)

    def _start(self, rank: _Rank, function: str, segment: Segment, moved: Communication) -> Transfer:
        op = self.program.functions[function].ops[segment.first]
        key, ranks = self._meeting_place(rank, moved)
        transfer = Transfer(
            lane=lane_name(op),
            kind=moved.kind,
            name=transfer_name(op),
            axes=moved.axes,
            function=function,
            op=segment.first,
            module=op.module,
            phase=op.phase,
            size=moved.size,
            launched=rank.now,
            peer=moved.peer,
        )
        rank.timeline.transfers.append(transfer)
        channel = self.channels.setdefault(key, _Channel())
        number = channel.started.get(rank.position, 0)
        channel.started[rank.position] = number + 1
        if number == channel.complete + len(channel.open):
            channel.open.append(_Meeting(ranks, moved.seconds))
        channel.open[number - channel.complete].arrived[rank.position] = transfer
        while channel.open and len(channel.open[0].arrived) == len(channel.open[0].ranks):
            self._resolve(channel.open.popleft())
            channel.complete += 1
        return transfer

    def _meeting_place(self, rank: _Rank, moved: Communication) -> tuple[tuple[object, ...], frozenset[int]]:
        """Return what a communication has in common with the others' part of it, and the pipeline positions in it."""
        if moved.axes != (self.axis,) and (self.axis is None or self.axis not in moved.axes):
            # Within one position all ranks do the same at the same time.
            return (moved.axes, moved.coordinates, moved.kind, rank.position), frozenset((rank.position,))
        if moved.peer is not None:
            ends = (rank.position, moved.peer) if moved.kind == "send" else (moved.peer, rank.position)
            return ("message", *ends), frozenset(ends)
        members = frozenset(range(len(self.ranks)) if moved.coordinates is None else moved.coordinates)
        return (moved.axes, moved.coordinates), members

    def _resolve(self, meeting: _Meeting) -> None:
        sides = meeting.arrived.items()
        begin = max(max(each.launched, self.free.get((position, each.lane), 0.0)) for position, each in sides)
        for position, transfer in sides:
            transfer.begin, transfer.end = begin, begin + meeting.seconds
            self.free[position, transfer.lane] = transfer.end
            self.resolved.add(id(transfer))
