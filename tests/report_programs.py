"""Small Programs, and costs in round numbers, for tests of reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from program_builder import FunctionBuilder, by_position, program_of

from hpir.costs import Costs
from hpir.mesh import Mesh
from hpir.reporting.segments import SegmentedProgram
from hpir.reporting.simulated import simulate_timeline
from hpir.reporting.timeline import Timeline
from hpir.runtime.program import Op, Program, TensorType

US = 1e-6
PAIR = Mesh.of({"dp": 2})
STAGES = Mesh.of({"pp": 2, "dp": 2})

# An operator takes 1 us and a ns per byte; a message 100 us and a ns per byte that is sent.
COSTS = Costs.of(
    {
        "device": "cpu",
        "compute": {"flops": {"float32": 1e15}, "memory_bandwidth": 1e9, "op_overhead": 1e-6},
        "links": {"latency": 1e-4, "bandwidth": 1e9},
    }
)


def marked(program: Program, change: Callable[[str, int, Op], Op]) -> Program:
    """Return a Program with each op of each function changed by `change(function, number, op)`."""
    functions = {
        name: replace(function, ops=tuple(change(name, number, op) for number, op in enumerate(function.ops)))
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions)


def one_gather(mesh: Mesh = PAIR) -> Program:
    """A gather of 1000 elements a rank, an operator of 2 x 1000 bytes meanwhile, and one of what is gathered."""
    f = FunctionBuilder("main", mesh)
    shard = f.param("weight", (1000 * mesh.count(["dp"]),), sharding=(("dp",),))
    x = f.argument("x", (250,))
    future = f.all_gather(shard, axes=["dp"], dims=[0])
    f.result(f.aten("neg.default", x), name="y")
    f.result(f.aten("neg.default", f.wait(future)), name="z")
    return program_of(f.build(), mesh=mesh, data_axes=("dp",))


def two_stages(microbatches: int = 2, mesh: Mesh = STAGES) -> Program:
    """Two stages, each one operator of 2 x 1000 bytes per microbatch; the first sends what it makes to the second."""
    first, second = FunctionBuilder("rank0", mesh), FunctionBuilder("rank1", mesh)
    inputs = [first.argument(f"x{number}", (250,)) for number in range(microbatches)]
    for x in inputs:
        first.send(first.aten("neg.default", x), axis="pp", peer=1)
    type_ = TensorType((250,), "float32")
    for _ in range(microbatches):
        second.aten("neg.default", second.wait(second.recv(type_, axis="pp", peer=0)))
    return by_position([first.build(), second.build()], mesh, "pp")


def timeline_of(program: Program, costs: Costs = COSTS) -> Timeline:
    """Simulate a Program as it is, without putting collectives together."""
    return simulate_timeline(SegmentedProgram(program, costs))
