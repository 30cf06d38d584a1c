"""A timeline in the trace-event format that Chrome's tracing page and Perfetto open.

A process is a rank, or ranks that do the same; a thread is one of its lanes. Arrows lead from where communication is
started to where compute waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .report import Report
from .timeline import RankTimeline, Timeline, Transfer, merged
from .units import show_ranks

_COMPUTE_THREAD = 0


def trace_events(report: Report) -> dict[str, Any]:
    """Return the trace: the simulated timeline, and the measured one where there is one; times in microseconds."""
    events: list[dict[str, Any]] = []
    flows = 0
    for timeline in filter(None, (report.measured, report.simulated)):
        for each in timeline.ranks:
            added = list(_rank_events(timeline, each, len({event["pid"] for event in events}), flows))
            flows += sum(event["ph"] == "s" for event in added)
            events += added
    # Names first, then by time; of two that begin together the longer one is around the other.
    events.sort(key=lambda event: (event["ph"] != "M", event.get("ts", 0.0), -event.get("dur", 0.0)))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"program": report.name, "digest": report.digest, "costs": report.costs_name},
    }


def _rank_events(timeline: Timeline, each: RankTimeline, pid: int, flows: int) -> Iterator[dict[str, Any]]:
    yield _name("process_name", pid, 0, f"{show_ranks(each.ranks)} ({timeline.source})")
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    threads = {lane: number for number, lane in enumerate(each.lanes, _COMPUTE_THREAD + 1)}
    yield _name("thread_name", pid, _COMPUTE_THREAD, "compute")
    for lane, thread in threads.items():
        yield _name("thread_name", pid, thread, f"communication {lane}")
    for block in merged(each.blocks):
        if block.end > block.begin:
            name = {"wait": "wait", "launch": "launch"}.get(block.kind, block.module or "compute")
            yield _complete(
                name,
                block.kind,
                pid,
                _COMPUTE_THREAD,
                block.begin,
                block.end,
                {"module": block.module, "phase": block.phase, "ops": block.ops},
            )
    for number, transfer in enumerate(each.transfers, flows):
        yield from _transfer_events(transfer, pid, threads[transfer.lane], number)


def _transfer_events(transfer: Transfer, pid: int, thread: int, flow: int) -> Iterator[dict[str, Any]]:
    arguments = {
        "name": transfer.name,
        "axes": list(transfer.axes),
        "phase": transfer.phase,
        "bytes": transfer.size,
        "launched_us": _microseconds(transfer.launched),
        "exposed_us": _microseconds(transfer.exposed),
    }
    yield _complete(transfer.title, "communication", pid, thread, transfer.begin, transfer.end, arguments)
    if transfer.waited is None:
        return
    arrow = {"name": "arrives", "cat": "communication", "pid": pid, "id": flow}
    yield {**arrow, "ph": "s", "tid": thread, "ts": _microseconds(transfer.begin)}
    arrived = max(transfer.waited, transfer.end)
    yield {**arrow, "ph": "f", "bp": "e", "tid": _COMPUTE_THREAD, "ts": _microseconds(arrived)}


def _name(kind: str, pid: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": thread, "args": {"name": name}}


def _complete(
    name: str, category: str, pid: int, thread: int, begin: float, end: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    begin, end = _microseconds(begin), _microseconds(end)
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": thread,
        "ts": begin,
        "dur": round(end - begin, 3),
        "args": arguments,
    }


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)
