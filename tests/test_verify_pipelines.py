"""hp-verify-level on pipelines of captured models: what the passes make is silent, and any value swapped is found."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from deep_models import captured_deep
from exports import captured
from models import BY_NAME
from torch_mlir import ir

import hpir
from hpir.dialect.attributes import find_mesh
from hpir.dialect.diagnostics import IRError
from hpir.dialect.parsing import parse_module
from hpir.dialect.signature import body_of, function_name, read_signature, step_functions
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


def test_parameters_that_share_gathers_and_gradients() -> None:
    """A parameter gathered in two forms, and one partial gradient of two parameters."""
    module = captured_deep("derived").module
    hpir.run_passes(
        module,
        "hp-set-mesh{axes=pp:2,dp:2},hp-simplify,hp-fsdp{axes=dp units=layers.*},hp-simplify,"
        f"hp-assign-stages{{axis=pp stages=2}},hp-split-stages,{VERIFIED},{scheduled('1f1b', 2)},"
        f"hp-hoist-gathers,{VERIFIED},hp-sink-reductions,{VERIFIED}",
    )
    found = find_mesh(module.operation)
    assert found is not None
    partial = [
        info
        for function in step_functions(module.operation)
        for info in read_signature(function, found[1]).results_with_role("partial")
    ]
    assert any(len(info.names) > 1 for info in partial)


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


def weighted() -> ir.Module:
    """Return a pipeline whose loss is divided by a weight."""
    module = staged("ignored_tokens", "1f1b", data=False)
    hpir.run_passes(module, scheduled("1f1b", 2))
    return module


def messages(module: ir.Module) -> list[str]:
    with pytest.raises(IRError) as caught:
        hpir.run_passes(module, VERIFIED)
    return [diagnostic.message for diagnostic in caught.value.diagnostics]


def test_a_weight_of_one_microbatch() -> None:
    module = weighted()
    ops = operations(module, "rank1")
    (broadcast,) = [op for op in ops if op.name == "hp.broadcast"]
    (forward, _) = [op for op in ops if op.name == "func.call" and "stage1_forward" in str(op)]
    weight = list(broadcast.operands[1].owner.operation.results)
    assert len(weight) == 2  # the sums of loss and weight
    broadcast.operands[1] = next(result for result in forward.results if result.type == broadcast.operands[1].type)
    found = messages(module)
    assert found[0] == "'torch.aten.div.Tensor' op divides the loss by the weight of some microbatches only"


def test_some_are_divided_by_the_weight_and_some_are_not() -> None:
    module = weighted()
    end = operations(module, "rank0")[-1]
    for place in range(2, len(end.operands)):
        divided = end.operands[place].owner.operation
        end.operands[place] = divided.operands[0]
    found = messages(module)
    assert len(found) == len(end.operands) - 2
    assert all(text.endswith("is not divided, expected it divided by the weight") for text in found)


def test_a_step_may_leave_its_sums_undivided() -> None:
    """As for a loss that is scaled: if the loss is not divided, no gradient is."""
    module = weighted()
    for name in ("rank0", "rank1"):
        end = operations(module, name)[-1]
        for place in range(len(end.operands)):
            divided = end.operands[place].owner.operation
            if "div" in divided.name:
                end.operands[place] = divided.operands[0]
    hpir.run_passes(module, VERIFIED)


def test_the_weight_is_neither_left_out_nor_divided() -> None:
    text = str(weighted())
    begin = text.index("func.func @rank0(")
    head, tail = text[:begin], text[begin:]
    returned = re.search(r"return (%\d+), (%\d+#1), ", tail)
    assert returned
    without = tail.replace('!torch.vtensor<[],si64> {hp.role = "weight"}, ', "", 1)
    without = without.replace(returned[0], f"return {returned[1]}, ", 1)
    line = without.index(f"return {returned[1]}, ")
    without = without[:line] + without[line:].replace("!torch.vtensor<[],si64>, ", "", 1)
    assert messages(parse_module(head + without)) == [
        "'func.func' op @rank0 returns no weight, which the loss is divided by"
    ]
    divide = (
        f"%by = torch.constant.int 2\n    %part = torch.aten.div.Scalar {returned[2]}, %by : "
        "!torch.vtensor<[],si64>, !torch.int -> !torch.vtensor<[],si64>\n    "
    )
    divided = tail.replace(returned[0], f"{divide}return {returned[1]}, %part, ", 1)
    assert messages(parse_module(head + divided)) == [
        "'torch.aten.div.Scalar' op result 1 of @rank0 ('weight'): the weight is divided"
    ]
