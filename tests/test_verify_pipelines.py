"""hp-verify-level on pipelines of captured models: what the passes make is silent, and any value swapped is found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from exports import captured
from models import BY_NAME
from torch_mlir import ir

import hpir
from hpir.dialect.diagnostics import IRError
from hpir.dialect.signature import body_of, function_name, step_functions
from hpir.ir_passes.verification.live_bytes import live_bytes

STAGES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1, "zb-v": 2, "dualpipe-v": 2}
"""Stages per rank of each schedule."""
SPLIT = ("zb-h1", "zb-v", "dualpipe-v")
VERIFIED = "hp-verify-level"


def staged(name: str, schedule: str, *, data: bool) -> ir.Module:
    """Return a model cut into stages for two ranks, and for two data ranks with FSDP."""
    case = BY_NAME[name]
    module = captured(name, 4).module
    fsdp = ""
    if data:
        options = f" units={','.join(case.units)}" if case.units else ""
        options += f" ignore={','.join(case.ignore)}" if case.ignore else ""
        fsdp = f"hp-fsdp{{axes=dp{options}}},hp-simplify,"
    split = "{split-backward}" if schedule in SPLIT else ""
    hpir.run_passes(
        module,
        f"hp-set-mesh{{axes=pp:2{',dp:2' if data else ''}}},hp-simplify,{fsdp}"
        f"hp-assign-stages{{axis=pp stages={2 * STAGES[schedule]}}},hp-split-stages{split},{VERIFIED}",
    )
    return module


def scheduled(schedule: str, microbatches: int) -> str:
    return f"hp-schedule-pipeline{{schedule={schedule} microbatches={microbatches}}},{VERIFIED}"


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("tied", "gpipe"),
        ("rotary", "1f1b"),
        ("ignored_tokens", "interleaved"),
        ("convnet", "zb-h1"),
        ("image_text", "zb-v"),
        ("tied", "dualpipe-v"),
        ("adapters", "1f1b"),
        ("dropout", "zb-v"),
        ("uneven", "zb-h1"),
    ],
)
def test_what_passes_make_is_right(name: str, schedule: str) -> None:
    module = staged(name, schedule, data=True)
    hpir.run_passes(module, f"hp-bucket-collectives,hp-expand-buckets,hp-overlap-collectives,{VERIFIED}")
    hpir.run_passes(module, scheduled(schedule, 3))
    hpir.run_passes(module, f"hp-hoist-gathers,{VERIFIED},hp-sink-reductions,{VERIFIED}")


@pytest.mark.parametrize("name", ["long_skip", "unused", "outputs", "strided", "twice"])
def test_what_passes_make_without_data_ranks_is_right(name: str) -> None:
    module = staged(name, "1f1b", data=False)
    hpir.run_passes(module, scheduled("1f1b", 1))


def swaps(module: ir.Module, name: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield the uses of a function's tensors by ops and returns, each with another value of its type made before.

    A use is the numbers of the op and of its operand, a value those of the op and of its result.
    """
    ops = operations(module, name)
    for number, op in enumerate(ops):
        for place, operand in enumerate(op.operands):
            others = [
                (before, index)
                for before in range(number)
                for index, result in enumerate(ops[before].results)
                if result.type == operand.type and result != operand and "tensor" in str(result.type)
            ]
            for before, index in (*others[:1], *others[1:][-1:]):
                yield number, place, before, index


def operations(module: ir.Module, name: str) -> list[ir.Operation]:
    (function,) = [op for op in step_functions(module.operation) if function_name(op) == name]
    return [view.operation for view in body_of(function).operations]


@pytest.mark.parametrize("name", ["rank0", "rank1"])
def test_every_swapped_value_is_found(name: str) -> None:
    """All but one: the loss of the rank that has it is the same in front of the broadcast and behind it."""
    module = staged("long_skip", "1f1b", data=False)
    hpir.run_passes(module, scheduled("1f1b", 2))
    silent, tried = [], 0
    for number, place, before, index in list(swaps(module, name))[::2]:
        copy = module.operation.clone()
        ops = operations(copy, name)
        ops[number].operands[place] = ops[before].results[index]
        tried += 1
        try:
            hpir.run_passes(copy, VERIFIED)
        except IRError:
            continue
        silent.append(str(ops[number]))
    assert tried >= 20
    assert all("func.return" in text for text in silent)
    assert len(silent) <= 1


@pytest.mark.parametrize(("schedule", "promised"), [("gpipe", (6, 6)), ("1f1b", (2, 1))])
def test_microbatches_that_a_schedule_holds(schedule: str, promised: tuple[int, int]) -> None:
    module = staged("long_skip", schedule, data=False)
    hpir.run_passes(module, scheduled(schedule, 6))
    memories = [memory for memory in live_bytes(module.operation) if memory.kind == "train"]
    assert tuple(memory.microbatches for memory in memories) == promised
    assert all(memory.peak_bytes == max(memory.alive) == memory.alive[memory.peak_op] for memory in memories)
