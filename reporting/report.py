"""A report: everything `hp-report` knows of a Program, as one object and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..costs import Costs
from ..runtime.coalescing import coalesce_program
from ..runtime.program import Program
from ..runtime.python_text import reachable_functions
from .example_sizes import with_example_sizes
from .memory import Memory, memory_over_time
from .pipeline import Pipeline, pipeline_of
from .segments import SegmentedProgram
from .simulated import simulate_timeline
from .storages import CATEGORIES
from .timeline import Block, Exposure, RankTimeline, Timeline, Transfer, exposures, merged
from .traffic import Bucket, Traffic, buckets, traffic_by_axis

JSON_SCHEMA = 1
"""Version of what `Report.to_json` gives."""


@dataclass(frozen=True)
class RankReport:
    """What is said of ranks that do the same.

    Attributes:
        timeline: simulated.
        memory: over the step.
        exposures: each communication op, those that compute waits for the longest first.
        traffic: by axis and kind.
        buckets: in the order they are started.
    """

    timeline: RankTimeline
    memory: Memory
    exposures: list[Exposure]
    traffic: list[Traffic]
    buckets: list[Bucket]

    @property
    def launches(self) -> int:
        """Collectives and messages that the rank starts per step."""
        return len(self.timeline.transfers)


@dataclass(frozen=True)
class Report:
    """A Program's report.

    Attributes:
        name: of the Program, for people.
        program: as it runs: collectives that start together are one.
        digest: of the Program as it is stored.
        costs: that times are simulated with.
        costs_name: where they come from.
        simulated: the timeline by the cost model.
        ranks: one entry per timeline of it, in the same order.
        measured: the timeline of a run, where there is one.
        pipeline: what the simulated timeline says of the pipeline, where there is one.
        measured_pipeline: the same of the measured one.
    """

    name: str
    program: Program
    digest: str
    costs: Costs
    costs_name: str
    simulated: Timeline
    ranks: list[RankReport]
    measured: Timeline | None = None
    pipeline: Pipeline | None = None
    measured_pipeline: Pipeline | None = None

    @property
    def peaks(self) -> dict[int, int]:
        """The most bytes that a rank holds, by position of the pipeline."""
        held = {rank.timeline.ranks: rank.memory.peak.total for rank in self.ranks}
        positions = self.pipeline.positions if self.pipeline else []
        return {each.position: held[each.timeline.ranks] for each in positions}

    @property
    def worst(self) -> RankReport:
        """The ranks that hold the most memory."""
        return max(self.ranks, key=lambda rank: rank.memory.peak.total)

    @property
    def exposed(self) -> float:
        """The longest that a rank's compute stands still for communication."""
        return max(rank.timeline.exposed() for rank in self.ranks)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values; times are in seconds, sizes in bytes. See docs/report.md."""
        return {
            "schema": JSON_SCHEMA,
            "program": {
                "name": self.name,
                "digest": self.digest,
                "mesh": dict(zip(self.program.mesh.axis_names, self.program.mesh.axis_sizes, strict=True)),
                "microbatches": self.program.microbatches,
                "data_axes": list(self.program.data_axes),
                "pipeline_axis": self.program.pipeline_axis,
            },
            "costs": {"name": self.costs_name, **self.costs.model_dump(exclude_none=True)},
            "step": {
                "simulated_seconds": self.simulated.seconds,
                "measured_seconds": self.measured.seconds if self.measured else None,
                "exposed_seconds": self.exposed,
                "bubble": self.simulated.bubble(),
                "launches": max(rank.launches for rank in self.ranks),
                "peak_bytes": self.worst.memory.peak.total,
                "measured_bubble": self.measured.bubble() if self.measured else None,
            },
            "pipeline": _pipelines_json(self),
            "ranks": [_rank_json(rank) for rank in self.ranks],
            "measured": None if self.measured is None else [_timeline_json(each) for each in self.measured.ranks],
        }


def make_report(program: Program, *, name: str, costs: Costs, costs_name: str, measured: Timeline | None) -> Report:
    """Simulate a Program's training step and put together what there is to say of it.

    Args:
        program: a valid Program.
        name: of it, for people.
        costs: to simulate with.
        costs_name: where they come from, for people.
        measured: the timeline of a run of the same Program.

    Raises:
        RuntimeFault: its ranks wait for each other and none can go on.
    """
    running = with_example_sizes(coalesce_program(program, reachable_functions(program, program.train)))
    segments = SegmentedProgram(running, costs)
    simulated = simulate_timeline(segments)
    ranks = [
        RankReport(
            timeline,
            memory_over_time(segments, timeline),
            exposures(timeline),
            traffic_by_axis(segments, timeline),
            buckets(segments, timeline),
        )
        for timeline in simulated.ranks
    ]
    return Report(
        name=name,
        program=running,
        digest=program.digest,
        costs=costs,
        costs_name=costs_name,
        simulated=simulated,
        ranks=ranks,
        measured=measured,
        pipeline=pipeline_of(simulated),
        measured_pipeline=pipeline_of(measured) if measured else None,
    )


def program_name(path: str | Path) -> str:
    """Return what a Program in a directory is called."""
    return Path(path).resolve().name


def _pipelines_json(report: Report) -> dict[str, Any] | None:
    pipeline, measured = report.pipeline, report.measured_pipeline
    if pipeline is None:
        return None
    peaks = report.peaks
    simulated = _pipeline_json(pipeline)
    for entry in simulated["positions"]:
        entry["peak_bytes"] = peaks[entry["position"]]
    return {
        "axis": pipeline.axis,
        "stages": pipeline.stages,
        "simulated": simulated,
        "measured": _pipeline_json(measured) if measured else None,
        "messages": [
            {"from": each.sender, "to": each.receiver, "count": each.messages, "bytes": each.size}
            for each in pipeline.channels
        ],
    }


def _pipeline_json(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "bubble": pipeline.timeline.bubble(),
        "positions": [
            {
                "position": each.position,
                "ranks": list(each.timeline.ranks),
                "stages": list(each.stages),
                "bubble": each.bubble,
                "stalled_seconds": each.stalled,
                "steady_from": each.steady,
                "cool_down_from": each.cool_down,
                "done": each.done,
                "peak_live_microbatches": each.live,
                "tasks": [[t.stage, t.kind, t.microbatch, t.begin, t.end] for t in each.timeline.tasks],
            }
            for each in pipeline.positions
        ],
    }


def _rank_json(rank: RankReport) -> dict[str, Any]:
    memory = rank.memory
    return {
        **_timeline_json(rank.timeline),
        "launches": rank.launches,
        "exposures": [
            {
                "name": each.transfer.name,
                "kind": each.transfer.kind,
                "axes": list(each.transfer.axes),
                "phase": each.transfer.phase,
                "function": each.transfer.function,
                "op": each.transfer.op,
                "bytes": each.transfer.size,
                "runs": each.runs,
                "seconds": each.seconds,
                "exposed_seconds": each.exposed,
            }
            for each in rank.exposures
        ],
        "traffic": [
            {
                "axes": list(row.axes),
                "kind": row.kind,
                "launches": row.launches,
                "bytes": row.size,
                "sent_bytes": row.sent,
                "seconds": row.seconds,
            }
            for row in rank.traffic
        ],
        "buckets": [
            {
                "name": row.name,
                "kind": row.kind,
                "phase": row.phase,
                "axes": list(row.axes),
                "members": list(row.members),
                "tensors": row.tensors,
                "bytes": row.size,
                "padding_bytes": row.padding,
                "launches": row.launches,
            }
            for row in rank.buckets
        ],
        "memory": {
            "peak_bytes": memory.peak.total,
            "peak_seconds": memory.peak.begin,
            "peak_function": memory.function,
            "peak_op": memory.op,
            "peak_by_category": dict(zip(CATEGORIES, memory.peak.held, strict=True)),
            "alive_at_peak": [
                {"category": held.category, "module": held.module, "bytes": held.size, "tensors": held.tensors}
                for held in memory.alive
            ],
            "over_time": [[point.begin, point.end, *point.held] for point in memory.points],
        },
    }


def _timeline_json(timeline: RankTimeline) -> dict[str, Any]:
    return {
        "ranks": list(timeline.ranks),
        "entry": timeline.entry,
        "seconds": timeline.end,
        "busy_seconds": timeline.busy(),
        "exposed_seconds": timeline.exposed(),
        "blocks": [_block_json(block) for block in merged(timeline.blocks)],
        "transfers": [_transfer_json(transfer) for transfer in timeline.transfers],
    }


def _block_json(block: Block) -> Sequence[Any]:
    return [block.begin, block.end, block.kind, block.module, block.phase, block.ops]


def _transfer_json(transfer: Transfer) -> dict[str, Any]:
    return {
        "lane": transfer.lane,
        "kind": transfer.kind,
        "name": transfer.name,
        "phase": transfer.phase,
        "bytes": transfer.size,
        "launched": transfer.launched,
        "begin": transfer.begin,
        "end": transfer.end,
        "waited": transfer.waited,
        "exposed": transfer.exposed,
    }
