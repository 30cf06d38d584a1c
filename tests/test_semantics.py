"""What each op of the `hp` dialect computes, simulated on small tensors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from program_builder import FunctionBuilder, by_position, on_ranks, program_of, run
from torch import Tensor

from hpir.errors import RuntimeFault
from hpir.mesh import Mesh
from hpir.runtime import collective_math
from hpir.runtime.program import Ref, TensorType
from hpir.runtime.simulate import simulate

PAIR = Mesh.of({"dp": 2})
SQUARE = Mesh.of({"dp": 2, "tp": 2})
F22 = TensorType((2, 2), "float32")


def per_rank(mesh: Mesh, *shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return one tensor per rank whose entries name rank and place: rank 1 has 100, 101, ..."""
    size = torch.Size(shape).numel()
    return [(torch.arange(size) + 100 * rank).reshape(shape).to(dtype) for rank in range(mesh.size)]


def only(results: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    for values in results:
        assert len(values) == 1
    return [values[0] for values in results]


def assert_ranks(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert len(actual) == len(expected)
    for rank, (found, wanted) in enumerate(zip(actual, expected, strict=True)):
        assert found.dtype == wanted.dtype, rank
        assert torch.equal(found, wanted), (rank, found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("dim", [0, 1])
def test_all_gather_semantics(dim: int, dtype: torch.dtype) -> None:
    inputs = per_rank(PAIR, 2, 2, dtype=dtype)
    results = only(on_ranks(PAIR, [inputs], lambda f, x: [f.wait(f.all_gather(x, axes=["dp"], dims=[dim]))]))
    assert_ranks(results, [torch.cat(inputs, dim)] * 2)


def test_all_gather_semantics_one_axis_of_two() -> None:
    a, b, c, d = inputs = per_rank(SQUARE, 2, 2)
    over_dp = only(on_ranks(SQUARE, [inputs], lambda f, x: [f.wait(f.all_gather(x, axes=["dp"], dims=[0]))]))
    assert_ranks(over_dp, [torch.cat([a, c]), torch.cat([b, d])] * 2)
    over_tp = only(on_ranks(SQUARE, [inputs], lambda f, x: [f.wait(f.all_gather(x, axes=["tp"], dims=[0]))]))
    assert_ranks(over_tp, [torch.cat([a, b])] * 2 + [torch.cat([c, d])] * 2)


def test_all_gather_semantics_axis_order() -> None:
    a, b, c, d = inputs = per_rank(SQUARE, 1, 2)
    major = only(on_ranks(SQUARE, [inputs], lambda f, x: [f.wait(f.all_gather(x, axes=["dp", "tp"], dims=[0]))]))
    assert_ranks(major, [torch.cat([a, b, c, d])] * 4)
    minor = only(on_ranks(SQUARE, [inputs], lambda f, x: [f.wait(f.all_gather(x, axes=["tp", "dp"], dims=[0]))]))
    assert_ranks(minor, [torch.cat([a, c, b, d])] * 4)


def test_all_gather_semantics_several_operands() -> None:
    rows, columns = per_rank(PAIR, 2, 2), per_rank(PAIR, 3, 1, dtype=torch.int32)
    results = on_ranks(PAIR, [rows, columns], lambda f, x, y: f.wait_all(f.all_gather(x, y, axes=["dp"], dims=[0, 1])))
    for values in results:
        assert_ranks(values, [torch.cat(rows, 0), torch.cat(columns, 1)])


@pytest.mark.parametrize("axes", [("one", "dp"), ("dp", "one"), ("dp",)])
@pytest.mark.parametrize("names", [("one", "dp"), ("dp", "one")])
def test_size_one_axes_change_nothing(names: tuple[str, str], axes: tuple[str, ...]) -> None:
    mesh = Mesh.of({name: 1 if name == "one" else 2 for name in names})
    inputs = per_rank(mesh, 2, 2)

    def body(f: FunctionBuilder, x: Ref) -> list[Ref]:
        gathered = f.wait(f.all_gather(x, axes=axes, dims=[0]))
        reduced = f.wait(f.all_reduce(x, axes=axes, reduce="avg"))
        scattered = f.wait(f.reduce_scatter(x, axes=axes, dims=[1]))
        exchanged = f.wait(f.all_to_all(x, axes=axes, splits=[0], concats=[1]))
        alone = f.wait(f.all_reduce(x, axes=["one"]))
        return [gathered, reduced, scattered, exchanged, f.shard_slice(x, axes, 0), alone]

    a, b = inputs
    first, second = on_ranks(mesh, [inputs], body)
    common = [torch.cat(inputs), (a + b) / 2]
    assert_ranks(first, [*common, (a + b)[:, :1], torch.cat([a[:1], b[:1]], 1), a[:1], a])
    assert_ranks(second, [*common, (a + b)[:, 1:], torch.cat([a[1:], b[1:]], 1), b[1:], b])


@pytest.mark.parametrize("reduce", ["sum", "avg"])
def test_reduce_scatter_semantics(reduce: str) -> None:
    inputs = per_rank(PAIR, 2, 4)
    total = (inputs[0] + inputs[1]) / (2 if reduce == "avg" else 1)
    for dim in (0, 1):
        results = on_ranks(
            PAIR,
            [inputs],
            lambda f, x, dim=dim: [f.wait(f.reduce_scatter(x, axes=["dp"], dims=[dim], reduce=reduce))],
        )
        assert_ranks(only(results), total.chunk(2, dim))


def test_reduce_scatter_semantics_axis_order() -> None:
    inputs = per_rank(SQUARE, 4, 2)
    pieces = sum(inputs, torch.zeros(4, 2)).chunk(4)
    for axes, order in ((["dp", "tp"], (0, 1, 2, 3)), (["tp", "dp"], (0, 2, 1, 3))):
        results = on_ranks(SQUARE, [inputs], lambda f, x, axes=axes: [f.wait(f.reduce_scatter(x, axes=axes, dims=[0]))])
        assert_ranks(only(results), [pieces[position] for position in order])


def test_reduce_scatter_verify_divisible() -> None:
    inputs = per_rank(PAIR, 3, 2)
    with pytest.raises(
        RuntimeFault, match=r"rank 1: main: op 0 'hp.reduce_scatter': expected dim 0 to divide .* got: 3"
    ):
        on_ranks(PAIR, [inputs], lambda f, x: [f.wait(f.reduce_scatter(x, axes=["dp"], dims=[0]))])


def test_scattered_pieces_do_not_keep_the_whole_alive() -> None:
    pieces = collective_math.reduce_scatter([torch.ones(4, 2), torch.ones(4, 2)], 0, "sum")
    assert [piece.untyped_storage().nbytes() for piece in pieces] == [16, 16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("reduce", ["sum", "avg"])
def test_all_reduce_semantics(reduce: str, dtype: torch.dtype) -> None:
    inputs = per_rank(PAIR, 2, 2, dtype=dtype)
    results = on_ranks(PAIR, [inputs], lambda f, x: [f.wait(f.all_reduce(x, axes=["dp"], reduce=reduce))])
    total = inputs[0] + inputs[1]
    assert_ranks(only(results), [total / 2 if reduce == "avg" else total] * 2)


def test_all_reduce_semantics_sums_in_group_order() -> None:
    mesh = Mesh.of({"a": 3, "b": 1})
    inputs = [torch.tensor([value]) for value in (1e8, 1.0, -1e8)]
    results = on_ranks(mesh, [inputs], lambda f, x: [f.wait(f.all_reduce(x, axes=["a"]))])
    assert_ranks(only(results), [torch.tensor([0.0])] * 3)


def test_all_reduce_semantics_coordinates() -> None:
    mesh = Mesh.of({"pp": 3, "dp": 2})
    inputs = per_rank(mesh, 2, 2)
    outer, inner = FunctionBuilder("outer", mesh), FunctionBuilder("inner", mesh)
    for f in (outer, inner):
        x = f.argument("x", (12, 2), sharding=(("pp", "dp"), ()), batch_dim=0)
        value = f.wait(f.all_reduce(x, axes=["pp"], reduce="avg", coordinates=(0, 2))) if f is outer else x
        f.result(value)
    program = program_of(outer.build(), inner.build(), mesh=mesh, train=["outer", "inner", "outer"], pipeline_axis="pp")
    values = [rank[0] for rank in simulate(program, {}, {"x": torch.cat(inputs)}).per_rank]
    even, odd = (inputs[0] + inputs[4]) / 2, (inputs[1] + inputs[5]) / 2
    assert_ranks(values, [even, odd, inputs[2], inputs[3], even, odd])


def test_all_reduce_refuses_a_rank_that_takes_no_part() -> None:
    inputs = per_rank(PAIR, 2, 2)
    with pytest.raises(
        RuntimeFault, match=r"rank 1: main: op 0 'hp.all_reduce': position 1 on axis 'dp' takes no part"
    ):
        on_ranks(PAIR, [inputs], lambda f, x: [f.wait(f.all_reduce(x, axes=["dp"], coordinates=(0,)))])


@pytest.mark.parametrize(
    ("dtype", "reduce", "message"),
    [
        (torch.int64, "avg", "expected floating tensors for reduce = 'avg', got: torch.int64"),
        (torch.bool, "sum", "expected numbers to reduce, got: torch.bool"),
        (torch.float32, "max", "expected reduce to be 'sum' or 'avg', got: 'max'"),
    ],
)
def test_all_reduce_verify_reduce(dtype: torch.dtype, reduce: str, message: str) -> None:
    inputs = per_rank(PAIR, 2, 2, dtype=dtype)
    with pytest.raises(RuntimeFault, match=message):
        on_ranks(PAIR, [inputs], lambda f, x: [f.wait(f.all_reduce(x, axes=["dp"], reduce=reduce))])


def test_all_reduce_semantics_integers() -> None:
    inputs = per_rank(PAIR, 2, 2, dtype=torch.int32)
    results = on_ranks(PAIR, [inputs], lambda f, x: [f.wait(f.all_reduce(x, axes=["dp"]))])
    assert_ranks(only(results), [inputs[0] + inputs[1]] * 2)


@pytest.mark.parametrize(("split", "concat"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_all_to_all_semantics(split: int, concat: int) -> None:
    a, b = inputs = per_rank(PAIR, 2, 2)
    results = on_ranks(
        PAIR, [inputs], lambda f, x: [f.wait(f.all_to_all(x, axes=["dp"], splits=[split], concats=[concat]))]
    )
    (a0, a1), (b0, b1) = a.chunk(2, split), b.chunk(2, split)
    assert_ranks(only(results), [torch.cat([a0, b0], concat), torch.cat([a1, b1], concat)])


def test_all_to_all_semantics_axis_order() -> None:
    inputs = per_rank(SQUARE, 4, 1)
    results = on_ranks(
        SQUARE, [inputs], lambda f, x: [f.wait(f.all_to_all(x, axes=["tp", "dp"], splits=[0], concats=[1]))]
    )
    order = (0, 2, 1, 3)
    expected = [torch.cat([inputs[source][row : row + 1] for source in order], 1) for row in order]
    assert_ranks(only(results), expected)


def test_all_to_all_semantics_twice_is_identity() -> None:
    inputs = per_rank(SQUARE, 4, 8)

    def body(f: FunctionBuilder, x: Ref) -> list[Ref]:
        there = f.wait(f.all_to_all(x, axes=["dp", "tp"], splits=[1], concats=[0]))
        return [f.wait(f.all_to_all(there, axes=["dp", "tp"], splits=[0], concats=[1]))]

    assert_ranks(only(on_ranks(SQUARE, [inputs], body)), inputs)


@pytest.mark.parametrize("root", [0, 1])
def test_broadcast_semantics(root: int) -> None:
    xs, ys = per_rank(SQUARE, 2, 2), per_rank(SQUARE, 3, dtype=torch.int64)
    results = on_ranks(SQUARE, [xs, ys], lambda f, x, y: f.wait_all(f.broadcast(x, y, axes=["tp"], root=root)))
    for rank, values in enumerate(results):
        source = rank - rank % 2 + root
        assert_ranks(values, [xs[source], ys[source]])


def test_broadcast_semantics_root_follows_axis_order() -> None:
    inputs = per_rank(SQUARE, 1)
    results = on_ranks(SQUARE, [inputs], lambda f, x: [f.wait(f.broadcast(x, axes=["tp", "dp"], root=1))])
    assert_ranks(only(results), [inputs[2]] * 4)


def test_broadcast_semantics_coordinates() -> None:
    mesh = Mesh.of({"pp": 3})
    functions = []
    for position in range(3):
        f = FunctionBuilder(f"rank{position}", mesh)
        value = f.literal(float(position), TensorType((), "float32"))
        if position != 1:
            value = f.wait(f.broadcast(value, axes=["pp"], root=2, coordinates=(0, 2)))
        f.result(value)
        functions.append(f.build())
    values = [rank[0] for rank in run(by_position(functions, mesh, "pp")).per_rank]
    assert_ranks(values, [torch.tensor(2.0), torch.tensor(1.0), torch.tensor(2.0)])


@pytest.mark.parametrize(
    ("root", "coordinates", "message"),
    [
        (2, None, r"expected root to be one of \[0, 1\], got: 2"),
        (1, (0,), r"expected root to be one of \[0\], got: 1"),
        (0, (1, 0), "expected coordinates to be ascending positions on one axis"),
        (0, (0, 2), "expected coordinates to be positions on an axis of 2 ranks"),
    ],
)
def test_broadcast_verify_root(root: int, coordinates: tuple[int, ...] | None, message: str) -> None:
    with pytest.raises(RuntimeFault, match=message):
        on_ranks(
            PAIR,
            [per_rank(PAIR, 1)],
            lambda f, x: [f.wait(f.broadcast(x, axes=["dp"], root=root, coordinates=coordinates))],
        )


def test_wait_semantics_late_and_in_any_order() -> None:
    inputs = per_rank(PAIR, 2, 2)

    def body(f: FunctionBuilder, x: Ref) -> list[Ref]:
        gathering = f.all_gather(x, axes=["dp"], dims=[0])
        reducing = f.all_reduce(x, axes=["dp"])
        double = f.aten("add.Tensor", x, x)
        reduced = f.wait(reducing)
        return [double, reduced, f.wait(gathering)]

    for rank, values in enumerate(on_ranks(PAIR, [inputs], body)):
        assert_ranks(values, [inputs[rank] * 2, inputs[0] + inputs[1], torch.cat(inputs)])


def test_wait_verify_future() -> None:
    f = FunctionBuilder("main", PAIR)
    value = f.literal(1.0, TensorType((), "float32"))
    f.emit("hp.wait", value, types=[TensorType((), "float32")])
    with pytest.raises(RuntimeFault, match=r"rank 0: main: op 1 'hp.wait': expected a future, got: float32\[\]"):
        run(program_of(f.build(), mesh=PAIR))


def test_wait_verify_count() -> None:
    inputs = per_rank(PAIR, 2)

    def body(f: FunctionBuilder, x: Ref) -> list[Ref]:
        return [f.emit("hp.wait", f.all_reduce(x, x, axes=["dp"]), types=[TensorType((2,), "float32")])[0]]

    with pytest.raises(RuntimeFault, match=r"op 1 'hp.wait': gives 2 results, expected 1"):
        on_ranks(PAIR, [inputs], body)


def test_shard_slice_semantics() -> None:
    x = torch.arange(8.0).reshape(4, 2)
    results = on_ranks(SQUARE, [[x] * 4], lambda f, x: [f.shard_slice(x, ["dp"], 0), f.shard_slice(x, ["tp"], 1)])
    for rank, (rows, columns) in enumerate(results):
        assert torch.equal(rows, x.chunk(2, 0)[rank // 2])
        assert torch.equal(columns, x.chunk(2, 1)[rank % 2])


@pytest.mark.parametrize(("axes", "order"), [(["dp", "tp"], (0, 1, 2, 3)), (["tp", "dp"], (0, 2, 1, 3))])
def test_shard_slice_semantics_uneven(axes: list[str], order: tuple[int, ...]) -> None:
    # 10 rows over 2x2 are 3, 2, 3, 2, as DTensor splits them; the short ones are padded with zeros.
    rows = torch.arange(1.0, 11.0)
    pieces = [[1, 2, 3], [4, 5, 0], [6, 7, 8], [9, 10, 0]]
    results = only(on_ranks(SQUARE, [[rows] * 4], lambda f, x: [f.shard_slice(x, axes, 0)]))
    assert_ranks(results, [torch.tensor(pieces[position], dtype=torch.float32) for position in order])


def test_shard_slice_semantics_empty_pieces() -> None:
    results = only(on_ranks(SQUARE, [[torch.ones(1, 2)] * 4], lambda f, x: [f.shard_slice(x, ["dp", "tp"], 0)]))
    assert_ranks(results, [torch.ones(1, 2), *[torch.zeros(1, 2)] * 3])


def test_send_recv_semantics() -> None:
    mesh = Mesh.of({"pp": 2, "dp": 2})
    inputs = per_rank(mesh, 2, 2)
    other = torch.tensor([7, 8])
    first, second = FunctionBuilder("first", mesh), FunctionBuilder("second", mesh)
    for f in (first, second):
        x = f.argument("x", (8, 2), sharding=(("pp", "dp"), ()), batch_dim=0)
        if f is first:
            # A transposed value has to arrive as what it means, whatever its strides.
            f.send(f.aten("t.default", x), f.literal((7, 8), TensorType((2,), "int64")), axis="pp", peer=1)
            f.result(x)
        else:
            for value in f.wait_all(f.recv(F22, TensorType((2,), "int64"), axis="pp", peer=0)):
                f.result(value)
    result = simulate(by_position([first.build(), second.build()], mesh, "pp"), {}, {"x": torch.cat(inputs)})
    assert_ranks(result.per_rank[2][:2], [inputs[0].t(), other])
    assert_ranks(result.per_rank[3][:2], [inputs[1].t(), other])
    assert result.per_rank[2][0].is_contiguous()


def test_send_recv_semantics_fifo_per_channel() -> None:
    mesh = Mesh.of({"pp": 3})
    scalar = TensorType((), "float32")
    functions = [FunctionBuilder(f"rank{position}", mesh) for position in range(3)]
    for position in (0, 2):
        for number in range(3):
            functions[position].send(functions[position].literal(10.0 * position + number, scalar), axis="pp", peer=1)
    f = functions[1]
    # Received in another order than sent across channels, and waited for in reverse within one.
    from_last = [f.recv(scalar, axis="pp", peer=2) for _ in range(3)]
    from_first = [f.recv(scalar, axis="pp", peer=0) for _ in range(3)]
    for future in reversed([*from_last, *from_first]):
        f.result(f.wait(future))
    program = by_position([builder.build() for builder in functions], mesh, "pp")
    received = [value.item() for value in run(program).per_rank[1][:-1]]
    assert received == [2.0, 1.0, 0.0, 22.0, 21.0, 20.0]


def test_both_send_first_semantics() -> None:
    mesh = Mesh.of({"pp": 2})
    functions = []
    for position in range(2):
        f = FunctionBuilder(f"rank{position}", mesh)
        f.send(f.literal(float(position), TensorType((), "float32")), axis="pp", peer=1 - position)
        f.result(f.wait(f.recv(TensorType((), "float32"), axis="pp", peer=1 - position)))
        functions.append(f.build())
    assert [values[0].item() for values in run(by_position(functions, mesh, "pp")).per_rank] == [1.0, 0.0]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 10])
def test_microbatch_semantics(count: int) -> None:
    x = torch.arange(16.0).reshape(8, 2)
    mesh = Mesh.of({"all": 1})
    (parts,) = on_ranks(mesh, [[x]], lambda f, x: [f.microbatch(x, index, count) for index in range(count)])
    assert_ranks(parts, torch.tensor_split(x, count))
    (parts,) = on_ranks(mesh, [[x.t()]], lambda f, x: [f.microbatch(x, index, count, 1) for index in range(count)])
    assert_ranks(parts, torch.tensor_split(x.t(), count, 1))


def test_microbatch_verify_index() -> None:
    f = FunctionBuilder("main", PAIR)
    x = f.literal((1.0, 2.0), TensorType((2,), "float32"))
    f.emit("hp.microbatch", x, types=[TensorType((1,), "float32")], index=2, count=2, dim=0)
    with pytest.raises(RuntimeFault, match=r"main: op 1 'hp.microbatch': expected index < 2, got: 2"):
        run(program_of(f.build(), mesh=PAIR))


def test_accumulate_semantics() -> None:
    mesh = Mesh.of({"all": 1})
    a, b = torch.ones(2, 2), torch.full((2, 2), 2.0)

    def body(f: FunctionBuilder, x: Ref, y: Ref) -> list[Ref]:
        first, second = f.accumulate([x, y], [y, x])
        third = f.accumulate([first], [y])[0]
        fourth = f.accumulate([third], [y])[0]
        # `second` has another reader after the sum, so the sum must not change it.
        fifth = f.accumulate([second], [x])[0]
        return [fourth, fifth, second, x]

    (values,) = on_ranks(mesh, [[a], [b]], body)
    assert_ranks(values, [a * 7, a * 4, a * 3, a])
    assert torch.equal(a, torch.ones(2, 2))


def test_accumulate_semantics_in_place() -> None:
    mesh = Mesh.of({"all": 1})
    held: list[int] = []

    def body(f: FunctionBuilder, x: Ref) -> list[Ref]:
        total = x
        for _ in range(4):
            (total,) = f.accumulate([total], [x])
        return [total]

    observed = on_ranks(mesh, [[torch.ones(1024)]], body, observe=lambda rank, name, op, size: held.append(size))
    assert torch.equal(observed[0][0], torch.full((1024,), 5.0))
    # The operand and one accumulator; the last op is the literal of the loss.
    assert held[:4] == [8192] * 4


def test_accumulate_semantics_keeps_the_accumulator_dtype() -> None:
    mesh = Mesh.of({"all": 1})
    low, high = torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([2**-9])

    def body(f: FunctionBuilder, x: Ref, y: Ref) -> list[Ref]:
        (once,) = f.accumulate([x], [y])
        (twice,) = f.accumulate([once], [y])
        (up,) = f.accumulate([y], [x])
        return [twice, up]

    (values,) = on_ranks(mesh, [[low], [high]], body)
    assert_ranks(values, [torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0 + 2**-9])])


def test_accumulate_verify_shapes() -> None:
    f = FunctionBuilder("main", PAIR)
    x = f.literal((1.0, 2.0), TensorType((2,), "float32"))
    y = f.literal(1.0, TensorType((), "float32"))
    f.accumulate([x], [y])
    with pytest.raises(RuntimeFault, match=r"'hp.accumulate': expected a value of shape \[2\], got: \[\]"):
        run(program_of(f.build(), mesh=PAIR))


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_random_semantics(kind: str, name: str) -> None:
    def body(f: FunctionBuilder) -> list[Ref]:
        return [f.random(kind, (64, 64), 0, name), f.random(kind, (64, 64), 0, name), f.random(kind, (64, 64), 1, name)]

    values = on_ranks(Mesh.of({"dp": 2}), [], body)
    for first, again, other in values:
        assert str(first.dtype) == f"torch.{name}"
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        mean, deviation = (0.5, 12**-0.5) if kind == "uniform" else (0.0, 1.0)
        assert abs(first.double().mean().item() - mean) < 0.05
        assert abs(first.double().std().item() - deviation) < 0.05
        if kind == "uniform":
            assert first.min().item() >= 0.0
            assert first.max().item() < 1.0
    # No data axes: both ranks are at the same data coordinate.
    assert torch.equal(values[0][0], values[1][0])


def test_call_semantics_nested() -> None:
    mesh = PAIR
    inner = FunctionBuilder("inner", mesh)
    x = inner.argument("x", (2,))
    inner.result(inner.wait(inner.all_reduce(x, axes=["dp"])), "output", "total")
    inner.result(inner.aten("neg.default", x), "output", "negative")
    inner_function = inner.build()
    outer = FunctionBuilder("outer", mesh)
    y = outer.argument("y", (2,))
    total, negative, _ = outer.call(inner_function, y)
    outer.result(outer.aten("add.Tensor", total, negative), "output", "sum")
    outer_function = outer.build()
    main = FunctionBuilder("main", mesh)
    z = main.argument("z", (4,), sharding=(("dp",),), batch_dim=0)
    first, _ = main.call(outer_function, z)
    second, _ = main.call(outer_function, first)
    main.result(second)
    program = program_of(inner_function, outer_function, main.build(), mesh=mesh)
    z0, z1 = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    values = simulate(program, {}, {"z": torch.cat([z0, z1])}).per_rank
    # One call gives the other rank's value.
    assert_ranks([values[0][0], values[1][0]], [z0, z1])


@pytest.mark.parametrize(
    ("data", "type_", "expected"),
    [
        (((1, 2), (3, 4)), TensorType((2, 2), "int64"), torch.tensor([[1, 2], [3, 4]])),
        ((True, False), TensorType((2,), "bool"), torch.tensor([True, False])),
        (1.5, TensorType((), "bfloat16"), torch.tensor(1.5, dtype=torch.bfloat16)),
        ((float("-inf"), 0.0), TensorType((2,), "float32"), torch.tensor([float("-inf"), 0.0])),
        ((1 + 2j,), TensorType((1,), "complex64"), torch.tensor([1 + 2j])),
        ((), TensorType((0, 3), "float32"), torch.zeros(0, 3)),
    ],
)
def test_literal_semantics(data: object, type_: TensorType, expected: Tensor) -> None:
    f = FunctionBuilder("main", PAIR)
    f.result(f.literal(data, type_))  # type: ignore[arg-type]
    assert_ranks([run(program_of(f.build(), mesh=PAIR)).per_rank[1][0]], [expected])


def test_literal_verify_data() -> None:
    f = FunctionBuilder("main", PAIR)
    f.literal((1, 2, 3), TensorType((2,), "int64"))
    with pytest.raises(RuntimeFault, match=r"main: op 0 'literal': literal does not fill int64\[2\]"):
        run(program_of(f.build(), mesh=PAIR))


@pytest.mark.parametrize(
    "sizes",
    [{"a": 1}, {"a": 5}, {"a": 2, "b": 3}, {"a": 4, "b": 1, "c": 4}, {"a": 64}, {"a": 4, "b": 4, "c": 4}],
    ids=str,
)
def test_collectives_agree_with_each_other(sizes: dict[str, int]) -> None:
    mesh = Mesh.of(sizes)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(mesh.size, 3, generator=generator) for _ in range(mesh.size)]
    axes = tuple(reversed(mesh.axis_names))

    def body(f: FunctionBuilder, x: Ref) -> list[Ref]:
        reduced = f.wait(f.all_reduce(x, axes=axes))
        scattered = f.wait(f.reduce_scatter(x, axes=axes, dims=[0]))
        regathered = f.wait(f.all_gather(scattered, axes=axes, dims=[0]))
        sliced = f.shard_slice(reduced, axes, 0)
        return [reduced, regathered, scattered, sliced]

    for reduced, regathered, scattered, sliced in on_ranks(mesh, [inputs], body):
        assert torch.equal(reduced, regathered)
        assert torch.equal(scattered, sliced)
        torch.testing.assert_close(reduced, torch.stack(inputs).sum(0))


def test_empty_dims_survive_collectives() -> None:
    inputs = [torch.zeros(2, 0)] * 2

    def body(f: FunctionBuilder, x: Ref) -> list[Ref]:
        return [
            f.wait(f.all_gather(x, axes=["dp"], dims=[1])),
            f.wait(f.reduce_scatter(x, axes=["dp"], dims=[1])),
            f.wait(f.all_to_all(x, axes=["dp"], splits=[1], concats=[0])),
            f.shard_slice(x, ["dp"], 1),
        ]

    for values in on_ranks(PAIR, [inputs], body):
        assert [tuple(value.shape) for value in values] == [(2, 0), (2, 0), (4, 0), (2, 0)]
