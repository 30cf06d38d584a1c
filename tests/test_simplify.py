"""hp-simplify on whole steps: it changes no number, wherever it stands, and its time grows with the module."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest
import torch
from exports import captured
from large_step import large_step
from models import BY_NAME, CASES
from torch import Tensor
from torch_mlir import ir

import hpir
from hpir.dialect.context import make_context
from hpir.dialect.hp import COMMUNICATION
from hpir.dialect.signature import body_of, read_signature, step_functions
from hpir.ir_passes.cleanup.simplify import HpSimplify
from hpir.ir_passes.effects import Effect, effect_of
from hpir.lowering.to_program import to_program

pytestmark = pytest.mark.one_in(2)

CLEANUPS = ("cse", "canonicalize", "hp-simplify")
PIPELINES = {
    "one rank": (),
    "fsdp": ("hp-set-mesh{axes=dp:2}", "hp-fsdp{axes=dp units=layers.*}"),
    "fsdp, parameters kept": ("hp-set-mesh{axes=dp:2}", "hp-fsdp{axes=dp units=layers.* reshard-after-forward=false}"),
    "hsdp, low precision": (
        "hp-set-mesh{axes=rep:2,dp:2}",
        "hp-fsdp{axes=dp replicate-axes=rep units=layers.* param-dtype=bfloat16 reduce-dtype=float32}",
    ),
}


def run(name: str, pipeline: list[str], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Simulate an acceptance model taken through a pipeline; loss, gradients and buffers by name."""
    case, exported = BY_NAME[name], captured(name, 2, dtype)
    if pipeline:
        hpir.run_passes(exported.module, ",".join(pipeline))
    program = to_program(exported.module)
    result = hpir.simulate(program, exported.state, case.data(2 * program.mesh.count(program.data_axes), dtype))
    return {"loss": result.loss, **result.grads, **{f"buffer {key}": value for key, value in result.buffers.items()}}


def check_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, value in found.items():
        assert torch.equal(value, expected[key]), key


def count_ops(module: ir.Module) -> Counter[str]:
    return Counter(op.operation.name for function in step_functions(module) for op in body_of(function).operations)


@pytest.mark.parametrize("kind", PIPELINES)
def test_cleanups_at_any_point_of_a_pipeline_change_no_result(kind: str) -> None:
    """An attention model, bitwise; each cleanup at each point, and all of them at all points."""
    steps = list(PIPELINES[kind])
    expected = run("rotary", steps)
    assert all(value.isfinite().all() for value in expected.values())
    for point, cleanup in itertools.product(range(len(steps) + 1), CLEANUPS):
        check_equal(run("rotary", [*steps[:point], cleanup, *steps[point:]]), expected)
    for order in (CLEANUPS, CLEANUPS[::-1]):
        everywhere = [*order, *itertools.chain.from_iterable((step, *order) for step in steps)]
        check_equal(run("rotary", everywhere), expected)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_every_model_keeps_its_numbers(name: str) -> None:
    steps = ["hp-set-mesh{axes=dp:2}", "hp-fsdp{axes=dp}"]
    check_equal(run(name, ["hp-simplify", *steps, "hp-simplify"], torch.float64), run(name, steps, torch.float64))


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_nothing_is_left_to_do_and_the_signature_stays(name: str) -> None:
    exported = captured(name, 2)
    function = next(step_functions(exported.module.operation))
    signature = read_signature(function)
    before = count_ops(exported.module)
    hpir.run_passes(exported.module, "hp-simplify")
    text, after = str(exported.module), count_ops(exported.module)
    assert read_signature(function) == signature
    assert after.total() < before.total()
    for view in body_of(function).operations:
        op = view.operation
        if effect_of(op) is Effect.PURE:
            assert any(next(iter(result.uses), None) for result in op.results), op
    hpir.run_passes(exported.module, "hp-simplify")
    assert str(exported.module) == text


@pytest.mark.parametrize("options", ["", " reshard-after-forward=false"])
def test_the_communication_of_a_pass_stays(options: str) -> None:
    """What hp-fsdp makes is neither dead nor double: the backward's gathers are not the forward's."""
    exported = captured("rotary", 2)
    hpir.run_passes(exported.module, f"hp-set-mesh{{axes=dp:2}},hp-fsdp{{axes=dp{options}}}")
    made = {name: count for name, count in count_ops(exported.module).items() if name in COMMUNICATION}
    hpir.run_passes(exported.module, "hp-simplify")
    left = {name: count for name, count in count_ops(exported.module).items() if name in COMMUNICATION}
    assert left == made != {}


@pytest.mark.everything
def test_time_grows_with_the_module() -> None:
    """Ten times the ops take some ten times as long; 100,000 take about a second."""
    seconds = {}
    for layers in (300, 3000):
        times = []
        for _ in range(2):
            module = ir.Module.parse(large_step(layers, 13), make_context())
            start = time.process_time()
            HpSimplify().run(module.operation)
            times.append(time.process_time() - start)
        seconds[layers] = min(times)
        assert count_ops(module).total() > 30 * layers
    assert seconds[3000] < 25 * seconds[300]
    assert seconds[3000] < 10
