"""How much each rank of a pipeline holds, op by op: read from the program alone.

A value is held from the op that makes it until the last that uses it or a view of it; a message's buffer from where the
receive is posted, what a collective is given until the wait, a sum in its first term's memory. During a call, the
callee's own values come on top, at their most: each stage function is measured once. State and the batch, which are
there anyhow, do not count. A size that is not static counts as the largest `hp.example` of the module's sizes.

A microbatch is alive on a stage from the call of its forward to the last call of it; on a rank of several stages, each
counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir

from ...dialect.attributes import future_types
from ...dialect.diagnostics import collecting, remark
from ...dialect.signature import body_of
from ...dialect.types import DTYPE_BYTES, tensor_type
from ...sizes import MIB
from ..views import VIEWS, operator_name
from .channels import COLLECTIVES
from .findings import Findings
from .rank_functions import KINDS, Pipeline, RankFunction, read_pipeline

_SHARES = VIEWS | {"hp.microbatch", "hp.wait", "prim.ListConstruct"}
"""Ops whose results are in their operands' memory."""


@dataclass(frozen=True)
class RankMemory:
    """What a rank function holds.

    Attributes:
        name: of the function, such as ``rank0``.
        coordinate: position on the pipeline axis.
        kind: "train" or "evaluate".
        alive: bytes held while each of its ops runs, in order.
        peak_bytes: the most of them.
        peak_op: number of the first op with that many.
        microbatches: most microbatches alive at once.
    """

    name: str
    coordinate: int
    kind: str
    alive: tuple[int, ...]
    peak_bytes: int
    peak_op: int
    microbatches: int


def live_bytes(module: ir.Operation) -> tuple[RankMemory, ...]:
    """Return what the rank functions of a module at level "program" hold: to train, then to evaluate, by position.

    Raises:
        IRError: the module is not made up of stage and rank functions.
    """
    findings = Findings()
    pipeline = read_pipeline(module, findings)
    findings.raise_any()
    return measure(pipeline)


def measure(pipeline: Pipeline) -> tuple[RankMemory, ...]:
    """Return what the rank functions of a pipeline hold."""
    functions = pipeline.stages.functions
    examples = [info.example or 1 for function in functions for info in function.signature.with_role("size")]
    unknown = max(examples, default=1)
    inside: dict[str, int] = {}
    for function in functions:
        ops = [view.operation for view in body_of(function.op).operations]
        inside[function.name] = max(_alive(ops, unknown, {}), default=0)
    return tuple(_measure_rank(pipeline, rank, unknown, inside) for kind in KINDS for rank in pipeline.ranks[kind])


def remark_peaks(pipeline: Pipeline) -> None:
    """Say what each rank holds at most, where anybody listens."""
    if not collecting():
        return
    memories = {(memory.kind, memory.coordinate): memory for memory in measure(pipeline)}
    for rank in pipeline.ranks["train"]:
        memory = memories[rank.kind, rank.coordinate]
        plural = "" if memory.microbatches == 1 else "es"
        remark(
            rank.op,
            f"@{rank.name}: peak {_spelled(memory.peak_bytes)}, {memory.microbatches} microbatch{plural} alive",
        )


def _spelled(size: int) -> str:
    return f"{size / MIB:.1f} MiB" if size >= MIB else f"{size} bytes"


def _measure_rank(pipeline: Pipeline, rank: RankFunction, unknown: int, inside: dict[str, int]) -> RankMemory:
    alive = _alive(rank.ops, unknown, inside)
    peak = max(alive, default=0)
    return RankMemory(
        rank.name, rank.coordinate, rank.kind, tuple(alive), peak, alive.index(peak), _microbatches(pipeline, rank)
    )


def _microbatches(pipeline: Pipeline, rank: RankFunction) -> int:
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    count = 0
    for op in rank.ops:
        if op.name != "func.call":
            continue
        function = pipeline.callees.get(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
        microbatch = op.attributes.get("hp.microbatch")
        if function is not None and isinstance(microbatch, ir.IntegerAttr):
            key = (function.stage, int(microbatch.value))
            first.setdefault(key, count)
            last[key] = count
            count += 1
    changes = [0] * (count + 1)
    for key, begin in first.items():
        changes[begin] += 1
        changes[last[key] + 1] -= 1
    most = now = 0
    for change in changes:
        now += change
        most = max(most, now)
    return most


def _alive(ops: Sequence[ir.Operation], unknown: int, inside: dict[str, int]) -> list[int]:
    """Return the bytes held while each op runs; `inside` has what callees hold themselves."""
    memory: dict[ir.Value, tuple[int, ...]] = {}  # numbers of the pieces of memory that a value is in
    arriving: dict[ir.Value, tuple[int, ...]] = {}  # of what a collective's operands become, which it holds too
    sizes: list[int] = []
    last: list[int] = []
    made: list[list[int]] = []
    for number, op in enumerate(ops):
        pieces: list[int] = []
        held = [memory[operand] for operand in op.operands if operand in memory]
        for operand_pieces in held:
            for piece in operand_pieces:
                last[piece] = number
        name = op.name
        shares = operator_name(op) in _SHARES
        half = len(op.results) if name == "hp.accumulate" else 0
        for index, result in enumerate(op.results):
            if name == "hp.wait" and op.operands[0] in arriving:
                memory[result] = arriving[op.operands[0]]
            elif shares:
                memory[result] = tuple(dict.fromkeys(piece for operand in held for piece in operand))
            elif half and op.operands[index] in memory:
                memory[result] = memory[op.operands[index]]
            elif size := _bytes(op, result, unknown):
                memory[result] = (len(sizes),)
                if name in COLLECTIVES:
                    arriving[result] = memory[result]
                    memory[result] += tuple(piece for operand in held for piece in operand)
                pieces.append(len(sizes))
                sizes.append(size)
                last.append(number)
        made.append(pieces)
    gone: list[list[int]] = [[] for _ in ops]
    for piece, number in enumerate(last):
        gone[number].append(piece)
    alive = []
    now = 0
    for number, op in enumerate(ops):
        own = sum(sizes[piece] for piece in made[number])
        callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value if op.name == "func.call" else ""
        alive.append(now + max(own, inside.get(callee, 0)))
        now += own - sum(sizes[piece] for piece in gone[number])
    return alive


def _bytes(op: ir.Operation, value: ir.Value, unknown: int) -> int:
    """Return the bytes of a tensor, or of what a future receives; literals and all else need none."""
    if op.name == "torch.vtensor.literal":
        return 0
    futures = op.name in COLLECTIVES or op.name == "hp.recv"
    total = 0
    for type_ in future_types(value.type) if futures else [value.type]:
        tensor = tensor_type(type_)
        if tensor is not None:
            elements = math.prod(unknown if size is None else size for size in tensor.shape)
            total += elements * DTYPE_BYTES[tensor.dtype]
    return total
