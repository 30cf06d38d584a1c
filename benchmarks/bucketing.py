"""How long hp-bucket-collectives takes on large modules, beside the bucketing passes of torch's inductor."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import large_modules
import torch
import torch.distributed as dist
from measure import Pair, Row, Spread, bounded, seconds
from torch import fx
from torch._inductor.fx_passes.bucketing import bucket_all_gather, bucket_reduce_scatter
from torch._subclasses import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch_mlir import ir

from hpir.dialect.context import make_context
from hpir.dialect.parsing import parse_module
from hpir.dialect.signature import body_of, step_functions
from hpir.ir_passes.bucketing.bucket_collectives import HpBucketCollectives
from hpir.ir_passes.pass_manager import run_passes
from hpir.lowering.to_program import lower_function
from hpir.mesh import Mesh
from hpir.runtime.operators import materialize, resolve, torch_dtype
from hpir.runtime.program import Op

RANKS = 2
POINTWISE = 180
"""Times that tanh follows each block's gelu, for nine collectives to 450 ops."""

PREPARATION = f"hp-set-mesh{{axes=dp:{RANKS}}},hp-simplify,hp-fsdp{{axes=dp units=blocks.*}},hp-simplify"
SIZES = (10_000, 100_000)

_STARTS = ("hp.all_gather", "hp.reduce_scatter")
_FX_STARTS = ("_c10d_functional.all_gather", "_c10d_functional.reduce_scatter")


@dataclass(frozen=True)
class Timing:
    """Ops and collectives of a function, and the time of a pass over it."""

    ops: int
    collectives: int
    launches: int
    times: Spread


def sharded_step(operations: int) -> ir.Module:
    """Return a step of about so many ops, sharded, in a context of its own."""
    blocks = large_modules.blocks_for(operations, POINTWISE)
    module = parse_module(large_modules.training_step(blocks, POINTWISE), make_context())
    return run_passes(module, PREPARATION)


def _counts(module: ir.Module) -> tuple[int, int]:
    (function,) = step_functions(module.operation)
    names = Counter(view.operation.name for view in body_of(function).operations)
    return sum(names.values()), sum(names[name] for name in _STARTS)


def time_pass(operations: int, rounds: int) -> Timing:
    """Time planning and rewriting, by module, in this process: processor time, which other work disturbs less."""
    samples = []
    for _ in range(rounds + 1):
        module = sharded_step(operations)
        counts = _counts(module)
        with module.context:
            begin = time.process_time()
            HpBucketCollectives().run(module.operation)
            samples.append(time.process_time() - begin)
    return Timing(*counts, _counts(module)[1], Spread.of(samples[1:]))


def fx_step(module: ir.Module) -> fx.GraphModule:
    """Return the same function, op by op, as the graph that inductor's passes take."""
    (function,) = step_functions(module.operation)
    lowered = lower_function(function, Mesh.of({"dp": RANKS}))
    graph, mode, device = fx.Graph(), FakeTensorMode(), torch.device("cpu")
    values: dict[int, Any] = {}

    def define(value: int, node: fx.Node, type_: Any) -> None:
        values[value] = node
        if type_ is not None:
            with mode:
                node.meta["val"] = torch.empty(type_.shape, dtype=torch_dtype(type_.dtype))

    # What stands for a future here is its tensor there.
    arriving = {value: op.types[0] for op in lowered.ops if op.target == "hp.wait" for value in op.operands()}
    for index, argument in enumerate(lowered.arguments):
        define(index, graph.placeholder(f"p{index}"), argument.type)
    for op in lowered.ops:
        target, args, kwargs = _call(op)
        given = [materialize(arg, values.__getitem__, device) for arg in args]
        named = {name: materialize(arg, values.__getitem__, device) for name, arg in kwargs.items()}
        node = graph.call_function(target, tuple(given), named)
        define(op.results[0], node, arriving.get(op.results[0], op.types[0]))
    graph.output(tuple(values[result.value] for result in lowered.results))
    return fx.GraphModule(torch.nn.Module(), graph)


def _call(op: Op) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    functional, group = torch.ops._c10d_functional, dist.group.WORLD
    assert group is not None
    if op.target == "hp.all_gather":
        return functional.all_gather_into_tensor.default, (*op.args, RANKS, group.group_name), {}
    if op.target == "hp.reduce_scatter":
        return functional.reduce_scatter_tensor.default, (*op.args, "avg", RANKS, group.group_name), {}
    if op.target == "hp.wait":
        return functional.wait_tensor.default, op.args, {}
    return resolve(op.target), op.args, op.kwargs


@contextlib.contextmanager
def fake_process_group() -> Iterator[None]:
    """Have a process group that sends nothing, as inductor's passes look one up."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@dataclass(frozen=True)
class Comparison:
    """Inductor's passes and ours on one function: ops, collectives, what each leaves, and times in turns."""

    ops: int
    collectives: int
    left_by_inductor: int
    left: int
    times: Pair


def compare_inductor(operations: int, rounds: int) -> Comparison:
    """Time inductor's bucketing of gathers and reduce-scatters, with its own choice of buckets, and ours, in turns."""
    theirs, ours = [], []
    with fake_process_group():
        for _ in range(rounds + 1):
            module = sharded_step(operations)
            ops, collectives = _counts(module)
            graph = fx_step(module)
            theirs.append(seconds(lambda: _inductor(graph)))  # noqa: B023 - called at once
            with module.context:
                ours.append(seconds(lambda: HpBucketCollectives().run(module.operation)))  # noqa: B023
    left = sum(str(node.target).startswith(_FX_STARTS) for node in graph.graph.nodes)
    return Comparison(ops, collectives, left, _counts(module)[1], Pair.of(theirs[1:], ours[1:]))


def _inductor(graph: fx.GraphModule) -> None:
    bucket_all_gather(graph)
    bucket_reduce_scatter(graph)


def rows(*, sizes: Sequence[int] = SIZES, compared: int = 10_000, rounds: int = 3) -> list[Row]:
    """Measure everything here.

    Args:
        sizes: ops of the modules, rising.
        compared: ops of the module that inductor's passes take too.
        rounds: samples of each figure.
    """
    made = []
    timings = [time_pass(size, rounds) for size in sizes]
    for size, timing in zip(sizes, timings, strict=True):
        subject = f"`hp-bucket-collectives` on about {size:,} ops"
        counts = f"{timing.ops:,} ops, {timing.collectives:,} collectives, {timing.launches:,} left"
        text = f"{timing.times.text('s')}; {counts}"
        last = timing is timings[-1]
        made.append(bounded(subject, text, timing.times.median, 5.0, "s") if last else Row(subject, text))
    growth = timings[-1].times.least / timings[0].times.least
    subject = f"time of {sizes[-1]:,} over {sizes[0]:,} ops"
    made.append(bounded(subject, f"{growth:.1f}", growth, 1.2 * sizes[-1] / sizes[0]))
    found = compare_inductor(compared, rounds)
    times = found.times
    made.append(
        Row(
            f"inductor's bucketing over `hp-bucket-collectives`, about {compared:,} ops",
            f"{times.ratio.text()}; {times.first.text('s')} and {times.second.text('s')}; {found.collectives:,} "
            f"collectives, {found.left_by_inductor:,} and {found.left:,} left",
            "at least 20",
            times.ratio.median >= 20,
        )
    )
    return made
