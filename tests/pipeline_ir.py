"""What a module at level "program" says of its ranks: the order of their calls, how long a step takes, what is alive.

All of it is read from the IR: values from maker to user, messages by the order of their channels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from torch_mlir import ir

from hpir.dialect.attributes import find_mesh
from hpir.dialect.signature import body_of, function_name, step_functions

UNIT: Mapping[str, int] = MappingProxyType({"forward": 1, "backward": 2, "backward_input": 1, "backward_weight": 1})
"""Forward, input backward and weight backward take equally long."""


@dataclass(frozen=True)
class StageCall:
    """One call of a rank."""

    task: str
    stage: int
    microbatch: int


@dataclass
class Rank:
    """One rank's function: its ops in order, and the stage calls among them by position."""

    ops: list[ir.Operation]
    calls: dict[int, StageCall] = field(default_factory=dict)

    @property
    def order(self) -> list[StageCall]:
        """The calls in order."""
        return list(self.calls.values())


def ranks_of(module: ir.Operation, kind: str = "train") -> list[Rank]:
    """Return the functions of all positions of the pipeline axis, in order."""
    functions = list(step_functions(module))
    stages = {
        function_name(op): (str(op.attributes["hp.task"].value), int(op.attributes["hp.stage"].value))
        for op in functions
        if "hp.task" in op.attributes
    }
    found: dict[int, Rank] = {}
    for function in functions:
        if "hp.kind" not in function.attributes or function.attributes["hp.kind"].value != kind:
            continue
        rank = Rank([view.operation for view in body_of(function).operations])
        for index, op in enumerate(rank.ops):
            if op.name == "func.call":
                task, stage = stages[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
                rank.calls[index] = StageCall(task, stage, int(op.attributes["hp.microbatch"].value))
        found[int(function.attributes["hp.coordinate"].value)] = rank
    return [found[position] for position in range(len(found))]


@dataclass(frozen=True)
class Timeline:
    """A step in which only calls take time."""

    makespan: int
    bubble: float
    """Part of all ranks' time up to the end in which they are idle, in percent."""


def run_calls(module: ir.Operation, durations: Mapping[str, int] = UNIT) -> Timeline:
    """Run all ranks together: a call takes its task's time, a message none; collectives at the end are left out."""
    found = find_mesh(module)
    assert found is not None
    ranks = ranks_of(module)
    clocks = [0] * len(ranks)
    running = [_rank(position, rank, clocks, durations) for position, rank in enumerate(ranks)]
    sent: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    wanted: dict[int, tuple[int, int, int]] = {}
    active = {position: next(steps) for position, steps in enumerate(running)}
    while active:
        before = dict(active)
        for position, event in list(active.items()):
            while event is not None:
                kind, sender, receiver, number = event
                if kind == "send":
                    sent[sender, receiver].append(clocks[position])
                elif number < len(sent[sender, receiver]):
                    clocks[position] = max(clocks[position], sent[sender, receiver][number])
                else:
                    wanted[position] = (sender, receiver, number)
                    break
                event = next(running[position])
            if event is None:
                del active[position]
            else:
                active[position] = event
        assert active != before, f"ranks wait for each other: {wanted}"
    work = sum(durations[call.task] for rank in ranks for call in rank.order)
    makespan = max(clocks)
    return Timeline(makespan, 100 * (1 - work / (makespan * len(ranks))))


_Event = tuple[str, int, int, int]
"""Kind, sender, receiver and number on its channel of a message."""


def _rank(position: int, rank: Rank, clocks: list[int], durations: Mapping[str, int]) -> Iterator[_Event | None]:
    """Run one rank up to its next event, and in the end for ever give None."""
    futures: dict[ir.Value, tuple[int, int]] = {}
    received: defaultdict[int, int] = defaultdict(int)
    for index, op in enumerate(rank.ops):
        if index in rank.calls:
            clocks[position] += durations[rank.calls[index].task]
        elif op.name == "hp.send":
            yield "send", position, int(op.attributes["peer"].value), 0
        elif op.name == "hp.recv":
            peer = int(op.attributes["peer"].value)
            futures[op.results[0]] = (peer, received[peer])
            received[peer] += 1
        elif op.name == "hp.wait" and op.operands[0] in futures:
            peer, number = futures[op.operands[0]]
            yield "wait", peer, position, number
    while True:
        yield None


def peaks(module: ir.Operation) -> list[int]:
    """Return, per rank, the most pairs of a stage and a microbatch that it holds values of at once.

    A forward's are what it is given, other than the function's arguments, and what it makes: alive from the call to the
    last one of its stage that uses any of them.
    """
    found = []
    for rank in ranks_of(module):
        holders: dict[ir.Value, set[int]] = {}
        last: dict[int, int] = {}
        arguments = set(rank.ops[0].block.arguments) if rank.ops else set()
        for index, op in enumerate(rank.ops):
            if index not in rank.calls:
                continue
            for operand in op.operands:
                for forward in holders.get(operand, ()):
                    if rank.calls[forward].stage == rank.calls[index].stage:
                        last[forward] = index
            if rank.calls[index].task == "forward":
                last[index] = index
                for value in (*op.operands, *op.results):
                    if value not in arguments:
                        holders.setdefault(value, set()).add(index)
        changes: defaultdict[int, int] = defaultdict(int)
        for first, end in last.items():
            changes[2 * first] += 1
            changes[2 * end + 1] -= 1
        alive, most = 0, 0
        for _, change in sorted(changes.items()):
            alive += change
            most = max(most, alive)
        found.append(most)
    return found
