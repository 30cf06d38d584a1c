"""Memory over time against what the simulator's ranks hold, op by op, and against sums by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fsdp_by_hand import PAIR, fsdp_step, state_and_batch
from models import BY_NAME
from program_builder import FunctionBuilder, program_of
from report_programs import COSTS, marked, two_stages
from torch import Tensor

import hpir
from hpir.mesh import Mesh
from hpir.reporting.memory import Memory, memory_over_time
from hpir.reporting.segments import SegmentedProgram
from hpir.reporting.simulated import simulate_timeline
from hpir.runtime.program import Program
from hpir.runtime.simulate import simulate

KIB = 1024


def memory_of(program: Program, *, keep_arguments: bool = True, position: int = 0) -> Memory:
    segments = SegmentedProgram(program, COSTS)
    timeline = simulate_timeline(segments).ranks[position]
    memory = memory_over_time(segments, timeline, keep_arguments=keep_arguments)
    # Two ways to the same number: what was added up over time, and what is alive there.
    assert sum(held.size for held in memory.alive) == memory.peak.total == max(point.total for point in memory.points)
    return memory


def op_by_op(program: Program) -> list[int]:
    """Return the bytes after each op that is no call; each op is made a block of its own."""
    single = marked(program, lambda name, number, op: replace(op, module=f"{name}.{number}"))
    return [point.total for point in memory_of(single, keep_arguments=False).points[1:]]


def simulated(program: Program, state: dict[str, Tensor], batch: dict[str, Tensor]) -> list[int]:
    held: list[int] = []

    def observe(rank: int, function: str, op: object, size: int) -> None:
        if rank == 0 and getattr(op, "target", "") != "call":
            held.append(size)

    simulate(program, state, batch, observe=observe)
    return held


def model_program(name: str, microbatches: int, **more: Any) -> tuple[Program, dict[str, Tensor], dict[str, Tensor]]:
    case = BY_NAME[name]
    plan = {
        **more,
        "mesh": {"dp": 2},
        "data": {"axes": ["dp"], "microbatches": microbatches},
        "fsdp": {"axes": ["dp"], "units": list(case.units)},
    }
    program = hpir.compile_program(hpir.export(case.model(), case.train, case.data(2)), plan)
    model = case.model()
    state = {**model.state_dict(), **dict(model.named_buffers())}
    for argument in program.entry(0).arguments:
        if argument.role == "constant":
            shape = [size or 0 for size in argument.full_shape]
            state[argument.name] = torch.zeros(shape, dtype=getattr(torch, argument.type.dtype))
    return program, state, case.data(4 * microbatches)


def test_a_step_by_hand_is_the_simulators_op_by_op() -> None:
    program = fsdp_step(PAIR, axes=("dp",))
    held, expected = op_by_op(program), simulated(program, *state_and_batch())
    assert len(held) == len(expected) > 20
    assert held == expected


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("name", ["tied", "rotary", "convnet", "image_text"])
def test_captured_models_are_the_simulators_op_by_op(name: str, microbatches: int) -> None:
    program, state, batch = model_program(name, microbatches)
    held, expected = op_by_op(program), simulated(program, state, batch)
    assert len(held) == len(expected) > 20
    assert held == expected


def test_buckets_are_the_simulators_op_by_op() -> None:
    program, state, batch = model_program("tied", 2, buckets={"by": "module", "layout": "packed"})
    assert any(op.target == "hp.unpack" for op in program.functions["stage0_step"].ops)
    held = op_by_op(program)
    assert held == simulated(program, state, batch)
    # Shards that lie side by side are packed as they lie; the simulator has them apart, and copies.
    flat, state, batch = model_program("tied", 1, buckets={"by": "module", "layout": "flat"})
    ops = [op for name in ("stage0_step", "rank0") for op in flat.functions[name].ops if op.target != "call"]
    points = list(zip(ops, op_by_op(flat), simulated(flat, state, batch), strict=True))
    assert any(ours < theirs for op, ours, theirs in points if op.target == "hp.pack")
    assert all(ours <= theirs for op, ours, theirs in points)
    assert {op.target for op, ours, theirs in points if ours < theirs} == {"hp.pack", "hp.all_gather"}


def test_a_peak_is_the_simulators() -> None:
    program, state, batch = model_program("dropout", 2)
    assert memory_of(program, keep_arguments=False).peak.total == max(simulated(program, state, batch))


def test_categories_add_up_by_hand() -> None:
    f = FunctionBuilder("main", PAIR)
    shard = f.param("weight", (2 * KIB,), sharding=(("dp",),))
    x = f.argument("x", (KIB,), batch_dim=0)
    future = f.all_gather(shard, axes=["dp"], dims=[0])
    y = f.aten("neg.default", x)
    full = f.wait(future)
    grad = f.aten("neg.default", full)
    part = f.wait(f.reduce_scatter(grad, axes=["dp"], dims=[0]))
    f.result(y, name="y")
    f.result(part, "grad", "weight", full_shape=(2 * KIB,), sharding=(("dp",),))
    program = program_of(f.build(), mesh=PAIR, data_axes=("dp",))
    program = marked(program, lambda name, number, op: replace(op, module=f"m{number}", phase="forward"))
    names = ["state", "inputs", "gathered parameters", "activations", "gradients", "temporaries", "communication"]
    held = [
        {name: size // (4 * KIB) for name, size in zip(names, point.held, strict=True) if size // (4 * KIB)}
        for point in memory_of(program).points
    ]
    base = {"state": 1, "inputs": 1}
    assert held == [
        base,
        {**base, "communication": 2},
        {**base, "communication": 2, "activations": 1},
        {**base, "gathered parameters": 2, "activations": 1},
        {**base, "gathered parameters": 2, "activations": 1, "gradients": 2},
        {**base, "activations": 1, "gradients": 2, "communication": 1},
        {**base, "activations": 1, "gradients": 1},
        {**base, "activations": 1, "gradients": 1},
    ]


def test_the_peak_says_what_is_alive_and_where() -> None:
    program, _, _ = model_program("tied", 2)
    memory = memory_of(program)
    assert memory.function == "stage0_step"
    assert program.functions["stage0_step"].ops[memory.op].phase == "backward"
    state = {held.module for held in memory.alive if held.category == "state"}
    assert state == {argument.name for argument in program.entry(0).arguments if argument.role == "param"}
    assert {held.module for held in memory.alive if held.category == "activations"} >= {"embed", "layers.0.up"}
    sizes = [held.size for held in memory.alive]
    assert sizes == sorted(sizes, reverse=True)


def test_gathers_that_are_not_given_back_stay_gathered() -> None:
    case = BY_NAME["tied"]
    exported = hpir.export(case.model(), case.train, case.data(2))
    fsdp = {"axes": ["dp"], "units": ["layers.*"]}
    most = {}
    for reshard in (True, False):
        plan = {"mesh": {"dp": 2}, "fsdp": {**fsdp, "reshard_after_forward": reshard}}
        points = memory_of(hpir.compile_program(exported, plan)).points
        most[reshard] = max(point.held[2] for point in points)
    assert most[True] < most[False]


def test_sent_tensors_stay_until_the_step_ends() -> None:
    program = two_stages(microbatches=3, mesh=Mesh.of({"pp": 2}))
    # 3 inputs of 1000 bytes, what was made of each, and a loss.
    assert memory_of(program).peak.total == 6004
    # What arrived and what is made of it.
    assert memory_of(program, position=1).peak.total == 2000
