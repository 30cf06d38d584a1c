"""hp-expand-buckets: the same bits as unfused on every acceptance model, whatever the layout."""

from __future__ import annotations

import math

import pytest
import torch
from exports import captured
from models import BY_NAME, CASES

import hpir
from hpir.lowering.to_program import to_program
from hpir.runtime.program import Program
from hpir.runtime.simulate import SimulationResult, simulate

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


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_same_bits_as_unfused(name: str, setting: str) -> None:
    expected = run(name, program_for(name, setting))
    for layout in LAYOUTS:
        program = program_for(name, setting, "hp-bucket-collectives", f"hp-expand-buckets{{layout={layout}}}")
        assert_same(run(name, program), expected)
