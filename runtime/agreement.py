"""Whether all ranks of a pipeline got through a step: one that fails does not leave the others waiting.

The ranks of a pipeline are given different parts of the work, so that one may fail where the others cannot. It goes on
sending and receiving, with zeros, all that its entry would have (`keep_company`); so the others reach the
end of the step, where all are told. Nothing has changed by then: gradients and buffers are written after it. No message
is left over either, so that the next step finds its own.

A rank that is gone cannot do that: its peers' connections break, or the process group's timeout ends their waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import RuntimeFault
from .collectives import RankOps
from .device import RankMesh
from .operators import torch_dtype
from .program import COLLECTIVES, HP_ATTRIBUTES, UNPACK_ARRIVAL, Function, Op, Program, TensorType

Stack = Sequence[tuple[str, int]]
"""Functions entered, outermost first, each with the position of the op that it is at."""

_WAITS = ("hp.wait", UNPACK_ARRIVAL)


@dataclass
class Fault:
    """Why a rank cannot finish a step.

    Attributes:
        text: for the user; it names the rank.
        stack: where it stopped; empty before the first op, None where it is not known what is left to do.
        when: seconds, to find the first of several.
    """

    text: str
    stack: Stack | None
    when: float = field(default_factory=time.time)


class Agreement:
    """Tells all ranks of a pipelined Program at the end of each step whether one has failed.

    Args:
        program: the Program.
        ranks: the mesh.

    Attributes:
        active: whether there is a pipeline of several ranks; otherwise none is told of another's failure.
    """

    def __init__(self, program: Program, ranks: RankMesh):
        self._rank = ranks.rank
        self._group: Any = None
        self.active = False
        axis = program.pipeline_axis
        if axis is not None and program.mesh.axis_size(axis) > 1:
            self._group = ranks.host_group()
            self.active = self._group is not None
        self._flag = torch.zeros(1, dtype=torch.int32)

    def settle(self, fault: Fault | None) -> None:
        """Meet the other ranks at the end of a step.

        Args:
            fault: of this rank.

        Raises:
            RuntimeFault: some rank has failed: with this one's text where it was the first to, or before it began.
        """
        self._flag.fill_(int(fault is not None))
        try:
            dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._group)
            if not int(self._flag):
                return
            told: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(told, None if fault is None else (fault.when, fault.text), group=self._group)
        except RuntimeError as error:
            text = f"rank {self._rank}: the ranks cannot agree that the step is done: {error}"
            raise RuntimeFault(text if fault is None else fault.text) from None
        when, text = min(item for item in told if item is not None)
        if fault is not None and (fault.when <= when or not fault.stack):
            raise RuntimeFault(fault.text)
        raise RuntimeFault(f"rank {self._rank}: the step failed on {text}")


def can_go_on(functions: Mapping[str, Function], stack: Stack) -> bool:
    """Tell whether it is known what communication is left when a rank has failed at a place.

    It is not where communication itself failed, or something in the middle of a function that does not say where.
    """
    if not stack:
        return False
    name, number = stack[-1]
    op = functions[name].ops[number]
    if op.target == "call":
        return not any(True for _ in _communication(functions, str(op.kwargs["function"]), 0))
    return not _communicates(op)


def _communicates(op: Op) -> bool:
    return op.target in COLLECTIVES or op.target in ("hp.send", "hp.recv") or op.target in _WAITS


class _Call:
    """A function that is gone through once.

    Attributes:
        types: of its values, as far as it has come.
        futures: what it has started, by value.
    """

    def __init__(self, function: Function):
        self.types = {index: argument.type for index, argument in enumerate(function.arguments)}
        self.futures: dict[int, Any] = {}


def _communication(functions: Mapping[str, Function], name: str, start: int) -> Iterator[tuple[Op, _Call]]:
    """Yield the communication ops of a function from a position on, and of what it calls."""
    function = functions[name]
    call = _Call(function)
    for number, op in enumerate(function.ops):
        if number >= start and op.target == "call":
            yield from _communication(functions, str(op.kwargs["function"]), 0)
        elif number >= start and _communicates(op):
            yield op, call
        for value, type_ in zip(op.results, op.types, strict=True):
            if type_ is not None:
                call.types[value] = type_


def _remaining(functions: Mapping[str, Function], entry: str, stack: Stack) -> Iterator[tuple[Op, _Call]]:
    if not stack:
        yield from _communication(functions, entry, 0)
    for name, number in reversed(stack):
        yield from _communication(functions, name, number + 1)


def keep_company(functions: Mapping[str, Function], entry: str, stack: Stack, ops: RankOps) -> None:
    """Run the communication that is left of a step, with zeros, for the sake of the other ranks.

    What was started before and not waited for is left to `RankOps.abandon`.

    Args:
        functions: that the rank runs, by name.
        entry: what it has entered.
        stack: where it stopped; empty for before its first op.
        ops: of the rank.

    Raises:
        RuntimeFault: a collective is of sizes that are not known.
        RuntimeError: the connection to the other ranks failed.
    """
    zeros: dict[TensorType, Tensor] = {}

    def operands(op: Op, call: _Call) -> list[Tensor]:
        found = []
        for value in op.operands():
            type_ = call.types[value]
            if None in type_.shape and op.target != "hp.send":
                raise RuntimeFault(f"the sizes of {type_} are not known")
            if type_ not in zeros:
                shape = [size or 0 for size in type_.shape]
                zeros[type_] = torch.zeros(shape, dtype=torch_dtype(type_.dtype), device=ops.device)
            found.append(zeros[type_])
        return found

    for op, call in _remaining(functions, entry, stack):
        known = HP_ATTRIBUTES.get(op.target, ())
        kwargs: dict[str, Any] = {
            name: value for name, value in op.kwargs.items() if name in known and value is not None
        }
        if op.target in _WAITS:
            future = call.futures.pop(next(iter(op.operands())), None)
            if future is not None:
                ops.wait(future)
        elif op.target == "hp.send":
            ops.send(operands(op, call), **kwargs)
        elif op.target == "hp.recv":
            kwargs["types"] = op.kwargs["types"]
            call.futures[op.results[0]] = ops.recv(**kwargs)
        else:
            start = getattr(ops, op.target.removeprefix("hp."))
            call.futures[op.results[0]] = start(operands(op, call), **kwargs)
