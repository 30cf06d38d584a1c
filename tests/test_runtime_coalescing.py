"""Adjacent collectives become one; results stay the same bit by bit, and nothing else moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from exports import captured
from models import BY_NAME
from program_builder import FunctionBuilder, program_of

from hpir import compile_program
from hpir.mesh import Mesh
from hpir.runtime.coalescing import coalesce, coalesce_program, position_before, unpack_arrivals
from hpir.runtime.packing import packing
from hpir.runtime.program import COLLECTIVES, UNPACK_ARRIVAL, Function, Ref
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


def test_what_goes_over_the_axis_of_a_pipeline_stays_as_it_is() -> None:
    function = gathers(("tp",), ("tp",), ("dp",), ("dp",)).build()
    assert len(coalesce(function).ops) == len(function.ops) - 4
    apart = coalesce(function, "tp")
    assert [op.args for op in apart.ops if op.target == "hp.all_gather"] == [(Ref(0),), (Ref(1),), (Ref(2), Ref(3))]


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


def test_gathers_of_several_units_stay_apart() -> None:
    function = gathers(("dp",), ("dp",), ("dp",)).build()
    ops = [replace(op, unit=unit) for op, unit in zip(function.ops[:3], ("a", "a", "b"), strict=True)]
    apart = replace(function, ops=(*ops, *function.ops[3:]))
    assert [len(op.args) for op in coalesce(apart).ops if op.target == "hp.all_gather"] == [2, 1]


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


def marked(function: Function, **fields: tuple[Any, ...]) -> Function:
    """Return a function with fields of its collectives set, in their order, and of the waits for them likewise."""
    ops = list(function.ops)
    starts = [number for number, op in enumerate(ops) if op.target in COLLECTIVES]
    for name, values in fields.items():
        for number, value in zip(starts, values, strict=True):
            (wait,) = [
                at for at, op in enumerate(ops) if op.target == "hp.wait" and op.args == (Ref(ops[number].results[0]),)
            ]
            for at in (number, wait):
                ops[at] = replace(ops[at], **{name: value})
    return replace(function, ops=tuple(ops))


def test_buckets_are_left_as_they_are() -> None:
    function = marked(gathers(("dp",), ("dp",)).build(), bucket=("one", "two"))
    assert coalesce(function) is function
    function = marked(gathers(*[("dp",)] * 5).build(), bucket=("", "", "one", "", ""))
    starts = [op for op in coalesce(function).ops if op.target == "hp.all_gather"]
    assert [(op.bucket, len(op.args)) for op in starts] == [("", 2), ("one", 1), ("", 2)]


def test_what_is_merged_says_whose_it_is() -> None:
    members, sizes = (("a",), ("b",), ("c",)), ((32,), (32,), (32,))
    merged = coalesce(marked(gathers(*[("dp",)] * 3).build(), members=members, member_bytes=sizes))
    start, wait = (op for op in merged.ops if op.target.startswith("hp."))
    assert start.members == wait.members == ("a", "b", "c")
    assert start.member_bytes == wait.member_bytes == (32, 32, 32)
    # Where one does not say, nothing is said of the others.
    merged = coalesce(marked(gathers(*[("dp",)] * 3).build(), members=(("a",), (), ("c",))))
    assert all(op.members == () for op in merged.ops)


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


@pytest.mark.parametrize("reshard", [True, False])
def test_gathered_buckets_are_taken_apart_as_they_arrive(reshard: bool) -> None:
    case, exported = BY_NAME["rotary"], captured("rotary", 2, torch.float32)
    program = compile_program(
        exported,
        {
            "mesh": {"dp": 2},
            "data": {"axes": ["dp"]},
            "fsdp": {"axes": ["dp"], "units": list(case.units), "reshard_after_forward": reshard},
            "buckets": {},
        },
    )
    function = program.functions["stage0_step"]
    found = unpack_arrivals(function)
    before, after = (Counter(op.target for op in each.ops) for each in (function, found))
    # Those of reduce-scatters stay.
    assert after["hp.wait"] == before["hp.reduce_scatter"] + before["hp.all_reduce"]
    assert after[UNPACK_ARRIVAL] == before["hp.all_gather"] > 0
    assert before["hp.wait"] - after["hp.wait"] == after[UNPACK_ARRIVAL]
    made = {value: op for op in function.ops for value in op.results}
    for op in found.ops:
        if op.target == UNPACK_ARRIVAL:
            assert made[op.results[0]].kwargs == op.kwargs
            assert function.ops[position_before(function, op)].target == "hp.unpack"
            assert [made[value].target for value in op.operands()] == ["hp.all_gather"]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("layout", ["flat", "packed"])
@pytest.mark.parametrize(
    ("types", "alignment"),
    [
        ((("float32", (6, 5)), ("float32", (12,)), ("float32", (0, 3)), ("float32", (6, 1, 2))), 1),
        ((("float32", (6, 5)), ("float32", (12,))), 64),
        ((("bfloat16", (6, 5)), ("int64", (12,)), ("bool", (6,)), ("complex64", (18, 2))), 64),
    ],
)
def test_parts_that_are_not_joined_are_taken_apart_as_the_whole_is(
    types: tuple[tuple[str, tuple[int, ...]], ...], alignment: int, layout: str, ranks: int
) -> None:
    packed = packing(types, ranks, alignment, (0,) * len(types))
    assert packed.by_rows
    whole = torch.randint(0, 2, (packed.numel,), generator=torch.Generator().manual_seed(0)).to(packed.dtype)
    expected, found = packed.unpack(whole, layout), packed.join(list(whole.chunk(ranks)), layout)
    for one, other, (_, shape) in zip(found, expected, types, strict=True):
        assert one.shape == shape and one.is_contiguous()
        assert one.dtype == other.dtype and torch.equal(one, other)
    storages = {value.untyped_storage().data_ptr() for value in found if value.numel()}
    assert len(storages) == (1 if layout == "flat" else sum(value.numel() > 0 for value in found))


def test_members_cut_along_another_dim_are_joined_first() -> None:
    assert not packing((("float32", (4, 6)),), 2, 1, (1,)).by_rows
