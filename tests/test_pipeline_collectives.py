"""hp-hoist-gathers and hp-sink-reductions: the same steps with one gather and one reduction per parameter and step."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from exports import captured
from models import BY_NAME

import hpir
from hpir.ir_passes.pipeline.schedules import ALGORITHMS
from hpir.lowering.to_program import to_program
from hpir.runtime.program import COLLECTIVES, Program
from hpir.runtime.simulate import SimulationResult, simulate_evaluate
from hpir.runtime.trees import flatten_batch

ROWS = 24
HOIST, SINK = "hp-hoist-gathers", "hp-sink-reductions"
SETTINGS = {
    "fsdp": ("pp:2,dp:2", "axes=dp", ()),
    "buckets": ("pp:2,dp:2", "axes=dp", ("hp-bucket-collectives", "hp-expand-buckets")),
    "hsdp": ("rp:2,pp:2,dp:3", "axes=dp replicate-axes=rp", ("hp-bucket-collectives", "hp-overlap-collectives")),
    "two_axes": ("rp:2,pp:2,dp:2", "axes=rp,dp", ()),
    "kept": ("pp:2,dp:2", "axes=dp reshard-after-forward=false", ()),
    "low": ("pp:2,dp:2", "axes=dp param-dtype=bfloat16 reduce-dtype=float32", ("hp-bucket-collectives",)),
    "whole": ("pp:2,dp:2", "replicate-axes=dp", ("hp-bucket-collectives", "hp-expand-buckets")),
}
"""Mesh, options of hp-fsdp, and passes on the stage functions."""


def ranks_of(setting: str) -> int:
    """Ranks that see different data."""
    axes = dict(axis.split(":") for axis in SETTINGS[setting][0].split(","))
    return int(axes.get("rp", 1)) * int(axes["dp"])


def program_for(
    name: str, setting: str, *more: str, microbatches: int = 2, schedule: str = "1f1b", stages: int = 2
) -> Program:
    """Compile an acceptance model; `more` are passes behind hp-schedule-pipeline."""
    case, (mesh, options, passes) = BY_NAME[name], SETTINGS[setting]
    rows = ROWS // ranks_of(setting) // microbatches
    units = f" units={','.join(case.units)}" if case.units else ""
    ignore = f" ignore={','.join(case.ignore)}" if case.ignore else ""
    split = f"split-backward={str(ALGORITHMS[schedule].split_backward).lower()}"
    pipeline = [
        f"hp-set-mesh{{axes={mesh}}}",
        "hp-simplify",
        f"hp-fsdp{{{options}{units}{ignore}}}",
        "hp-simplify",
        f"hp-assign-stages{{stages={stages}}}",
        f"hp-split-stages{{{split}}}",
        *passes,
        f"hp-schedule-pipeline{{microbatches={microbatches} schedule={schedule}}}",
        *more,
        "hp-verify-level",
    ]
    return to_program(hpir.run_passes(captured(name, rows).module, ",".join(pipeline)))


def run(name: str, program: Program, setting: str) -> SimulationResult:
    rows = ROWS // ranks_of(setting) // program.microbatches
    batch = BY_NAME[name].data(ROWS, torch.float64)
    return hpir.simulate(program, captured(name, rows).state, batch, check_types=True)


def distance(found: SimulationResult, expected: SimulationResult) -> float:
    """The largest distance of results, relative to the largest value of each."""
    assert found.grads.keys() == expected.grads.keys()
    assert found.buffers.keys() == expected.buffers.keys()
    pairs = [(found.loss, expected.loss)]
    pairs += [(found.grads[name], grad) for name, grad in expected.grads.items()]
    pairs += [(found.buffers[name], buffer) for name, buffer in expected.buffers.items()]
    return max(float((one - other).abs().max() / other.abs().max().clamp_min(1e-30)) for one, other in pairs)


EXACT = ["fsdp", "buckets", "hsdp", "kept", "whole"]
MODELS = ("tied", "adapters", "convnet", "ignored_tokens", "dropout", "twice", "unused", "ignored")
"""Tied, frozen, unused and whole parameters, buffers, a weighted loss, random numbers, a module called twice."""


@pytest.mark.parametrize(("name", "setting"), list(zip(MODELS, itertools.cycle(EXACT), strict=False)))
def test_results_stay(name: str, setting: str) -> None:
    """Sinking changes the order in which gradients are added."""
    expected = run(name, program_for(name, setting), setting)
    assert distance(run(name, program_for(name, setting, HOIST, SINK), setting), expected) < 1e-12


@pytest.mark.parametrize("setting", SETTINGS)
def test_uneven_shards(setting: str) -> None:
    """Padding goes with the collectives; over two axes some of it stands between rows. Hoisting changes no bit."""
    expected = run("uneven", program_for("uneven", setting), setting)
    assert distance(run("uneven", program_for("uneven", setting, HOIST), setting), expected) == 0
    tolerance = 1e-5 if setting == "low" else 1e-12
    assert distance(run("uneven", program_for("uneven", setting, SINK), setting), expected) < tolerance


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches"),
    [("gpipe", 2, 1), ("interleaved", 4, 3), ("zb-h1", 2, 3), ("zb-v", 4, 1), ("dualpipe-v", 4, 3)],
)
def test_all_schedules(schedule: str, stages: int, microbatches: int) -> None:
    """A tied weight has an owner on two ranks, or two stages on one."""
    name, setting, passes = "tied", "buckets", (SINK, HOIST)
    plain, changed = (
        program_for(name, setting, *more, microbatches=microbatches, schedule=schedule, stages=stages)
        for more in ((), passes)
    )
    assert distance(run(name, changed, setting), run(name, plain, setting)) < 1e-12


def test_evaluation() -> None:
    name, setting = "outputs", "fsdp"
    state, batch = captured(name, ROWS // 4).state, BY_NAME[name].data(ROWS, torch.float64)
    plain, changed = (
        simulate_evaluate(program_for(name, setting, *passes), state, batch, check_types=True)
        for passes in ((), (HOIST, SINK))
    )
    assert torch.equal(plain[0], changed[0])
    outputs = flatten_batch(plain[1])
    assert outputs
    for key, value in flatten_batch(changed[1]).items():
        assert torch.equal(outputs[key], value), key


def launches(program: Program, position: int, calls: bool) -> Counter[str]:
    """Collectives over the data axes in a training entry, or in all the calls that it makes."""
    entry = program.functions[program.train[position]]
    found: Counter[str] = Counter()
    for op in entry.ops:
        inner = program.functions[str(op.kwargs["function"])].ops if op.target == "call" else ()
        for each in inner if calls else (op,):
            if each.target in COLLECTIVES and each.target not in ("hp.send", "hp.recv"):
                found[each.target] += 1
    return found


@pytest.mark.parametrize("setting", ["buckets", "hsdp", "two_axes", "kept", "whole"])
def test_one_launch_per_bucket_and_step(setting: str) -> None:
    """What 2 microbatches gather and reduce each, the step does once; forward and backward share gathers."""
    plain, changed = program_for("uneven", setting), program_for("uneven", setting, HOIST, SINK)
    for position in range(2):
        before, after = launches(plain, position, calls=True), launches(changed, position, calls=False)
        after -= launches(plain, position, calls=False)  # of the loss
        assert not launches(changed, position, calls=True)
        assert after["hp.all_reduce"] == before["hp.all_reduce"] // 2
        assert after["hp.reduce_scatter"] == before["hp.reduce_scatter"] // 2
        shared = after["hp.reduce_scatter"] if setting != "whole" else 0  # as many as parameters or buckets
        assert after["hp.all_gather"] == shared


def test_parameters_in_low_precision() -> None:
    """Gradients in 16 bits are added up in more, as they were when reduced."""
    name, setting = "rotary", "low"
    expected = run(name, program_for(name, setting, microbatches=3), setting)
    assert distance(run(name, program_for(name, setting, HOIST, SINK, microbatches=3), setting), expected) < 1e-5
