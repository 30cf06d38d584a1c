"""All ranks' functions run together on what is known of their values: rules V23 and V25, and what V24 and V26 rest on.

Messages meet as rendezvous, channel by channel: a send completes when it is received, and later ones wait behind it; a
rank goes on meanwhile, and drains at its end. So what a rank waits for is there once the other end has come to it. A
collective over the pipeline axis is there once all its positions have come to it. Ends are matched by their order,
which `channels` has checked.

- V23: the ranks do not wait for each other in a circle.
- V25: a call for a microbatch is given that microbatch's values and inputs, this rank's state, and buffers that all
  microbatches before it have updated and no others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_mlir import ir

from ...dialect.signature import ValueInfo
from ..stage_function import StageFunction
from .channels import COLLECTIVES, Channel, Group, Traffic, group_of
from .findings import Findings
from .microbatch_values import WHOLE, Known, Origin, Total
from .rank_functions import Pipeline, RankFunction
from .totals import Totals, role_of_total

_KINDS = {"input": "input", "param": "state", "constant": "state", "buffer": "buffer", "size": "size"}


@dataclass(frozen=True)
class Arrival:
    """What a wait waits for: the k-th message of a channel, or the k-th collective of a group."""

    place: Channel | Group
    number: int


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a stage function, the `number`-th of all that its rank makes."""

    rank: RankFunction
    op: ir.Operation
    number: int


@dataclass(eq=False)
class _Rank:
    function: RankFunction
    next: int = 0
    calls: int = 0
    values: dict[ir.Value, Known | None] = field(default_factory=dict)
    futures: dict[ir.Value, Arrival | list[Known | None]] = field(default_factory=dict)
    reached: dict[Channel | Group, int] = field(default_factory=dict)

    def take_number(self, place: Channel | Group) -> int:
        number = self.reached.get(place, 0)
        self.reached[place] = number + 1
        return number


class Execution:
    """One kind of step, run on all ranks.

    Args:
        pipeline: the module.
        kind: "train" or "evaluate".
        traffic: of the rank functions of that kind.
        findings: gets what is wrong.

    Attributes:
        calls: by stage function and microbatch.
        blocked: by position, the wait that a rank could not pass; empty after a run to the end.
        results: by position, what each result is.
        expected: by role and name, the parts of each whole sum.
    """

    def __init__(self, pipeline: Pipeline, kind: str, traffic: Traffic, findings: Findings):
        self._pipeline = pipeline
        self._train = kind == "train"
        self._traffic = traffic
        self._findings = findings
        self._totals = Totals(pipeline, findings)
        self.expected = self._totals.expected
        self._ranks = [_Rank(function) for function in pipeline.ranks[kind]]
        self._sent: dict[Arrival, dict[int, list[Known | None]]] = {}
        self._there: dict[Arrival, list[list[Known | None]]] = {}
        self._waiting: dict[Arrival, list[int]] = {}
        self._updated = {
            info.name
            for function in pipeline.stages.functions
            for info in function.signature.results_with_role("buffer")
        }
        self._state: dict[str, Origin] = {}
        self.calls: dict[tuple[str, int], list[Call]] = {}
        self.blocked: dict[int, tuple[ir.Operation, Arrival]] = {}
        self.results: list[list[Known | None]] = []

    def run(self) -> None:
        """Run all ranks as far as they come."""
        ready = deque(range(len(self._ranks)))
        for rank in self._ranks:
            block = rank.function.op.regions[0].blocks[0]
            rank.values.update(
                (argument, self._whole(info))
                for argument, info in zip(block.arguments, rank.function.signature.arguments, strict=True)
            )
        while ready:
            self._advance(ready.popleft(), ready)
        self.results = [[rank.values.get(value) for value in rank.function.end.operands] for rank in self._ranks]

    def _whole(self, info: ValueInfo) -> Known | None:
        kind = _KINDS.get(info.role)
        if kind is None:
            return None
        if kind == "state":
            return self._state_of(info)
        return Origin(kind, info.name, 0 if kind == "buffer" else WHOLE)

    def _state_of(self, info: ValueInfo) -> Origin:
        """Return the one object that stands for a parameter or constant."""
        known = self._state.get(info.name)
        if known is None:
            known = self._state[info.name] = Origin("state", info.name)
        return known

    def _advance(self, position: int, ready: deque[int]) -> None:
        rank = self._ranks[position]
        self.blocked.pop(position, None)
        while rank.next < len(rank.function.ops):
            op = rank.function.ops[rank.next]
            if op.name == "hp.wait":
                future = rank.futures.get(op.operands[0])
                arrived = self._there.get(future) if isinstance(future, Arrival) else None
                if isinstance(future, Arrival) and arrived is None:
                    self.blocked[position] = (op, future)
                    self._waiting.setdefault(future, []).append(position)
                    return
                values = future if isinstance(future, list) else self._received(arrived, future, position)
                rank.values.update(zip(op.results, values, strict=True))
            else:
                ready.extend(self._visit(rank, op))
            rank.next += 1

    def _received(
        self, arrived: list[list[Known | None]] | None, future: Arrival | None, position: int
    ) -> Sequence[Known | None]:
        if arrived is None or future is None:
            return []
        if isinstance(future.place, Group):
            return arrived[future.place.positions.index(position)]
        return arrived[0]

    def _visit(self, rank: _Rank, op: ir.Operation) -> Sequence[int]:
        """Run an op that does not block; return the ranks that waited for what it brings about."""
        name, stages = op.name, self._pipeline.stages
        if name == "func.call":
            self._call(rank, op)
        elif name == "hp.send":
            channel = (rank.function.coordinate, int(ir.IntegerAttr(op.attributes["peer"]).value))
            arrival = Arrival(channel, rank.take_number(channel))
            self._there[arrival] = [[rank.values.get(operand) for operand in op.operands]]
            return self._waiting.pop(arrival, ())
        elif name == "hp.recv":
            channel = (int(ir.IntegerAttr(op.attributes["peer"]).value), rank.function.coordinate)
            rank.futures[op.results[0]] = Arrival(channel, rank.take_number(channel))
        elif name == "hp.microbatch":
            rank.values[op.results[0]] = self._part(rank, op)
        elif (group := group_of(op, stages.mesh, stages.axis)) is not None:
            return self._collective(rank, op, group)
        else:
            given = [rank.values.get(operand) for operand in op.operands]
            made = self._totals.visit(op, given)
            if name in COLLECTIVES:
                rank.futures[op.results[0]] = made
            else:
                rank.values.update(zip(op.results, made, strict=True))
        return ()

    def _collective(self, rank: _Rank, op: ir.Operation, group: Group) -> Sequence[int]:
        arrival = Arrival(group, rank.take_number(group))
        rank.futures[op.results[0]] = arrival
        given = self._sent.setdefault(arrival, {})
        given[rank.function.coordinate] = [rank.values.get(operand) for operand in op.operands]
        if len(given) < len(group.positions):
            return ()
        members = [given[position] for position in group.positions]
        self._there[arrival] = self._totals.meet(op, group, members)
        return self._waiting.pop(arrival, ())

    def _part(self, rank: _Rank, op: ir.Operation) -> Known | None:
        given = rank.values.get(op.operands[0])
        count = int(ir.IntegerAttr(op.attributes["count"]).value)
        if count != self._pipeline.microbatches:  # V25
            self._findings.add(
                op, f"splits into {count} parts, expected hp.microbatches = {self._pipeline.microbatches}"
            )
        if isinstance(given, Origin) and given.kind == "input" and count > 1:
            return Origin("input", given.name, int(ir.IntegerAttr(op.attributes["index"]).value))
        return given

    def _call(self, rank: _Rank, op: ir.Operation) -> None:
        name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        function = self._pipeline.callees.get(name)
        microbatch = self._microbatch_of(op)
        if function is None or microbatch is None:  # V24
            self._findings.add(
                op,
                f"calls @{name}, which is no stage function"
                if function is None
                else f"expected hp.microbatch to be a number < {self._pipeline.microbatches}",
            )
            return
        self.calls.setdefault((name, microbatch), []).append(Call(rank.function, op, rank.calls))
        rank.calls += 1
        expected = self._expected(function, microbatch)
        for index, (wanted, operand) in enumerate(zip(expected, op.operands, strict=True)):
            if wanted is None:
                continue
            given = rank.values.get(operand)
            if given is not wanted and given != wanted:  # V25
                self._report_wrong(rank, op, function, microbatch, index, wanted, given)
        rank.values.update(zip(op.results, self._made(function, microbatch), strict=True))

    def _microbatch_of(self, op: ir.Operation) -> int | None:
        attribute = op.attributes.get("hp.microbatch")
        if not isinstance(attribute, ir.IntegerAttr) or not 0 <= attribute.value < self._pipeline.microbatches:
            return None
        return int(attribute.value)

    def _expected(self, function: StageFunction, microbatch: int) -> list[Known | None]:
        """Return what each argument of a call must be; None for sizes, which may be computed."""
        parts = self._pipeline.microbatches > 1
        expected: list[Known | None] = []
        for info in function.signature.arguments:
            if info.role in ("incoming", "saved"):
                expected.append(Origin("value", info.name, microbatch))
            elif info.role == "input":
                split = parts and info.batch_dim is not None
                expected.append(Origin("input", info.name, microbatch if split else WHOLE))
            elif info.role == "buffer":
                updates = microbatch if self._train and info.name in self._updated else 0
                expected.append(Origin("buffer", info.name, updates))
            else:
                expected.append(None if info.role == "size" else self._state_of(info))
        return expected

    def _made(self, function: StageFunction, microbatch: int) -> list[Known | None]:
        made: list[Known | None] = []
        for info in function.signature.results:
            if info.role in ("outgoing", "saved"):
                made.append(Origin("value", info.name, microbatch))
            elif info.role == "buffer":
                made.append(Origin("buffer", info.name, microbatch + 1))
            elif info.role == "output":
                made.append(Origin("output", info.name, microbatch))
            else:
                made.append(Total(role_of_total(info), info.names, ((function.stage, 1 << microbatch),)))
        return made

    def _report_wrong(
        self,
        rank: _Rank,
        op: ir.Operation,
        function: StageFunction,
        microbatch: int,
        index: int,
        wanted: Known,
        given: Known | None,
    ) -> None:
        got = "something else" if given is None else str(given)
        owner = op.operands[index].owner
        notes: list[tuple[ir.Operation, str]] = []
        if not isinstance(owner, ir.Block):
            source = owner.operation
            future = rank.futures.get(source.operands[0]) if source.name == "hp.wait" else None
            if isinstance(future, Arrival) and not isinstance(future.place, Group):
                end = self._traffic.sends[future.place][future.number]
                notes.append((end.op, f"sent here by @{end.rank.name}"))
            else:
                notes.append((source, "this is what it is given"))
        self._findings.add(
            op,
            f"@{function.name} for microbatch {microbatch}: expected argument {index} to be {wanted}, got: {got}",
            notes=notes,
        )
