"""hp-split-stages on captured steps: the stage functions together compute what the step did, each op once.

The IR is in filecheck/pipeline/split_stages*.mlir.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from exports import captured
from large_step import large_step
from models import BY_NAME, CASES
from stage_placement import place_by_module
from staged_program import check_crossings, check_no_views, staged_program
from torch_mlir import ir

import hpir
from hpir.dialect.attributes import i64_attr
from hpir.dialect.diagnostics import IRError
from hpir.dialect.parsing import parse_module
from hpir.dialect.signature import body_of, step_functions
from hpir.ir_passes.pipeline.split_stages import HpSplitStages
from hpir.ir_passes.views import CASTS, VIEWS, operator_name
from hpir.lowering.to_program import to_program
from hpir.runtime.program import Program
from hpir.runtime.simulate import SimulationResult

Stages = Sequence[Sequence[str]]

# By hand, for every acceptance model: layers that are split, a tie over two stages or three, state on several stages,
# a stage in the middle with nothing trainable.
STAGES: dict[str, tuple[Stages, ...]] = {
    "tied": ([["embed", "layers.0"], ["layers.1", "head"]], [["embed"], ["layers"], ["head"]]),
    "uneven": ([["up"], ["mid", "out"]], [["up"], ["mid"], ["out"]]),
    "long_skip": ([["l1"], ["l2", "l3"]], [["l1"], ["l2"], ["l3"]]),
    "rotary": ([["embed", "layers.0"], ["layers.1", "head"]], [["embed", "layers.0"], ["layers.1"], ["norm", "head"]]),
    "adapters": ([["encoder"], ["down", "up", "head"]], [["encoder"], ["down"], ["up", "head"]]),
    "unused": ([["first"], ["last"]], [["first"], [], ["last"]]),
    "convnet": ([["features"], ["head"]], [["features.0", "features.1"], ["features.3"], ["features.4", "head"]]),
    "image_text": ([["patch", "embed", "layers.0"], ["layers.1", "head"]], [["patch", "embed"], ["layers"], ["head"]]),
    "outputs": ([["embed", "layers.0"], ["layers.1", "head"]], [["embed", "layers.0"], ["layers.1"], ["head"]]),
    "ignored_tokens": ([["embed", "layers"], ["head"]], [["embed"], ["layers"], ["head"]]),
    "dropout": ([["embed", "layers.0"], ["layers.1", "head"]], [["embed"], ["layers"], ["head"]]),
    "twice": ([["shared"], ["head"]], [["shared"], [], ["head"]]),
    "strided": ([["first"], ["second"]], [["first"], ["second"], []]),
    "ignored": ([["up"], ["mid", "out"]], [["up"], ["mid"], ["out"]]),
}


def step_of(name: str) -> ir.Operation:
    """Return a captured acceptance model on a mesh with a pipeline axis."""
    return hpir.run_passes(captured(name, 4).module.operation.clone(), "hp-set-mesh{axes=pp:2},hp-simplify")


def simulated(module: ir.Operation, whole: Program, name: str, rows: int) -> SimulationResult:
    """Run a staged module stage by stage."""
    batch = BY_NAME[name].data(rows, torch.float64)
    return hpir.simulate(staged_program(module, whole), captured(name, 4).state, batch, check_types=True)


def assert_same(found: SimulationResult, expected: SimulationResult, tolerance: float = 0.0) -> None:
    """Check loss, gradients and buffers: bitwise, or gradients within a tolerance."""
    assert torch.equal(found.loss, expected.loss)
    assert set(found.grads) == set(expected.grads)
    assert set(found.buffers) == set(expected.buffers)
    for key, gradient in expected.grads.items():
        torch.testing.assert_close(found.grads[key], gradient, rtol=tolerance, atol=tolerance, msg=key)
    for key, buffer in expected.buffers.items():
        assert torch.equal(found.buffers[key], buffer), key


def test_every_model_has_stages() -> None:
    assert set(STAGES) == {case.name for case in CASES}


@pytest.mark.parametrize("name", sorted(STAGES))
def test_stages_compute_what_the_step_does(name: str) -> None:
    whole = to_program(step_of(name), microbatches=2)
    expected = hpir.simulate(whole, captured(name, 4).state, BY_NAME[name].data(8, torch.float64))
    for stages, split in zip(STAGES[name], ("false", "true"), strict=True):
        module = step_of(name)
        place_by_module(module, stages)
        staged = hpir.run_passes(module, f"hp-split-stages{{split-backward={split}}},hp-verify-level")
        check_crossings(staged)
        check_no_views(staged)
        assert_same(simulated(staged, whole, name, 8), expected)


SHARDED = "hp-set-mesh{axes=pp:2,dp:2},hp-simplify,hp-fsdp{axes=dp%s},hp-simplify"


@pytest.mark.parametrize(
    ("name", "reshard"),
    [("tied", "true"), ("rotary", "false"), ("convnet", "true"), ("ignored_tokens", "false"), ("adapters", "true")],
)
def test_stages_of_sharded_steps(name: str, reshard: str) -> None:
    module = captured(name, 4).module.operation.clone()
    module = hpir.run_passes(module, SHARDED % f" reshard-after-forward={reshard}")
    whole = to_program(module, microbatches=2)
    expected = hpir.simulate(whole, captured(name, 4).state, BY_NAME[name].data(16, torch.float64))
    gathers = Counter(op_names(module))["hp.all_gather"]
    split = "hp-assign-stages{axis=pp stages=2},hp-split-stages{split-backward=true},hp-verify-level"
    staged = hpir.run_passes(module, split)
    # Two stages hold the tied weight and gather it both; nothing else is gathered more often than before.
    owners = Counter(op_names(staged))["hp.all_gather"] - gathers
    assert owners in ((1, 2) if name in ("tied", "ignored_tokens") else (0,))
    assert_same(simulated(staged, whole, name, 16), expected, 1e-12)


@pytest.mark.parametrize("split", ["false", "true"])
def test_every_op_is_in_one_function(split: str) -> None:
    module = step_of("convnet")
    place_by_module(module, STAGES["convnet"][1])
    before = Counter(op_names(module))
    staged = hpir.run_passes(module, f"hp-split-stages{{split-backward={split}}},hp-verify-level")
    added = Counter(op_names(staged)) - before
    # Two of the fused ops are asked for gradients of inputs and of weights by different functions.
    fused = {"torch.aten.native_batch_norm_backward": 1, "torch.aten.convolution_backward": 1}
    assert {name: n for name, n in added.items() if name.endswith("_backward")} == (fused if split == "true" else {})
    assert not before - Counter(op_names(staged))


def op_names(module: ir.Operation) -> Iterator[str]:
    """Yield the names of all ops but constants, lists, views and returns."""
    for function in step_functions(module):
        for view in body_of(function).operations:
            name = view.operation.name
            cheap = "constant" in name or "Construct" in name or operator_name(view.operation) in VIEWS | CASTS
            if not cheap and name != "func.return":
                yield name


def test_a_refused_module_is_as_it_was() -> None:
    cases = (Path(__file__).parent / "filecheck" / "pipeline" / "split_stages_errors.mlir").read_text()
    refused = 0
    for text in cases.split("// -----"):
        module = parse_module(text)
        before = str(module)
        with pytest.raises(IRError):
            HpSplitStages(split_backward=True).run(module.operation)
        assert str(module) == before
        refused += 1
    assert refused > 15


def test_a_captured_step_survives_a_late_refusal() -> None:
    module = step_of("long_skip")
    place_by_module(module, STAGES["long_skip"][1])
    ops = [view.operation for function in step_functions(module) for view in body_of(function).operations]
    last = next(op for op in reversed(ops) if operator_name(op) == "aten.mm")
    with module.context:
        last.attributes["hp.stage"] = i64_attr(2)
    before = str(module)
    with pytest.raises(IRError, match="which runs later"):
        HpSplitStages().run(module)
    assert str(module) == before


def test_time_is_linear_in_ops() -> None:
    times = []
    for layers in (100, 800):
        module = hpir.run_passes(parse_module(large_step(layers, 9)).operation, "hp-set-mesh{axes=pp:8}")
        hpir.run_passes(module, "hp-assign-stages{axis=pp stages=8}")
        start = time.process_time()
        HpSplitStages(split_backward=True).run(module)
        times.append(time.process_time() - start)
    assert times[1] < 8 * 2.5 * times[0] + 0.5
