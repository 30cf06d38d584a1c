"""A timeline in the trace-event format that Chrome's tracing page and Perfetto open.

A process is a rank, or ranks that do the same; a thread is one of its lanes. Arrows lead from where communication
begins to where compute waits for it, and from a send to where its message is waited for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from .report import Report
from .timeline import RankTimeline, Timeline, Transfer, merged
from .units import show_ranks

_COMPUTE_THREAD = 0
_TASK_THREAD = 1


def trace_events(report: Report) -> dict[str, Any]:
    """Return the trace: the simulated timeline, and the measured one where there is one; times in microseconds."""
    events: list[dict[str, Any]] = []
    flows = itertools.count()
    processes = 0
    for timeline in filter(None, (report.measured, report.simulated)):
        pids = {each.ranks: processes + number for number, each in enumerate(timeline.ranks)}
        processes += len(pids)
        for each in timeline.ranks:
            events += _rank_events(timeline, each, pids[each.ranks], flows)
        events += _message_events(timeline, pids, flows)
    # Names first, then by time; of two that begin together the longer one is around the other.
    events.sort(key=lambda event: (event["ph"] != "M", event.get("ts", 0.0), -event.get("dur", 0.0)))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"program": report.name, "digest": report.digest, "costs": report.costs_name},
    }


def _rank_events(timeline: Timeline, each: RankTimeline, pid: int, flows: Iterator[int]) -> Iterator[dict[str, Any]]:
    yield _name("process_name", pid, 0, f"{show_ranks(each.ranks)} ({timeline.source})")
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    threads = _threads(each)
    yield _name("thread_name", pid, _COMPUTE_THREAD, "compute")
    if each.tasks:
        yield _name("thread_name", pid, _TASK_THREAD, "microbatches")
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
    for task in each.tasks:
        name = f"stage {task.stage} {task.kind} {task.microbatch}"
        arguments = {"stage": task.stage, "task": task.kind, "microbatch": task.microbatch}
        yield _complete(name, "task", pid, _TASK_THREAD, task.begin, task.end, arguments)
    for transfer in each.transfers:
        yield from _transfer_events(transfer, pid, threads[transfer.lane], flows)


def _threads(each: RankTimeline) -> dict[str, int]:
    """Return the threads of communication lanes, by name."""
    return {lane: number for number, lane in enumerate(each.lanes, _TASK_THREAD + bool(each.tasks))}


def _transfer_events(transfer: Transfer, pid: int, thread: int, flows: Iterator[int]) -> Iterator[dict[str, Any]]:
    arguments = {
        "name": transfer.name,
        "axes": list(transfer.axes),
        "phase": transfer.phase,
        "bytes": transfer.size,
        "launched_us": _microseconds(transfer.launched),
        "exposed_us": _microseconds(transfer.exposed),
    }
    yield _complete(transfer.title, "communication", pid, thread, transfer.begin, transfer.end, arguments)
    if transfer.waited is None or transfer.peer is not None:
        return
    arrow = {"name": "arrives", "cat": "communication", "pid": pid, "id": next(flows)}
    yield {**arrow, "ph": "s", "tid": thread, "ts": _microseconds(transfer.begin)}
    arrived = max(transfer.waited, transfer.end)
    yield {**arrow, "ph": "f", "bp": "e", "tid": _COMPUTE_THREAD, "ts": _microseconds(arrived)}


def _message_events(
    timeline: Timeline, pids: Mapping[tuple[int, ...], int], flows: Iterator[int]
) -> Iterator[dict[str, Any]]:
    """Yield an arrow for each message: the n-th that a rank sends to another is the n-th that is received from it."""
    processes = {rank: pid for ranks, pid in pids.items() for rank in ranks}
    sent: dict[tuple[int, int], list[tuple[Transfer, int]]] = {}
    received: dict[tuple[int, int], list[Transfer]] = {}
    for each in timeline.ranks:
        position, pid, threads = timeline.mesh.coordinate(each.ranks[0]), pids[each.ranks], _threads(each)
        for transfer in each.transfers:
            if transfer.peer is None:
                continue
            peer = processes.get(timeline.mesh.rank({**position, transfer.axes[0]: transfer.peer}), -1)
            if transfer.kind == "send":
                sent.setdefault((pid, peer), []).append((transfer, threads[transfer.lane]))
            else:
                received.setdefault((peer, pid), []).append(transfer)
    for (sender, receiver), messages in received.items():
        for (send, thread), message in zip(sent.get((sender, receiver), ()), messages, strict=False):
            if message.waited is None:
                continue
            arrow = {"name": message.name or "message", "cat": "message", "id": next(flows)}
            yield {**arrow, "ph": "s", "pid": sender, "tid": thread, "ts": _microseconds(send.begin)}
            arrived = _microseconds(max(message.waited, message.end))
            yield {**arrow, "ph": "f", "bp": "e", "pid": receiver, "tid": _COMPUTE_THREAD, "ts": arrived}


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
