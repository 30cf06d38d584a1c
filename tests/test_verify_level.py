"""hp-verify-level on whole steps: what the passes make is silent, whatever a pass gets wrong in them is found."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from exports import captured
from large_step import large_step
from models import BY_NAME, CASES
from torch_mlir import ir

import hpir
from hpir.dialect.attributes import ints_attr
from hpir.dialect.context import make_context
from hpir.dialect.diagnostics import IRError
from hpir.dialect.levels import set_level
from hpir.dialect.signature import body_of, return_of, step_functions
from hpir.errors import PassError
from hpir.ir_passes.verification.findings import LIMIT
from hpir.ir_passes.verify_level import HpVerifyLevel

PLANS = {
    "fsdp": "hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp%s}",
    "uneven fsdp": "hp-set-mesh{axes=dp:3},hp-fsdp{axes=dp%s}",
    "one rank": "hp-set-mesh{axes=dp:1},hp-fsdp{axes=dp%s}",
    "hsdp": "hp-set-mesh{axes=rep:2,dp:2},hp-fsdp{axes=dp replicate-axes=rep%s}",
    "hsdp with an axis of one": "hp-set-mesh{axes=rep:1,dp:2},hp-fsdp{axes=dp replicate-axes=rep%s}",
    "two axes": "hp-set-mesh{axes=dp:2,ep:2},hp-fsdp{axes=dp,ep%s}",
    "data parallel": "hp-set-mesh{axes=dp:2},hp-fsdp{replicate-axes=dp%s}",
    "parameters kept": "hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp reshard-after-forward=false%s}",
    "low precision": "hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp param-dtype=bfloat16 reduce-dtype=float32%s}",
}


def fsdp_module(plan: str = "fsdp", name: str = "uneven") -> ir.Module:
    """Return an acceptance model taken through a plan."""
    case = BY_NAME[name]
    options = f" units={','.join(case.units)}" if case.units else ""
    options += f" ignore={','.join(case.ignore)}" if case.ignore else ""
    return hpir.run_passes(captured(name, 2).module, PLANS[plan] % options)


def body(module: ir.Module) -> list[ir.Operation]:
    function = next(step_functions(module.operation))
    return [view.operation for view in body_of(function).operations]


def named(module: ir.Module, name: str) -> list[ir.Operation]:
    return [op for op in body(module) if op.name == name]


def verify(module: ir.Module, level: str = "") -> None:
    with module.context:
        HpVerifyLevel(level).run(module.operation)


def errors(module: ir.Module, level: str = "") -> list[str]:
    """Return the messages of what is found, which is something."""
    with pytest.raises(IRError) as caught:
        verify(module, level)
    return [diagnostic.message for diagnostic in caught.value.diagnostics]


def retarget(wait: ir.Operation, value: ir.Value) -> None:
    """Make what used a wait's result use `value` instead, and drop the reduction."""
    start = wait.operands[0].owner.operation
    wait.results[0].replace_all_uses_with(value)
    wait.erase()
    start.erase()


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_captured_steps_are_joint(name: str) -> None:
    module = captured(name, 2).module
    verify(module)
    hpir.run_passes(module, "hp-simplify,hp-verify-level,cse,canonicalize,hp-verify-level")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_what_fsdp_makes_is_spmd(name: str, plan: str) -> None:
    module = fsdp_module(plan, name)
    verify(module)
    hpir.run_passes(module, "hp-simplify,hp-verify-level,canonicalize,hp-verify-level")


def test_every_reduction_left_out_is_found() -> None:
    """A replicated parameter that gets no reduction is the silent fault of data parallelism."""
    count = len(named(fsdp_module("data parallel"), "hp.all_reduce"))
    assert count == 6
    for number in range(count):
        module = fsdp_module("data parallel")
        start = named(module, "hp.all_reduce")[number]
        (wait,) = [use.owner.operation for use in start.results[0].uses]
        parameter = ir.ArrayAttr(start.attributes["hp.fqn"])[0]
        retarget(wait, start.operands[0])
        (message,) = errors(module)
        assert message.endswith("is not reduced over axis 'dp'")
        assert f"gradient of {str(parameter).replace(chr(34), chr(39))}" in message


def test_every_reduction_repeated_is_found() -> None:
    for plan in ("data parallel", "fsdp", "low precision"):
        count = len(named(fsdp_module(plan), "hp.reduce_scatter")) or 6
        for number in range(count):
            module = fsdp_module(plan)
            kind = "hp.all_reduce" if plan == "data parallel" else "hp.reduce_scatter"
            start = named(module, kind)[number]
            (wait,) = [use.owner.operation for use in start.results[0].uses]
            with module.context:
                attributes = {key: start.attributes[key] for key in start.attributes if key != "dims"}
                again = ir.Operation.create(
                    "hp.all_reduce",
                    results=[ir.Type.parse(f"!hp.future<[{wait.results[0].type}]>")],
                    operands=[wait.results[0]],
                    attributes=attributes,
                    loc=wait.location,
                    ip=ir.InsertionPoint.after(wait),
                )
                waited = ir.Operation.create(
                    "hp.wait",
                    results=[wait.results[0].type],
                    operands=[again.results[0]],
                    loc=wait.location,
                    ip=ir.InsertionPoint.after(again),
                )
            wait.results[0].replace_all_uses_except(waited.results[0], again)
            (message,) = errors(module)
            assert message.endswith("is reduced twice over axis 'dp'"), message


def test_every_kind_of_reduction_turned_is_found() -> None:
    for number in range(6):
        module = fsdp_module()
        with module.context:
            named(module, "hp.reduce_scatter")[number].attributes["reduce"] = ir.StringAttr.get("sum")
        (message,) = errors(module)
        assert "by 'sum', expected 'avg'" in message


def test_every_gather_left_out_is_found() -> None:
    """With shapes that happen to fit, nothing else would notice."""
    count = len(named(fsdp_module("one rank"), "hp.all_gather"))
    assert count == 8
    for number in range(count):
        module = fsdp_module("one rank")
        gather = named(module, "hp.all_gather")[number]
        parameter = str(ir.ArrayAttr(gather.attributes["hp.fqn"])[0]).strip('"')
        (wait,) = [use.owner.operation for use in gather.results[0].uses]
        retarget(wait, gather.operands[0])
        verify(module)  # one rank has it all
        with module.context:
            module.body.operations[0].operation.attributes["axis_sizes"] = ints_attr([2])
        (message,) = errors(module)
        assert f"computes with '{parameter}'" in message
        assert message.endswith("which is split over data axis 'dp': gather it first")


def test_swapped_gradients_are_found() -> None:
    module = fsdp_module("data parallel", "long_skip")
    end = return_of(next(step_functions(module.operation)))
    verify(module)
    first, second = end.operands[1], end.operands[2]
    assert first.type != second.type
    text = str(module)
    assert 'hp.fqn = ["l1.weight"], hp.role = "grad"' in text
    swapped = text.replace('hp.fqn = ["l1.weight"], hp.role = "grad"', 'hp.fqn = ["l1.bias"], hp.role = "grad"')
    messages = errors(ir.Module.parse(swapped, module.context))
    assert any("expected the parameter's type" in message for message in messages)
    assert any("parameter 'l1.bias' has another gradient" in message for message in messages)
    assert any("parameter 'l1.weight' is trainable and the loss depends on it" in message for message in messages)


def test_the_level_asked_for_is_the_one_checked() -> None:
    module = captured("uneven", 2).module
    verify(module, "joint")
    verify(module, "annotated")
    verify(module, "spmd")  # of one rank
    sharded = fsdp_module()
    assert any("is not allowed at level 'joint'" in message for message in errors(sharded, "joint"))
    with module.context:
        set_level(module.operation, "program")
    assert errors(module) == ["has stages, expected a mesh"]
    verify(module, "joint")


def test_an_unknown_level_names_the_nearest() -> None:
    with pytest.raises(PassError, match=r"^option 'level' names no level: 'smpd', did you mean 'spmd'\?$"):
        HpVerifyLevel("smpd")
    with pytest.raises(PassError, match=r"^option 'level' names no level: 'q', expected one of joint, annotated, spmd"):
        HpVerifyLevel("q")


def test_many_findings_are_cut_short() -> None:
    text = large_step(15, 0).replace('hp.role = "grad"', 'hp.role = "buffer"')
    messages = errors(ir.Module.parse(text, make_context()))
    assert len(messages) == LIMIT + 1
    assert messages[0].endswith(
        "parameter 'layers.0.w' is trainable and the loss depends on it, but it has no gradient"
    )
    assert messages[-1] == "40 more errors not shown"


def test_the_tools_show_place_note_and_module() -> None:
    module = fsdp_module("data parallel")
    start = named(module, "hp.all_reduce")[0]
    (wait,) = [use.owner.operation for use in start.results[0].uses]
    retarget(wait, start.operands[0])
    command = [sys.executable, "-m", "hpir.tools.hp_opt", "-", "--hp-verify-level"]
    done = subprocess.run(command, input=str(module), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    error, note = done.stderr.splitlines()
    assert ": error: 'torch.aten.view' op gradient of 'out.bias' (module 'out') is not reduced over axis 'dp'" in error
    assert note.endswith(": note: returned here as result 6")


def test_time_grows_with_the_module() -> None:
    """Ten times the ops take some ten times as long; 100,000 take about a second."""
    seconds = {}
    for layers in (200, 2000):
        module = ir.Module.parse(large_step(layers, 13), make_context())
        hpir.run_passes(module, "hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp units=layers.*}")
        times = []
        for _ in range(3):
            start = time.process_time()
            verify(module)
            times.append(time.process_time() - start)
        seconds[layers] = min(times)
    assert seconds[2000] < 25 * seconds[200]
    assert seconds[2000] < 10
