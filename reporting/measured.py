"""The timeline of a run, from the files that `hp-run --profile` leaves behind: one per rank."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import RuntimeFault
from ..runtime.blocks import STARTS
from ..runtime.coalescing import coalesce_program
from ..runtime.program import Function, Op, Program, TensorType
from ..runtime.python_text import reachable_functions
from .example_sizes import with_example_sizes
from .names import lane_name, microbatch_of, transfer_name
from .segments import transferred_bytes, value_types
from .timeline import Block, RankTimeline, Task, Timeline, Transfer

_SCHEMA = 1
_KINDS = {"compute": "compute", "start": "launch", "wait": "wait"}


def read_profile(folder: str | Path, program: Program) -> Timeline:
    """Read the timeline of a run.

    Args:
        folder: with the files of all ranks.
        program: that was run.

    Raises:
        RuntimeFault: files are missing or damaged, or of another Program; the text begins with the file.
    """
    directory = Path(folder)
    try:
        files = sorted(path for path in directory.iterdir() if re.fullmatch(r"rank\d+\.json", path.name))
    except OSError as error:
        raise RuntimeFault(f"{directory}: error: cannot read a profile: {(error.strerror or '').lower()}") from None
    if not files:
        raise RuntimeFault(f"{directory}: error: no profile of a run: no file rank0.json")
    names = reachable_functions(program, dict.fromkeys((*program.train, *program.evaluate)))
    reader = _Reader(with_example_sizes(coalesce_program(program, names)), program.digest)
    timelines = sorted((reader.read(file) for file in files), key=lambda timeline: timeline.ranks)
    missing = [rank for rank, timeline in enumerate(timelines) if timeline.ranks != (rank,)]
    if missing or len(timelines) != program.mesh.size:
        rank = missing[0] if missing else len(timelines)
        raise RuntimeFault(f"{directory}: error: no profile of rank {rank}: no file rank{rank}.json")
    seconds = max(timeline.end for timeline in timelines)
    return Timeline("measured", program.mesh, seconds, timelines, program.pipeline_axis)


class _MalformedError(Exception):
    pass


class _Reader:
    """Reads the files of ranks.

    Args:
        program: as it runs.
        digest: of the Program as it is stored.
    """

    def __init__(self, program: Program, digest: str):
        self.program = program
        self.digest = digest
        self._types: dict[str, Mapping[int, TensorType]] = {}

    def read(self, file: Path) -> RankTimeline:
        try:
            encoded = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise RuntimeFault(f"{file}: error: cannot read a profile: {(error.strerror or '').lower()}") from None
        except (ValueError, RecursionError) as error:
            raise RuntimeFault(f"{file}: error: not a profile: {error}") from None
        if not isinstance(encoded, dict) or encoded.get("schema") != _SCHEMA:
            version = encoded.get("schema") if isinstance(encoded, dict) else None
            raise RuntimeFault(f"{file}: error: not a profile: schema {version!r}, this hpir reads {_SCHEMA}")
        if encoded.get("digest") != self.digest:
            stated = str(encoded.get("digest"))[:12]
            raise RuntimeFault(
                f"{file}: error: a profile of another Program: of {stated}, this one is {self.digest[:12]}"
            )
        try:
            return self._timeline(encoded)
        except _MalformedError as error:
            raise RuntimeFault(f"{file}: error: not a profile: {error}") from None
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise RuntimeFault(f"{file}: error: not a profile: {type(error).__name__}: {error}") from None

    def _timeline(self, encoded: Mapping[str, Any]) -> RankTimeline:
        rank = encoded["rank"]
        if type(rank) is not int or not 0 <= rank < self.program.mesh.size:
            raise _MalformedError(f"no rank {rank!r} in mesh {self.program.mesh}")
        timeline = RankTimeline((rank,), self.program.entry(rank).name)
        table = [self._block(*row) for row in encoded["blocks"]]
        under_way: dict[tuple[str, int], Transfer] = {}
        running = _RunningTasks(self.program, timeline.tasks)
        before = 0.0
        for number, begin, end in encoded["times"]:
            if not 0 <= before <= begin <= end:
                raise _MalformedError(f"times that do not follow one another: {begin!r} to {end!r}")
            before = end
            function, kind, first, last = table[number]
            op = function.ops[first]
            running.at(function.name, begin)
            if kind == "call":
                running.call(op, begin)
                continue
            timeline.blocks.append(Block(begin, end, _KINDS[kind], op.module, op.phase, last - first))
            if kind == "start":
                transfer = self._started(function, first, op, begin, end)
                timeline.transfers.append(transfer)
                if op.results:
                    under_way[function.name, op.results[0]] = transfer
            elif kind == "wait":
                transfer = under_way.pop((function.name, next(iter(op.operands()))))
                transfer.waited, transfer.end, transfer.exposed = begin, end, end - begin
        running.at(timeline.entry, before)
        timeline.end = before
        _spread(timeline.transfers)
        return timeline

    def _block(self, name: Any, kind: Any, first: Any, last: Any) -> tuple[Function, str, int, int]:
        function = self.program.functions.get(str(name))
        if function is None:
            raise _MalformedError(f"no function '{name}'")
        if type(first) is not int or type(last) is not int or not 0 <= first < last <= len(function.ops):
            raise _MalformedError(f"'{name}' has no ops {first!r} to {last!r}")
        target = function.ops[first].target
        expected = {"hp.wait": "wait", "call": "call"}.get(target, "start" if target in STARTS else "compute")
        if kind != expected:
            raise _MalformedError(f"op {first} of '{name}' is no {kind!r}")
        return function, kind, first, last

    def _started(self, function: Function, number: int, op: Op, begin: float, end: float) -> Transfer:
        types = self._types.get(function.name)
        if types is None:
            types = self._types[function.name] = value_types(function)
        return Transfer(
            lane=lane_name(op),
            kind=op.target.removeprefix("hp."),
            name=transfer_name(op),
            axes=_axes(op),
            function=function.name,
            op=number,
            module=op.module,
            phase=op.phase,
            size=transferred_bytes(op, types, self.program.mesh),
            launched=begin,
            begin=begin,
            end=end,
            peer=_peer(op),
        )


class _RunningTasks:
    """Tells from the marks of a rank when its tasks end: where something else runs than what was called."""

    def __init__(self, program: Program, tasks: list[Task]):
        self._program = program
        self._tasks = tasks
        self._open: list[tuple[str, Task]] = []

    def at(self, function: str, now: float) -> None:
        """Note that a block of a function begins."""
        while self._open and self._open[-1][0] != function:
            self._open.pop()[1].end = now

    def call(self, op: Op, now: float) -> None:
        """Note that a call begins."""
        callee = self._program.functions[str(op.kwargs["function"])]
        if callee.stage is None:
            raise _MalformedError(f"'{callee.name}' is no function of a stage")
        task = Task(callee.stage, callee.task, microbatch_of(op), now)
        self._tasks.append(task)
        self._open.append((callee.name, task))


def _peer(op: Op) -> int | None:
    peer = op.kwargs.get("peer")
    return peer if isinstance(peer, int) else None


def _axes(op: Op) -> tuple[str, ...]:
    listed = op.kwargs.get("axes", (op.kwargs.get("axis"),))
    return tuple(map(str, listed)) if isinstance(listed, tuple) else ()


def _spread(transfers: Sequence[Transfer]) -> None:
    """Give transfers of one lane that are under way together lanes of their own, as few as there may be."""
    free: dict[str, list[float]] = {}
    for transfer in transfers:
        ends = free.setdefault(transfer.lane, [])
        place = next((number for number, end in enumerate(ends) if end <= transfer.begin), len(ends))
        ends[place : place + 1] = [transfer.end]
        if place:
            transfer.lane = f"{transfer.lane} ({place + 1})"
