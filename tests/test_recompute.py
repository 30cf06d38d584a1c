"""hp-recompute on captured steps: the same numbers, and how much less is kept, beside eager torch's own checkpoints.

What it does to the IR is in filecheck/recompute/recompute*.mlir, what capture marks in test_capture_checkpoint.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture_check import assert_captured, build_model, regression
from checkpointed_models import SELECTIVE, Nested, Normed, Returned, Shared, Skips, Tower, recomputed, train_returned
from large_step import large_step
from live_bytes import LiveBytes
from models import train_regression
from torch import Tensor, nn
from torch_mlir import ir

import hpir
from hpir.dialect.context import make_context
from hpir.dialect.diagnostics import collect
from hpir.dialect.signature import body_of, read_signature, step_functions
from hpir.ir_passes.recompute.recompute import HpRecompute
from hpir.lowering.exported import Exported
from hpir.lowering.to_program import to_program
from hpir.runtime.program import Op
from hpir.runtime.simulate import SimulationResult

BATCH = regression(6, 3)
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any]]] = {
    "tower": (Tower, train_regression),
    "pairs": (lambda: Tower(4, group=2), train_regression),
    "dropout": (lambda: Tower(p=0.3), train_regression),
    "selective": (lambda: Tower(**SELECTIVE), train_regression),
    "normed": (Normed, train_regression),
    "nested": (Nested, train_regression),
    "skips": (Skips, train_regression),
    "returned": (Returned, train_returned),
    "shared": (Shared, train_regression),
}
DATA = {name: torch.cat([leaf, leaf.flip(0), 0.5 * leaf]).double() for name, leaf in BATCH.items()}
PARALLEL = {
    "one rank": "",
    "dp": ",hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp}",
    "uneven": ",hp-set-mesh{axes=dp:3},hp-fsdp{axes=dp units=layers.*}",
    "hsdp": ",hp-set-mesh{axes=rep:2,dp:2},hp-fsdp{axes=dp replicate-axes=rep units=layers.*}",
    "no reshard": ",hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp units=layers.* reshard-after-forward=false}",
    "precision": ",hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp units=layers.* param-dtype=bfloat16}",
}


@functools.cache
def exported(name: str, rows: int) -> Exported:
    """Return a step as captured; passes run on clones of its module."""
    model, train = MODELS[name]
    return hpir.export(build_model(model), train, {key: leaf[:rows] for key, leaf in DATA.items()})


def simulated(step: Exported, pipeline: str, microbatches: int) -> SimulationResult:
    module = hpir.run_passes(step.module.operation.clone(), pipeline)
    state = {name: tensor.detach().clone() for name, tensor in step.state.items()}
    program = to_program(module, microbatches=microbatches)
    rows = microbatches * program.mesh.count(program.data_axes) * step_rows(step)
    batch = {name: leaf[:rows] for name, leaf in DATA.items()}
    return hpir.simulate(program, state, batch, check_types=True)


def step_rows(step: Exported) -> int:
    """Return the rows that a step was captured with."""
    (function,) = step_functions(step.module.operation)
    return read_signature(function).with_role("input")[0].type.shape[0] or 0


def assert_same(result: SimulationResult, expected: SimulationResult) -> None:
    assert torch.equal(result.loss, expected.loss)
    for kind in ("grads", "buffers", "outputs"):
        found, wanted = (getattr(one, kind) or {} for one in (result, expected))
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert torch.equal(found[name], value), f"{kind} {name}"


# Numbers.


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("dropout", "normed")])
def test_it_is_eager_torch_on_one_rank_and_on_four(name: str) -> None:
    assert_captured(*MODELS[name], BATCH)


def test_running_statistics_are_updated_once() -> None:
    # Eager torch updates them again when it recomputes: the reference is the model without regions.
    plain = build_model(lambda: Normed(regions=False))
    for part in (slice(0, 2), slice(2, 4)):
        train_regression(plain, *(leaf[part] for leaf in DATA.values()))
    result = simulated(exported("normed", 2), "hp-recompute", microbatches=2)
    assert len(result.buffers) == 6
    for name, buffer in plain.named_buffers():
        assert torch.equal(result.buffers[name], buffer)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("parallel", PARALLEL)
@pytest.mark.parametrize("name", MODELS)
def test_results_are_bitwise_those_without_it(name: str, parallel: str) -> None:
    passes = PARALLEL[parallel]
    microbatches = 1 if parallel == "uneven" else 2
    step = exported(name, 3)
    expected = simulated(step, f"hp-simplify{passes},hp-simplify", microbatches)
    for pipeline in (
        f"hp-simplify,hp-recompute{passes},hp-simplify,hp-verify-level",
        f"canonicalize,cse,hp-simplify{passes},hp-simplify,hp-recompute,hp-simplify,hp-verify-level",
    ):
        assert_same(simulated(step, pipeline, microbatches), expected)


@pytest.mark.parametrize("name", ("tower", "dropout", "skips"))
def test_results_are_bitwise_those_without_it_under_a_whole_plan(name: str) -> None:
    plan = hpir.Plan.model_validate(
        {"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"], "units": ["layers.*"]}, "buckets": {}, "overlap": {}}
    )
    pipeline = plan.pipeline()
    assert ",hp-recompute," in pipeline
    step = exported(name, 3)
    expected = simulated(step, pipeline.replace(",hp-recompute", ""), 2)
    assert_same(simulated(step, pipeline, 2), expected)


attend_calls = 0


@torch.library.custom_op("hpir_recompute_test::attend", mutates_args=())
def attend(x: Tensor) -> Tensor:
    """Stand for an operator of which nothing is known."""
    global attend_calls
    attend_calls += 1
    return x.sin()


@attend.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _attend_backward(ctx: Any, gradient: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    product: Tensor = gradient * x.cos()
    return product


attend.register_autograd(_attend_backward, setup_context=_save)


class Custom(nn.Module):
    """A custom operator between two layers of a region."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = recomputed(lambda x: torch.tanh(self.second(attend(torch.tanh(self.first(x))))), x)
        return y


def test_custom_operators_run_once_and_a_remark_says_so() -> None:
    global attend_calls
    assert_captured(Custom, train_regression, BATCH, allow=["hpir_recompute_test"])
    step = hpir.export(build_model(Custom), train_regression, {name: leaf.double() for name, leaf in BATCH.items()})
    with collect() as said:
        program = hpir.compile_program(step, allow=["hpir_recompute_test"])
    assert any("nothing is known of this operator, so it is not computed again" in each.message for each in said)
    attend_calls = 0
    hpir.simulate(program, step.state, {name: leaf.double() for name, leaf in BATCH.items()})
    assert attend_calls == 1


# Memory.


class Measured:
    """One training step of a model and its peak of live bytes, by eager torch or by hpir."""

    def __init__(self, model: nn.Module, run: Callable[[], Tensor]):
        run()
        for parameter in model.parameters():
            parameter.grad = None
        with LiveBytes() as live:
            self.loss = run().detach()
        self.peak, self.calls = live.peak, live.calls
        self.grads = [parameter.grad for parameter in model.parameters()]


def eager_and_compiled(build: Callable[[], nn.Module], batch: dict[str, Tensor]) -> tuple[Measured, Measured]:
    model = build_model(build, torch.float32)

    def eager() -> Tensor:
        loss: Tensor = train_regression(model, **batch)
        torch.autograd.backward(loss)
        return loss

    plain = Measured(model, eager)
    copy = build_model(build, torch.float32)
    step = hpir.compile(copy, train_regression, batch)
    return plain, Measured(copy, lambda: step(**batch))


LAYERS, WIDTH = 16, 32
BATCH_OF_512 = {"x": torch.randn(512, WIDTH), "y": torch.randn(512, 3)}
ACTIVATION = 512 * WIDTH * 4
"""Bytes of what a block takes; within it twelve such are kept for the backward, and the statistics of a norm."""


@pytest.mark.everything
@pytest.mark.parametrize("group", (1, 4))
def test_memory_falls_as_under_eager_checkpoints(group: int) -> None:
    _, whole = eager_and_compiled(lambda: Tower(LAYERS, WIDTH, group=0), BATCH_OF_512)
    plain, compiled = eager_and_compiled(lambda: Tower(LAYERS, WIDTH, group=group), BATCH_OF_512)
    assert torch.equal(compiled.loss, plain.loss)
    for found, wanted in zip(compiled.grads, plain.grads, strict=True):
        assert found is not None and wanted is not None and torch.equal(found, wanted)
    # All activations of all blocks, then: each region's input, and one region's activations.
    assert whole.peak > LAYERS * 10 * ACTIVATION
    regions = LAYERS // group
    assert compiled.peak < (regions + group * 14 + 6) * ACTIVATION
    assert compiled.peak <= plain.peak * 1.02
    assert compiled.calls["aten.addmm.default"] <= plain.calls["aten.addmm.default"]


def test_a_selective_checkpoint_keeps_what_it_is_told_to() -> None:
    plain, compiled = eager_and_compiled(lambda: Tower(LAYERS, WIDTH, **SELECTIVE), BATCH_OF_512)
    for found, wanted in zip(compiled.grads, plain.grads, strict=True):
        assert found is not None and wanted is not None and torch.equal(found, wanted)
    assert compiled.calls["aten.addmm.default"] == plain.calls["aten.addmm.default"] == 2 * LAYERS + 1
    assert compiled.peak <= plain.peak * 1.02


def products_of_inductor(group: int) -> int:
    """Return the number of matrix products in a step that Inductor compiled; its gradients are eager torch's."""
    model = build_model(lambda: Tower(2, group=group), torch.float32)
    plain = build_model(lambda: Tower(2, group=0), torch.float32)
    step = hpir.compile(model, train_regression, BATCH, backend="inductor")
    step(**BATCH)
    torch.autograd.backward(train_regression(plain, **BATCH))
    for found, wanted in zip(model.parameters(), plain.parameters(), strict=True):
        assert found.grad is not None and wanted.grad is not None
        torch.testing.assert_close(found.grad, wanted.grad)
    with LiveBytes() as live:
        step(**BATCH)
    return sum(count for name, count in live.calls.items() if "mm" in name)


@pytest.mark.everything
def test_inductor_leaves_what_is_computed_again() -> None:
    # It merges equal ops only where it takes forward and backward apart, which is done here already.
    assert products_of_inductor(group=1) > products_of_inductor(group=0) > 0


@pytest.mark.parametrize("order", ("before", "after"))
def test_memory_falls_with_fsdp_and_full_parameters_do_not_stay(order: str) -> None:
    batch = {"x": torch.randn(2, 64), "y": torch.randn(2, 3)}
    step = hpir.export(Tower(8, 64), train_regression, {name: leaf[:1] for name, leaf in batch.items()})
    fsdp = "hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp units=layers.*}"
    pipelines = {
        "before": f"hp-simplify,hp-recompute,{fsdp},hp-simplify",
        "after": f"hp-simplify,{fsdp},hp-simplify,hp-recompute,hp-simplify",
    }
    module = hpir.run_passes(step.module.operation.clone(), pipelines[order])
    gathers = [op for op in ops_of(module) if op.name == "hp.all_gather"]
    # One per parameter and phase: those of clones and of the backward itself are one. A bias is not needed there, but
    # for what is computed again.
    assert len(gathers) == len({(str(op.attributes["hp.fqn"]), str(op.attributes["hp.phase"])) for op in gathers})
    peak = 0

    def observe(rank: int, function: str, op: Op, live: int) -> None:
        nonlocal peak
        peak = max(peak, live)

    hpir.simulate(to_program(module), step.state, batch, observe=observe)
    unit = 8 * 64 * 64 * 4  # bytes of a block's matrices, beside which one row's activations are nothing
    shards = 8 * unit // 2
    # Shards, reduced gradients, and a unit's full parameters and gradients with those of the one before.
    assert peak < 2 * shards + 4.5 * unit


def ops_of(module: ir.Operation) -> list[ir.Operation]:
    (function,) = step_functions(module)
    return [view.operation for view in body_of(function).operations]


# What is said and what is refused.


def test_a_remark_counts_regions_ops_and_bytes() -> None:
    step = hpir.export(Tower(LAYERS, WIDTH), train_regression, BATCH_OF_512)
    with collect() as said:
        hpir.run_passes(step.module, "hp-recompute")
    (found,) = said
    assert found.message.startswith(f"'func.func' op checkpointed regions: {LAYERS}; ops computed again: ")
    before, after = (int(word) for word in found.message.replace(",", "").split() if word.isdigit())
    assert before > LAYERS * 10 * ACTIVATION
    # The inputs of all blocks but the first, whose is the step's, and what the head and the loss keep.
    assert after < (LAYERS + 2) * ACTIVATION


KEPT = re.compile(r"ops computed again: (\d+); bytes kept for the backward: (\d+) before, (\d+) after")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_merged_back_and_a_second_run_finds_nothing(name: str) -> None:
    with collect() as said:
        module = exported(name, 3).module.operation.clone()
        hpir.run_passes(module, "hp-simplify,hp-recompute,canonicalize,cse,hp-simplify")
        text = str(module)
        hpir.run_passes(module, "hp-recompute")
    assert str(module) == text
    first, second = (match for match in (KEPT.search(each.message) for each in said) if match is not None)
    assert int(first[1]) > 0 and int(first[3]) < int(first[2])
    assert second.groups() == ("0", first[3], first[3])


def test_a_step_without_regions_is_untouched() -> None:
    step = hpir.export(Tower(2, group=0), train_regression, BATCH)
    text = str(step.module)
    with collect() as said:
        hpir.run_passes(step.module, "hp-recompute")
    assert str(step.module) == text and not said


def test_an_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(hpir.PassError, match="option 'policy' names no policy: 'tagd', did you mean 'tagged'"):
        HpRecompute("tagd")


# Time.


def tagged(text: str) -> str:
    """Return a large step every layer of which is a region."""
    lines = []
    for line in text.splitlines():
        if 'hp.phase = "forward"' in line and "hp.module" in line:
            number = line.partition('hp.module = "layers.')[2].partition('"')[0]
            line = line.replace('hp.phase = "forward"', f'hp.phase = "forward", hp.recompute = {number} : i64')
        lines.append(line)
    return "\n".join(lines)


def seconds(layers: int) -> tuple[int, float]:
    """Return the number of ops of a step and the time that the pass takes, the better of two runs."""
    best = float("inf")
    for _ in range(2):
        module = ir.Module.parse(tagged(large_step(layers, 24)), make_context())
        before = time.process_time()
        hpir.run_passes(module, "hp-recompute")
        best = min(best, time.process_time() - before)
    return layers * 55, best


@pytest.mark.everything
def test_time_grows_with_the_number_of_ops() -> None:
    few, short = seconds(180)
    many, long = seconds(1800)
    assert many > 90_000
    assert long / short < 13 * many / few / 10
    assert long < 20
