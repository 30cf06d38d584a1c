"""hp-expand-buckets: the same bits as unfused on every acceptance model, whatever the layout."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from exports import captured
from models import BY_NAME, CASES
from torch import Tensor, nn

import hpir
from hpir.lowering.check import check_program
from hpir.lowering.to_program import to_program
from hpir.runtime.program import COLLECTIVES, Op, Program
from hpir.runtime.simulate import SimulationResult, simulate, simulate_evaluate
from hpir.runtime.trees import flatten_batch

ROWS = 12
SETTINGS = {
    "dp2": ("dp:2", "axes=dp"),
    "dp3": ("dp:3", "axes=dp"),
    "dp4": ("dp:4", "axes=dp"),
    "hsdp": ("rp:2,dp:2", "axes=dp replicate-axes=rp"),
    "bf16": ("dp:2", "axes=dp param-dtype=bfloat16"),
    "kept": ("dp:2", "axes=dp reshard-after-forward=false"),
}
LAYOUTS = ("flat", "packed")


def program_for(name: str, setting: str, *more: str, microbatches: int = 1) -> Program:
    """Compile an acceptance model; `more` are passes behind hp-fsdp."""
    case, (mesh, options) = BY_NAME[name], SETTINGS[setting]
    ranks = math.prod(int(axis.split(":")[1]) for axis in mesh.split(","))
    exported = captured(name, ROWS // ranks // microbatches, torch.float32)
    units = f" units={','.join(case.units)}" if case.units else ""
    ignore = f" ignore={','.join(case.ignore)}" if case.ignore else ""
    passes = [f"hp-set-mesh{{axes={mesh}}}", "hp-simplify", f"hp-fsdp{{{options}{units}{ignore}}}", "hp-simplify"]
    module = hpir.run_passes(exported.module, ",".join([*passes, *more, "hp-verify-level"]))
    return to_program(module, microbatches=microbatches)


def run(name: str, program: Program) -> SimulationResult:
    case = BY_NAME[name]
    state = captured(name, ROWS // program.mesh.size // program.microbatches, torch.float32).state
    return simulate(program, state, case.data(ROWS), check_types=True)


def assert_same(found: SimulationResult, expected: SimulationResult) -> None:
    assert torch.equal(found.loss, expected.loss)
    assert found.grads.keys() == expected.grads.keys()
    for name, grad in found.grads.items():
        assert torch.equal(grad, expected.grads[name]), name
    assert found.buffers.keys() == expected.buffers.keys()
    for name, buffer in found.buffers.items():
        assert torch.equal(buffer, expected.buffers[name]), name


@pytest.mark.one_in(8)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_same_bits_as_unfused(name: str, setting: str) -> None:
    expected = run(name, program_for(name, setting))
    for layout in LAYOUTS:
        program = program_for(name, setting, "hp-bucket-collectives", f"hp-expand-buckets{{layout={layout}}}")
        assert_same(run(name, program), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["tied", "uneven", "rotary"])
def test_same_bits_whether_overlap_comes_before_or_after(name: str, layout: str) -> None:
    expected = run(name, program_for(name, "dp2"))
    expand, overlap = f"hp-expand-buckets{{layout={layout}}}", "hp-overlap-collectives{prefetch=2}"
    for passes in ((overlap, expand), (expand, overlap), (expand, "hp-simplify"), (expand, expand)):
        assert_same(run(name, program_for(name, "dp2", "hp-bucket-collectives", *passes)), expected)


def starts(program: Program) -> list[Op]:
    (name,) = program.train
    callees = [str(op.kwargs["function"]) for op in program.functions[name].ops if op.target == "call"]
    return [op for callee in dict.fromkeys(callees) for op in program.functions[callee].ops if op.target in COLLECTIVES]


def test_three_launches_per_unit_and_step() -> None:
    """Two gathers and a reduce-scatter for each layer, each of one tensor; the names and bytes of members are kept."""
    program = program_for("rotary", "dp2", "hp-bucket-collectives", "hp-expand-buckets")
    found = starts(program)
    assert all(len(op.args) == 1 for op in found)
    layers = [op for op in found if op.bucket.startswith("layers.")]
    assert {op.bucket: sum(1 for each in layers if each.bucket == op.bucket) for op in layers} == {
        "layers.0": 3,
        "layers.1": 3,
    }
    sizes = {argument.name: argument.type for argument in program.entry(0).arguments}
    for op in layers:
        assert len(op.members) == len(op.member_bytes) > 1
        if op.target == "hp.all_gather":
            expected = [4 * math.prod(size or 0 for size in sizes[member].shape) for member in op.members]
            assert list(op.member_bytes) == expected


def test_one_cast_for_a_bucket() -> None:
    program = program_for("rotary", "bf16", "hp-bucket-collectives", "hp-expand-buckets")
    step = program.functions["stage0_step"]
    parameters = {index for index, argument in enumerate(step.arguments) if argument.buffer}
    assert len(parameters) > 4
    assert not [op for op in step.ops if op.target.startswith("aten._to_copy") and parameters & set(op.operands())]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_evaluation_and_another_precision(layout: str) -> None:
    name = "outputs"
    case, state = BY_NAME[name], captured(name, ROWS // 2, torch.float32).state
    program = program_for(name, "bf16", "hp-bucket-collectives", f"hp-expand-buckets{{layout={layout}}}")
    plain = program_for(name, "bf16")
    for dtype in (None, torch.float64):
        found, expected = (
            simulate_evaluate(each, state, case.data(ROWS), check_types=True, dtype=dtype) for each in (program, plain)
        )
        assert torch.equal(found[0], expected[0])
        outputs = flatten_batch(expected[1])
        assert outputs
        for key, value in flatten_batch(found[1]).items():
            assert torch.equal(outputs[key], value), key


class Mixed(nn.Module):
    """Layers that hold parameters of two dtypes, of odd sizes, and of a dim of size 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 5, dtype=torch.bfloat16) for _ in range(2)])
        for layer in self.layers:
            layer.register_parameter("scale", nn.Parameter(torch.randn(5, 1)))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y: Tensor = layer(x.bfloat16())
            x = torch.tanh(y.float() @ layer.get_parameter("scale") + x)
        return x


def mixed_step(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_dtypes_travel_as_bytes(layout: str) -> None:
    torch.manual_seed(0)
    model, x = Mixed(), torch.randn(2, 5)
    exported = hpir.export(model, mixed_step, {"x": x})
    plan: dict[str, Any] = {"mesh": {"dp": 3}, "fsdp": {"axes": ["dp"], "units": ["layers.*"]}}
    plain = hpir.compile_program(exported, plan)
    program = hpir.compile_program(exported, {**plan, "buckets": {"layout": layout}})
    batch = {"x": torch.randn(6, 5)}
    assert_same(simulate(program, exported.state, batch, check_types=True), simulate(plain, exported.state, batch))
    packs = [op for op in program.functions["stage0_step"].ops if op.target == "hp.pack"]
    assert [op.types[0].dtype for op in packs if op.phase == "forward" and op.types[0] is not None] == ["uint8"] * 2
    assert not [difference for difference in check_program(program, exported.state, batch) if difference.differs]
