"""What a step communicates: bytes by mesh axis and kind, and the collectives that hold several parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..costs import tensor_bytes, traffic
from ..runtime.program import COLLECTIVES, Op
from .names import transfer_name
from .segments import Communication, Segment, SegmentedProgram, value_types
from .timeline import RankTimeline


@dataclass(frozen=True)
class Traffic:
    """What a rank communicates over some axes in one way.

    Attributes:
        axes: mesh axes.
        kind: ``all_gather``, ..., ``send`` or ``recv``.
        launches: per step.
        size: bytes of the whole tensors, per step: what gathers give, what others are given.
        sent: bytes that the rank sends, as ring algorithms do.
        seconds: under way, by the cost model.
    """

    axes: tuple[str, ...]
    kind: str
    launches: int
    size: int
    sent: int
    seconds: float


@dataclass(frozen=True)
class Bucket:
    """A collective of several tensors, or one that the Program calls a bucket.

    Attributes:
        name: its bucket's, or what it moves.
        kind: ``all_gather``, ...
        phase: ``forward``, ``backward`` or empty.
        axes: mesh axes.
        members: parameters by name; empty where the Program does not say.
        tensors: how many it moves.
        size: bytes of the rank's operands.
        padding: of these, bytes between members; rows that fill up uneven shards are the member's.
        launches: per step.
    """

    name: str
    kind: str
    phase: str
    axes: tuple[str, ...]
    members: tuple[str, ...]
    tensors: int
    size: int
    padding: int
    launches: int


def starts(segments: SegmentedProgram, name: str, times: int = 1) -> Iterator[tuple[str, Segment, int]]:
    """Yield (function, segment, runs) for each op of an entry, or of what it calls, that starts communication."""
    calls: dict[str, int] = {}
    for segment in segments.function(name):
        if segment.kind == "start":
            yield name, segment, times
        elif segment.kind == "call":
            calls[segment.callee] = calls.get(segment.callee, 0) + times
    for callee, runs in calls.items():
        yield from starts(segments, callee, runs)


def traffic_by_axis(segments: SegmentedProgram, timeline: RankTimeline) -> list[Traffic]:
    """Return what the ranks of a timeline communicate, the most bytes first; groups of one rank send nothing."""
    rows: dict[tuple[tuple[str, ...], str], Traffic] = {}
    for _, segment, runs in starts(segments, timeline.entry):
        moved = segment.communication
        if moved is None or moved.ranks <= 1:
            continue
        key = moved.axes, moved.kind
        row = rows.get(key) or Traffic(*key, 0, 0, 0, 0.0)
        rows[key] = Traffic(
            *key,
            row.launches + runs,
            row.size + runs * moved.size,
            row.sent + runs * _sent(moved),
            row.seconds + runs * moved.seconds,
        )
    return sorted(rows.values(), key=lambda row: (-row.sent, row.axes, row.kind))


def _sent(moved: Communication) -> int:
    if moved.peer is not None:
        return moved.size if moved.kind == "send" else 0
    return round(traffic(moved.kind, moved.size, moved.ranks))


def buckets(segments: SegmentedProgram, timeline: RankTimeline) -> list[Bucket]:
    """Return the buckets of the functions that the ranks of a timeline run, in the order they are started."""
    rows: list[Bucket] = []
    for function, segment, runs in starts(segments, timeline.entry):
        op: Op = segments.program.functions[function].ops[segment.first]
        moved = segment.communication
        if moved is None or op.target not in COLLECTIVES or not (op.bucket or len(op.args) > 1):
            continue
        types = value_types(segments.program.functions[function])
        size = sum(tensor_bytes(types[value]) for value in op.operands())
        padding = size - sum(op.member_bytes) if op.member_bytes else 0
        tensors = max(len(op.args), len(op.members))
        rows.append(
            Bucket(transfer_name(op), moved.kind, op.phase, moved.axes, op.members, tensors, size, padding, runs)
        )
    return rows
