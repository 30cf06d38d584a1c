"""Adjacent collectives become one; results stay the same bit by bit, and nothing else moves."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from exports import captured
from models import BY_NAME
from program_builder import FunctionBuilder, program_of

from hpir import compile_program
from hpir.mesh import Mesh
from hpir.runtime.coalescing import coalesce, coalesce_program, position_before
from hpir.runtime.program import COLLECTIVES, Function
from hpir.runtime.simulate import simulate

MESH = Mesh(("dp", "tp"), (2, 2))


def shown(function: Function) -> list[str]:
    """Spell each op as its target and the names of what it reads and defines: ``x0`` for value 0."""
    return [
        f"{','.join(f'x{value}' for value in op.results)} = {op.target} {','.join(f'x{v}' for v in op.operands())}"
        for op in function.ops
    ]


def gathers(*axes: tuple[str, ...], between: bool = False) -> FunctionBuilder:
    """Start a gather of each argument over its axes, then wait in the opposite order, with compute in between."""
    f = FunctionBuilder("main", MESH)
    values = [f.argument(f"a{number}", (4, 4), sharding=(each, ())) for number, each in enumerate(axes)]
    futures = []
    for value, each in zip(values, axes, strict=True):
        futures.append(f.all_gather(value, axes=each, dims=(0,)))
        if between:
            f.aten("neg.default", value)
    for future in reversed(futures):
        f.result(f.aten("neg.default", f.wait(future)))
    return f


def test_adjacent_starts_are_one_start_and_their_waits_one_at_the_first() -> None:
    function = gathers(("dp",), ("dp",), ("dp",)).build()
    assert shown(coalesce(function)) == [
        "x3 = hp.all_gather x0,x1,x2",
        "x10,x8,x6 = hp.wait x3",
        "x7 = aten.neg.default x6",
        "x9 = aten.neg.default x8",
        "x11 = aten.neg.default x10",
        "x12 = literal ",
    ]
    assert coalesce(function).ops[0].kwargs == {"axes": ("dp",), "dims": (0, 0, 0)}
    assert len(coalesce(function).ops[1].types) == 3
    assert coalesce(coalesce(function)) == coalesce(function)
    assert [position_before(function, op) for op in coalesce(function).ops] == [0, 7, 4, 6, 8, 9]


@pytest.mark.parametrize(
    "builder",
    [
        gathers(("dp",)),
        gathers(("dp",), ("tp",), ("dp",)),  # other axes
        gathers(("dp", "tp"), ("tp", "dp")),  # the same in another order
        gathers(("dp",), ("dp",), between=True),  # something starts in between
    ],
)
def test_what_does_not_belong_together_is_left_alone(builder: FunctionBuilder) -> None:
    function = builder.build()
    assert coalesce(function) is function


def test_gathers_that_are_started_ahead_for_different_uses_stay_apart() -> None:
    f = FunctionBuilder("main", MESH)
    a, b, c, d = (f.argument(f"a{number}", (4, 4), sharding=(("dp",), ())) for number in range(4))
    first, second, third = (f.all_gather(value, axes=("dp",), dims=(0,)) for value in (a, b, c))
    f.result(f.wait(first))
    f.result(f.wait(second))
    fourth = f.all_gather(d, axes=("dp",), dims=(0,))
    f.result(f.wait(third))
    f.result(f.wait(fourth))
    assert [len(op.args) for op in coalesce(f.build()).ops if op.target == "hp.all_gather"] == [2, 1, 1]


def test_kinds_reductions_and_unused_futures_are_told_apart() -> None:
    f = FunctionBuilder("main", MESH)
    x = f.argument("x", (4, 4))
    starts = [
        f.reduce_scatter(x, axes=("dp",), dims=(0,), reduce="sum"),
        f.reduce_scatter(x, axes=("dp",), dims=(1,), reduce="sum"),
        f.reduce_scatter(x, axes=("dp",), dims=(0,), reduce="avg"),
        f.all_reduce(x, axes=("dp",), reduce="avg"),
        f.all_reduce(x, axes=("dp",), reduce="avg"),
        f.all_to_all(x, axes=("tp",), splits=(0,), concats=(1,)),
        f.all_to_all(x, axes=("tp",), splits=(1,), concats=(0,)),
    ]
    f.all_gather(x, axes=("dp",), dims=(0,))  # never waited for
    starts.append(f.all_gather(x, axes=("dp",), dims=(0,)))
    for start in starts:
        f.result(f.wait(start))
    function = coalesce(f.build())
    merged = [(op.target, len(op.args), op.kwargs) for op in function.ops if op.target in COLLECTIVES]
    assert merged == [
        ("hp.reduce_scatter", 2, {"axes": ("dp",), "dims": (0, 1), "reduce": "sum"}),
        ("hp.reduce_scatter", 1, {"axes": ("dp",), "dims": (0,), "reduce": "avg"}),
        ("hp.all_reduce", 2, {"axes": ("dp",), "reduce": "avg"}),
        ("hp.all_to_all", 2, {"axes": ("tp",), "split_dims": (0, 1), "concat_dims": (1, 0)}),
        ("hp.all_gather", 1, {"axes": ("dp",), "dims": (0,)}),
        ("hp.all_gather", 1, {"axes": ("dp",), "dims": (0,)}),
    ]
    assert Counter(op.target for op in function.ops)["hp.wait"] == 5
    before, after = (
        simulate(program_of(each, mesh=MESH), {}, {"x": torch.arange(16.0).view(4, 4)}, check_types=True)
        for each in (f.build(), function)
    )
    for one, other in zip(before.per_rank, after.per_rank, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["rotary", "uneven"])
def test_a_sharded_step_is_the_same_with_fewer_collectives(name: str) -> None:
    case, exported = BY_NAME[name], captured(name, 2, torch.float32)
    plan = {"mesh": {"dp": 2}, "data": {"axes": ["dp"]}, "fsdp": {"axes": ["dp"], "units": list(case.units)}}
    program = compile_program(exported, plan)
    coalesced = coalesce_program(program, program.functions)
    counts = [
        sum(op.target in COLLECTIVES for function in each.functions.values() for op in function.ops)
        for each in (program, coalesced)
    ]
    assert counts[1] < counts[0]
    batch = case.data(4, torch.float32)
    before, after = (simulate(each, exported.state, batch) for each in (program, coalesced))
    assert torch.equal(before.loss, after.loss)
    assert before.grads and all(torch.equal(before.grads[fqn], after.grads[fqn]) for fqn in before.grads)
