"""The simulator: whole steps against plain torch, and what it says of programs that would fail or hang."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from program_builder import FunctionBuilder, by_position, on_ranks, program_of, run, with_location
from torch import Tensor

from hpir.errors import RuntimeFault
from hpir.mesh import Mesh, padded_shard_size, shard_spans
from hpir.runtime.precision import program_in_dtype
from hpir.runtime.program import Function, Named, Op, Program, Ref, TensorType, last_uses, private_accumulators
from hpir.runtime.simulate import simulate, simulate_evaluate

PAIR = Mesh.of({"dp": 2})
SCALAR = TensorType((), "float32")
ROWS = 5


def fsdp_step(mesh: Mesh, *, axes: tuple[str, ...], replicate: tuple[str, ...] = (), batch: int = 12) -> Program:
    """One linear layer under FSDP, written out: loss = mean((x @ weight + bias)^2), the weight's 5 rows split."""
    f = FunctionBuilder("step", mesh)
    data = (*replicate, *axes)
    weight = f.param("weight", (ROWS, 3), sharding=(axes, ()), aliases=["head.weight"])
    bias = f.param("bias", (3,))
    seen = f.argument("seen", (), "int64", role="buffer")
    x = f.argument("x", (batch, ROWS), sharding=(data, ()), batch_dim=0)
    gathered = f.wait(f.all_gather(weight, axes=axes, dims=[0]))
    # Where the rows are among the padded ones of all shards, and which row (or zeros) each padded one is.
    padded = padded_shard_size(ROWS, mesh.sizes(axes))
    spans = shard_spans(ROWS, mesh.sizes(axes))
    places = tuple(shard * padded + row for shard, (_, rows) in enumerate(spans) for row in range(rows))
    sources = tuple(begin + row if row < rows else ROWS for begin, rows in spans for row in range(padded))
    places_ref = f.literal(places, TensorType((len(places),), "int64"))
    full = f.aten("index_select.default", gathered, 0, places_ref, type_=TensorType((ROWS, 3), "float32"))
    rows = f.types[x.index].shape[0]
    output = TensorType((rows, 3), "float32")
    y = f.aten("addmm.default", bias, x, full, type_=output)
    loss = f.aten("mean.default", f.aten("mul.Tensor", y, y), type_=SCALAR)
    loss = f.wait(f.all_reduce(loss, axes=data, reduce="avg"))
    grad_y = f.aten("div.Scalar", f.aten("mul.Scalar", y, 2), (rows or 0) * 3)
    grad_bias = f.aten("sum.dim_IntList", grad_y, (0,), type_=TensorType((3,), "float32"))
    turned = f.aten("t.default", x, type_=TensorType((ROWS, rows), "float32"))
    grad = f.aten("mm.default", turned, grad_y, type_=TensorType((ROWS, 3), "float32"))
    grad = f.aten("constant_pad_nd.default", grad, (0, 0, 0, 1), type_=TensorType((ROWS + 1, 3), "float32"))
    sources_ref = f.literal(sources, TensorType((len(sources),), "int64"))
    grad = f.aten("index_select.default", grad, 0, sources_ref, type_=f.types[gathered.index])
    grad = f.wait(f.reduce_scatter(grad, axes=axes, dims=[0], reduce="avg"))
    grad_bias = f.wait(f.all_reduce(grad_bias, axes=axes, reduce="avg"))
    if replicate:
        grad, grad_bias = f.wait_all(f.all_reduce(grad, grad_bias, axes=replicate, reduce="avg"))
    f.result(loss, "loss")
    f.result(grad, "grad", "weight", full_shape=(ROWS, 3), sharding=(axes, ()), aliases=["head.weight"])
    f.result(grad_bias, "grad", "bias")
    f.result(f.aten("add.Scalar", seen, 1), "buffer", "seen")
    forward = FunctionBuilder("forward", mesh)
    forward.arguments, forward.types = list(f.arguments), dict(f.types)
    norm = forward.aten("mean.default", x, type_=SCALAR)
    forward.result(forward.wait(forward.all_reduce(norm, axes=data, reduce="avg")), "loss")
    double = forward.aten("mul.Scalar", x, 2)
    forward.result(double, "output", "double", full_shape=(batch, ROWS), sharding=(data, ()))
    forward.result(norm, "output", "rank_mean")
    tree = {"dict": {"double": "double", "more": {"tuple": ["rank_mean", None]}}}
    return program_of(
        f.build(), forward.build(), mesh=mesh, data_axes=data, train=["step"], evaluate=["forward"], output_tree=tree
    )


def state_and_batch(batch: int = 12) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    state = {
        "weight": torch.randn(ROWS, 3, generator=generator),
        "bias": torch.randn(3, generator=generator),
        "seen": torch.tensor(6),
    }
    return state, {"x": torch.randn(batch, ROWS, generator=generator)}


def plain_step(state: dict[str, Tensor], batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    weight = state["weight"].double().requires_grad_()
    bias = state["bias"].double().requires_grad_()
    loss = (batch["x"].double() @ weight + bias).square().mean()
    grad_weight, grad_bias = torch.autograd.grad(loss, [weight, bias])
    return loss.detach(), grad_weight, grad_bias


MESHES: list[tuple[dict[str, int], tuple[str, ...], tuple[str, ...]]] = [
    ({"dp": 1}, ("dp",), ()),
    ({"dp": 2}, ("dp",), ()),
    ({"dp": 3}, ("dp",), ()),
    ({"dp": 12}, ("dp",), ()),
    ({"rep": 2, "dp": 2}, ("dp",), ("rep",)),
    ({"dp": 2, "rep": 2}, ("dp",), ("rep",)),
    ({"a": 2, "b": 2}, ("a", "b"), ()),
    ({"a": 2, "b": 2}, ("b", "a"), ()),
    ({"one": 1, "dp": 2, "two": 1}, ("dp",), ("one",)),
    ({"dp": 2, "tp": 3}, ("dp",), ()),
]


@pytest.mark.parametrize(("sizes", "axes", "replicate"), MESHES, ids=str)
def test_step_equals_plain_torch(sizes: dict[str, int], axes: tuple[str, ...], replicate: tuple[str, ...]) -> None:
    program = fsdp_step(Mesh.of(sizes), axes=axes, replicate=replicate)
    state, batch = state_and_batch()
    before = {name: tensor.clone() for name, tensor in (*state.items(), *batch.items())}
    result = simulate(program, state, batch, check_types=True)
    loss, grad_weight, grad_bias = plain_step(state, batch)
    assert list(result.grads) == ["weight", "head.weight", "bias"]
    torch.testing.assert_close(result.loss.double(), loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(result.grads["weight"].double(), grad_weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(result.grads["bias"].double(), grad_bias, rtol=1e-5, atol=1e-6)
    assert result.grads["head.weight"] is result.grads["weight"]
    assert result.buffers == {"seen": torch.tensor(7)}
    assert result.outputs["double"].equal(batch["x"] * 2)
    assert result.outputs["more"][1] is None
    ranks = program.mesh.count(program.data_axes)
    torch.testing.assert_close(result.outputs["more"][0], batch["x"][: 12 // ranks].mean())
    for name, tensor in (*state.items(), *batch.items()):
        assert torch.equal(tensor, before[name]), name
    assert len(result.per_rank) == program.mesh.size


@pytest.mark.parametrize(("sizes", "axes", "replicate"), MESHES, ids=str)
def test_step_in_float64(sizes: dict[str, int], axes: tuple[str, ...], replicate: tuple[str, ...]) -> None:
    program = fsdp_step(Mesh.of(sizes), axes=axes, replicate=replicate)
    state, batch = state_and_batch()
    result = simulate(program, state, batch, dtype=torch.float64, check_types=True)
    loss, grad_weight, grad_bias = plain_step(state, batch)
    torch.testing.assert_close(result.loss, loss, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(result.grads["weight"], grad_weight, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(result.grads["bias"], grad_bias, rtol=1e-13, atol=1e-15)
    assert result.buffers["seen"].dtype == torch.int64
    assert torch.get_default_dtype() == torch.float32


def test_64_ranks_and_determinism() -> None:
    program = fsdp_step(Mesh.of({"a": 4, "b": 16}), axes=("b",), replicate=("a",), batch=128)
    state, batch = state_and_batch(128)
    first, second = simulate(program, state, batch), simulate(program, state, batch)
    loss, grad_weight, _ = plain_step(state, batch)
    torch.testing.assert_close(first.loss.double(), loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(first.grads["weight"].double(), grad_weight, rtol=1e-5, atol=1e-6)
    assert torch.equal(first.loss, second.loss)
    for name, grad in first.grads.items():
        assert torch.equal(grad, second.grads[name])


def test_saved_and_loaded_program_gives_the_same(tmp_path: Any) -> None:
    program = fsdp_step(PAIR, axes=("dp",))
    program.save(tmp_path)
    state, batch = state_and_batch()
    first, second = simulate(program, state, batch), simulate(Program.load(tmp_path), state, batch)
    assert torch.equal(first.loss, second.loss)
    assert torch.equal(first.grads["weight"], second.grads["weight"])
    assert first.outputs["double"].equal(second.outputs["double"])


def test_simulate_evaluate() -> None:
    program = fsdp_step(PAIR, axes=("dp",))
    state, batch = state_and_batch()
    loss, outputs = simulate_evaluate(program, state, batch, check_types=True)
    torch.testing.assert_close(loss, batch["x"].mean())
    assert outputs["double"].equal(batch["x"] * 2)
    loss, outputs = simulate_evaluate(program, state, batch, dtype=torch.float64)
    assert (loss.dtype, outputs["double"].dtype) == (torch.float64, torch.float64)


def test_no_outputs_are_none() -> None:
    f = FunctionBuilder("main", PAIR)
    result = run(program_of(f.build(), mesh=PAIR))
    assert result.outputs is None
    assert result.grads == {}
    assert result.buffers == {}


def test_shards_of_the_state_are_padded_with_zeros() -> None:
    mesh = Mesh.of({"a": 2, "b": 2})
    f = FunctionBuilder("main", mesh)
    f.result(
        f.param("w", (10, 3), sharding=(("a", "b"), ())), "grad", "w", full_shape=(10, 3), sharding=(("a", "b"), ())
    )
    w = torch.arange(1.0, 31.0).reshape(10, 3)
    result = simulate(program_of(f.build(), mesh=mesh), {"w": w}, {})
    assert torch.equal(result.grads["w"], w)
    zero = torch.zeros(1, 3)
    pieces = [w[0:3], torch.cat([w[3:5], zero]), w[5:8], torch.cat([w[8:10], zero])]
    for values, piece in zip(result.per_rank, pieces, strict=True):
        assert torch.equal(values[0], piece)


def test_state_sharded_on_two_dims() -> None:
    mesh = Mesh.of({"a": 2, "b": 3})
    sharding = (("b",), ("a",))
    f = FunctionBuilder("main", mesh)
    f.result(f.param("w", (4, 5), sharding=sharding), "grad", "w", full_shape=(4, 5), sharding=sharding)
    w = torch.randn(4, 5)
    result = simulate(program_of(f.build(), mesh=mesh), {"w": w}, {})
    assert torch.equal(result.grads["w"], w)
    assert result.per_rank[0][0].shape == (2, 3)


def test_state_with_gradients_and_strides_is_read_only() -> None:
    w = torch.nn.Parameter(torch.randn(3, 4).t())
    f = FunctionBuilder("main", PAIR)
    x = f.param("w", (4, 3))
    f.result(f.aten("mul.Tensor", x, x), "grad", "w")
    result = simulate(program_of(f.build(), mesh=PAIR), {"w": w}, {})
    assert torch.equal(result.grads["w"], w.detach() ** 2)
    assert not result.grads["w"].requires_grad
    assert w.grad is None


def test_ops_in_place_touch_neither_the_state_nor_other_ranks() -> None:
    f = FunctionBuilder("main", PAIR)
    w = f.param("w", (2,))
    x = f.argument("x", (2,), sharding=(("dp",),), batch_dim=0)
    constant = f.literal((1.0, 1.0), TensorType((2,), "float32"))
    gathered = f.wait(f.all_gather(x, axes=["dp"], dims=[0]))
    for ref in (w, constant, gathered):
        f.result(f.aten("add_.Tensor", ref, x))
    program = program_of(f.build(), mesh=PAIR)
    state, batch = {"w": torch.zeros(2)}, {"x": torch.tensor([10.0, 20.0])}
    for _ in range(2):
        result = simulate(program, state, batch)
        for values, x0 in zip(result.per_rank, (10.0, 20.0), strict=True):
            assert values[0].tolist() == [x0, x0]
            assert values[1].tolist() == [1 + x0, 1 + x0]
            assert values[2].tolist() == [10 + x0, 20 + x0]
    assert state["w"].tolist() == [0.0, 0.0]
    assert batch["x"].tolist() == [10.0, 20.0]


def test_buffers_are_the_first_data_rank_s() -> None:
    mesh = Mesh.of({"tp": 2, "dp": 2})
    f = FunctionBuilder("main", mesh)
    mean = f.argument("mean", (1,), role="buffer")
    x = f.argument("x", (2,), sharding=(("dp",),), batch_dim=0)
    f.result(f.aten("add.Tensor", mean, x), "buffer", "mean")
    result = simulate(
        program_of(f.build(), mesh=mesh, data_axes=["dp"]), {"mean": torch.ones(1)}, {"x": torch.tensor([1.0, 2.0])}
    )
    assert result.buffers["mean"].tolist() == [2.0]


def test_autocast_and_no_grad_of_the_caller_do_not_matter() -> None:
    program = fsdp_step(PAIR, axes=("dp",))
    state, batch = state_and_batch()
    expected = simulate(program, state, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = simulate(program, state, batch)
    assert torch.equal(result.loss, expected.loss)
    with torch.inference_mode():
        assert torch.equal(simulate(program, state, batch).loss, expected.loss)


# What it is given.


def mutated_state(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    state: dict[str, Any] = dict(state_and_batch()[0])
    change(state)
    return state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(wieght=s.pop("weight")), "state lacks 'weight', did you mean 'wieght'?"),
        (lambda s: s.pop("seen"), "state lacks 'seen'"),
        (
            lambda s: s.update(biass=s["bias"]),
            "state has 'biass', which the program does not know, did you mean 'bias'?",
        ),
        (lambda s: s.update(weight=s["weight"].t()), "state 'weight': expected float32[5, 3], got: float32[3, 5]"),
        (lambda s: s.update(weight=s["weight"][:4]), "state 'weight': expected float32[5, 3], got: float32[4, 3]"),
        (lambda s: s.update(bias=s["bias"].double()), "state 'bias': expected float32[3], got: float64[3]"),
        (lambda s: s.update(bias=[1, 2, 3]), "state 'bias': expected float32[3], got: [1, 2, 3]"),
        (
            lambda s: s.update({"head.weight": s["weight"] + 1}),
            "state 'weight' and 'head.weight' are one parameter but have different values",
        ),
    ],
)
def test_state_errors(change: Callable[[dict[str, Any]], object], message: str) -> None:
    with pytest.raises(RuntimeFault) as caught:
        simulate(fsdp_step(PAIR, axes=("dp",)), mutated_state(change), state_and_batch()[1])
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update({"head.weight": s.pop("weight")}),
        lambda s: s.update({"head.weight": s["weight"]}),
        lambda s: s.update({"head.weight": s["weight"].clone()}),
    ],
)
def test_any_name_of_a_tied_parameter_will_do(change: Callable[[dict[str, Any]], object]) -> None:
    program = fsdp_step(PAIR, axes=("dp",))
    state, batch = state_and_batch()
    expected = simulate(program, state, batch).grads["weight"]
    assert torch.equal(simulate(program, mutated_state(change), batch).grads["weight"], expected)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            {"x": torch.zeros(8, ROWS)},
            "input 'x' (of all ranks, over 'dp'): expected float32[12, 5], got: float32[8, 5]",
        ),
        (
            {"x": torch.zeros(12, ROWS, dtype=torch.int64)},
            "input 'x' (of all ranks, over 'dp'): expected float32[12, 5], got: int64[12, 5]",
        ),
        ({"x": 3}, "input 'x' (of all ranks, over 'dp'): expected float32[12, 5], got: 3"),
        ({}, "batch lacks input 'x'"),
        ({"x": None}, "batch lacks input 'x'"),
        ({"X": torch.zeros(12, ROWS)}, "batch lacks input 'x'"),
        ({"x": torch.zeros(12, ROWS), "xs": 1}, "batch has unexpected input 'xs', did you mean 'x'?"),
        ({"x": {"y": torch.zeros(12, ROWS)}}, "batch lacks input 'x', did you mean 'x.y'?"),
        ({"x.y": torch.zeros(12, ROWS)}, "key 'x.y' at the top: expected a name without dots"),
        (torch.zeros(12, ROWS), "expected the batch to be a mapping of inputs, got: float32[12, 5]"),
    ],
)
def test_batch_errors(batch: Any, message: str) -> None:
    with pytest.raises(RuntimeFault) as caught:
        simulate(fsdp_step(PAIR, axes=("dp",)), state_and_batch()[0], batch)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        ("bool", True, True),
        ("bool", 1, False),
        ("int64", 3, True),
        ("int64", True, False),
        ("int64", 1.5, False),
        ("float32", 1.5, True),
        ("float32", 2, True),
        ("float32", "2", False),
    ],
)
def test_python_numbers_as_inputs(dtype: str, value: Any, fits: bool) -> None:
    f = FunctionBuilder("main", PAIR)
    f.result(f.argument("x", (), dtype))
    program = program_of(f.build(), mesh=PAIR)
    if fits:
        assert simulate(program, {}, {"x": value}).per_rank[1][0].item() == value
    else:
        with pytest.raises(RuntimeFault, match=rf"input 'x': expected {dtype}\[\], got: "):
            simulate(program, {}, {"x": value})


def test_sizes_are_integers_of_the_batch() -> None:
    f = FunctionBuilder("main", PAIR)
    size = f.argument("rows", (), "int64", role="size")
    f.result(f.aten("ones.default", (size, 2), type_=TensorType((None, 2), "float32")))
    program = program_of(f.build(), mesh=PAIR)
    assert simulate(program, {}, {"rows": 3}, check_types=True).per_rank[0][0].shape == (3, 2)
    with pytest.raises(RuntimeFault, match=re.escape("size 'rows': expected an integer, got: 3.0")):
        simulate(program, {}, {"rows": 3.0})


# Ranks that disagree.


def pair_program(first: Callable[[FunctionBuilder], object], second: Callable[[FunctionBuilder], object]) -> Program:
    """Two ranks with a function each, every op with a source line."""
    functions = []
    for name, body in (("first", first), ("second", second)):
        f = FunctionBuilder(name, Mesh.of({"pp": 2}))
        f.literal(((1.0, 2.0),), TensorType((1, 2), "float32"))
        body(f)
        function = f.build()
        for number in range(len(function.ops)):
            function = with_location(function, number, f"{name}.py:{number}", "layers.0")
        functions.append(function)
    return by_position(functions, Mesh.of({"pp": 2}), "pp")


X = Ref(0)


@pytest.mark.parametrize(
    ("first", "second", "mine", "theirs"),
    [
        (
            lambda f: f.all_reduce(X, axes=["pp"]),
            lambda f: f.all_gather(X, axes=["pp"], dims=[0]),
            "'hp.all_gather' over ranks [0, 1], dims = [0] of float32[1, 2]",
            "'hp.all_reduce' over ranks [0, 1], reduce = 'sum' of float32[1, 2]",
        ),
        (
            lambda f: f.all_reduce(X, axes=["pp"]),
            lambda f: f.all_reduce(X, axes=["pp"], reduce="avg"),
            "'hp.all_reduce' over ranks [0, 1], reduce = 'avg' of float32[1, 2]",
            "'hp.all_reduce' over ranks [0, 1], reduce = 'sum' of float32[1, 2]",
        ),
        (
            lambda f: f.all_gather(X, axes=["pp"], dims=[0]),
            lambda f: f.all_gather(X, axes=["pp"], dims=[1]),
            "'hp.all_gather' over ranks [0, 1], dims = [1] of float32[1, 2]",
            "'hp.all_gather' over ranks [0, 1], dims = [0] of float32[1, 2]",
        ),
        (
            lambda f: f.all_reduce(X, axes=["pp"]),
            lambda f: f.all_reduce(X, X, axes=["pp"]),
            "'hp.all_reduce' over ranks [0, 1], reduce = 'sum' of float32[1, 2], float32[1, 2]",
            "'hp.all_reduce' over ranks [0, 1], reduce = 'sum' of float32[1, 2]",
        ),
        (
            lambda f: f.broadcast(X, axes=["pp"], root=0),
            lambda f: f.broadcast(X, axes=["pp"], root=1),
            "'hp.broadcast' over ranks [0, 1], root = 1 of float32[1, 2]",
            "'hp.broadcast' over ranks [0, 1], root = 0 of float32[1, 2]",
        ),
    ],
)
def test_collectives_that_differ(first: Any, second: Any, mine: str, theirs: str) -> None:
    with pytest.raises(RuntimeFault) as caught:
        run(pair_program(first, second))
    target, other = mine.split("'")[1], theirs.split("'")[1]
    assert str(caught.value) == (
        f"rank 1: second: op 1 '{target}' in module 'layers.0' at second.py:1: collective 0 of ranks [0, 1] is {mine}, "
        f"but rank 0: first: op 1 '{other}' in module 'layers.0' at first.py:1 has {theirs}"
    )


def test_collectives_of_other_shapes_and_dtypes_differ() -> None:
    def double(f: FunctionBuilder) -> None:
        wide = f.aten("_to_copy.default", X, type_=TensorType((1, 2), "float64"), dtype=Named("dtype", "float64"))
        f.all_reduce(wide, axes=["pp"])

    with pytest.raises(RuntimeFault, match=r"'hp.all_reduce' .* of float64\[1, 2\], but rank 0: .* of float32\[1, 2\]"):
        run(pair_program(lambda f: f.all_reduce(X, axes=["pp"]), double))


def test_collectives_match_by_position() -> None:
    def body(order: str) -> Callable[[FunctionBuilder], object]:
        def emit(f: FunctionBuilder) -> None:
            for kind in order:
                if kind == "r":
                    f.all_reduce(X, axes=["pp"])
                else:
                    f.all_gather(X, axes=["pp"], dims=[0])

        return emit

    with pytest.raises(RuntimeFault, match=r"rank 1: .* op 3 .*: collective 2 of ranks \[0, 1\] is"):
        run(pair_program(body("rgr"), body("rgg")))


def test_message_of_another_type_than_expected() -> None:
    program = pair_program(
        lambda f: f.send(X, axis="pp", peer=1),
        lambda f: f.wait(f.recv(TensorType((2, 1), "float32"), axis="pp", peer=0)),
    )
    with pytest.raises(RuntimeFault) as caught:
        run(program)
    assert str(caught.value) == (
        "rank 1: second: op 1 'hp.recv' in module 'layers.0' at second.py:1: expects float32[2, 1], "
        "but rank 0: first: op 1 'hp.send' in module 'layers.0' at first.py:1 sends float32[1, 2]"
    )


def test_message_of_another_type_than_expected_when_the_receiver_was_first() -> None:
    program = pair_program(
        lambda f: f.wait(f.recv(TensorType((1, 2), "int64"), axis="pp", peer=1)),
        lambda f: f.send(X, X, axis="pp", peer=0),
    )
    expected = r"rank 1: second: op 1 'hp.send' .* sends float32\[1, 2\], .*, but rank 0: .* expects int64\[1, 2\]"
    with pytest.raises(RuntimeFault, match=expected):
        run(program)


def test_message_that_nobody_receives() -> None:
    with pytest.raises(RuntimeFault) as caught:
        run(pair_program(lambda f: f.send(X, axis="pp", peer=1), lambda f: None))
    assert str(caught.value) == (
        "the step ended with communication left over:\n"
        "  rank 0: first: op 1 'hp.send' in module 'layers.0' at first.py:1: rank 1 never receives it"
    )


def test_receive_that_nobody_sends_and_nobody_waits_for() -> None:
    with pytest.raises(RuntimeFault, match=r"rank 0: first: op 1 'hp.recv' .*: rank 1 never sends it"):
        run(pair_program(lambda f: f.recv(SCALAR, axis="pp", peer=1), lambda f: None))


def test_collective_that_not_all_reach_and_nobody_waits_for() -> None:
    with pytest.raises(RuntimeFault, match=r"rank 0: first: op 1 'hp.all_reduce' .*: rank 1 has not arrived"):
        run(pair_program(lambda f: f.all_reduce(X, axes=["pp"]), lambda f: None))


def test_send_to_itself() -> None:
    with pytest.raises(
        RuntimeFault, match=r"rank 0: first: op 1 'hp.send' .*: position 0 on axis 'pp' is this rank itself"
    ):
        run(pair_program(lambda f: f.send(X, axis="pp", peer=0), lambda f: None))


def test_replicated_results_that_differ() -> None:
    f = FunctionBuilder("main", PAIR)
    x = f.argument("x", (2,), sharding=(("dp",),), batch_dim=0)
    f.result(x, "grad", "layers.0.weight")
    batch = {"x": torch.tensor([1.0, 1.5])}
    with pytest.raises(RuntimeFault) as caught:
        simulate(program_of(f.build(), mesh=PAIR), {}, batch)
    assert str(caught.value) == (
        "gradient of 'layers.0.weight' differs between rank 0 and rank 1 by up to 0.5 (float32)"
    )
    f.results[0] = replace(f.results[0], role="output")
    simulate(program_of(f.build(), mesh=PAIR), {}, batch)


def test_losses_that_differ() -> None:
    f = FunctionBuilder("main", PAIR)
    x = f.argument("x", (2,), sharding=(("dp",),), batch_dim=0)
    f.result(f.aten("mean.default", x, type_=SCALAR), "loss")
    with pytest.raises(RuntimeFault, match=r"^loss differs between rank 0 and rank 1 by up to 1 "):
        simulate(program_of(f.build(), mesh=PAIR), {}, {"x": torch.tensor([1.0, 2.0])})


def test_equal_nans_do_not_differ_and_signs_of_zeros_do() -> None:
    f = FunctionBuilder("main", PAIR)
    x = f.argument("x", (2,), sharding=(("dp",),), batch_dim=0)
    f.result(x, "grad", "w")
    program = program_of(f.build(), mesh=PAIR)
    result = simulate(program, {}, {"x": torch.full((2,), torch.nan)})
    assert result.grads["w"].isnan().all()
    with pytest.raises(RuntimeFault, match="gradient of 'w' differs"):
        simulate(program, {}, {"x": torch.tensor([0.0, -0.0])})


def test_result_of_another_shape_than_stated() -> None:
    f = FunctionBuilder("main", PAIR)
    x = f.argument("x", (2,))
    f.result(f.aten("sum.default", x, type_=TensorType((2,), "float32")), "grad", "w")
    program = program_of(f.build(), mesh=PAIR)
    with pytest.raises(RuntimeFault, match=r"gradient of 'w' on rank 0: expected float32\[2\], got: float32\[\]"):
        simulate(program, {}, {"x": torch.zeros(2)})
    with pytest.raises(
        RuntimeFault, match=r"rank 0: main: op 0 'aten.sum.default': gives float32\[\], expected float32\[2\]"
    ):
        simulate(program, {}, {"x": torch.zeros(2)}, check_types=True)


def test_result_that_is_a_future() -> None:
    f = FunctionBuilder("main", PAIR)
    future = f.all_reduce(f.literal(1.0, SCALAR), axes=["dp"])
    f.types[future.index] = SCALAR
    f.result(future, "grad", "w")
    with pytest.raises(RuntimeFault, match="rank 0: main: result 'w' is no tensor, got: Future"):
        simulate(program_of(f.build(), mesh=PAIR), {}, {})


def test_program_without_loss() -> None:
    f = FunctionBuilder("main", PAIR)
    f.result(f.literal(1.0, SCALAR))
    function = replace(f.build(), results=())
    with pytest.raises(RuntimeFault, match="the program returns no loss"):
        simulate(program_of(function, mesh=PAIR), {}, {})


# Ranks that hang.


def test_deadlock_of_two_receivers() -> None:
    def receive(peer: int) -> Callable[[FunctionBuilder], object]:
        def body(f: FunctionBuilder) -> None:
            f.wait(f.recv(TensorType((1, 2), "float32"), axis="pp", peer=peer))
            f.send(X, axis="pp", peer=peer)

        return body

    with pytest.raises(RuntimeFault) as caught:
        run(pair_program(receive(1), receive(0)))
    assert str(caught.value) == (
        "deadlock: 2 of 2 ranks cannot proceed\n"
        "  rank 0: first: op 2 'hp.wait' in module 'layers.0' at first.py:2: waits for a message from rank 1\n"
        "  rank 1: second: op 2 'hp.wait' in module 'layers.0' at second.py:2: waits for a message from rank 0"
    )


def test_deadlock_of_collectives_in_another_order() -> None:
    mesh = Mesh.of({"pp": 2, "dp": 2})
    functions = []
    for name, order in (("first", ("pp", "dp")), ("second", ("dp", "pp"))):
        f = FunctionBuilder(name, mesh)
        x = f.literal(1.0, SCALAR)
        # Over pp and over all: two sets of ranks, reached in another order by the two functions.
        for axis in order:
            f.wait(f.all_reduce(x, axes=["pp"] if axis == "pp" else ["pp", "dp"]))
        functions.append(f.build())
    with pytest.raises(RuntimeFault) as caught:
        run(by_position(functions, mesh, "pp"))
    lines = str(caught.value).splitlines()
    assert lines[0] == "deadlock: 4 of 4 ranks cannot proceed"
    assert lines[1] == (
        "  rank 0: first: op 2 'hp.wait': waits for 'hp.all_reduce' over ranks [0, 2], reduce = 'sum' of float32[]: "
        "rank 2 has not arrived"
    )
    assert lines[4] == (
        "  rank 3: second: op 2 'hp.wait': waits for 'hp.all_reduce' over ranks [0, 1, 2, 3], reduce = 'sum' of "
        "float32[]: ranks [0, 1] have not arrived"
    )


def test_deadlock_names_the_ranks_that_have_finished() -> None:
    mesh = Mesh.of({"pp": 2})
    with pytest.raises(RuntimeFault) as caught:
        run(pair_program(lambda f: f.wait(f.all_reduce(X, axes=["pp"])), lambda f: None))
    assert mesh.size == 2
    lines = str(caught.value).splitlines()
    assert lines[0] == "deadlock: 1 of 2 ranks cannot proceed"
    assert lines[1].endswith("of float32[1, 2]: rank 1 has not arrived")
    assert lines[2] == "  rank 1: has finished"


def test_collectives_started_in_another_order_do_not_deadlock_when_waited_for_later() -> None:
    def body(sends_first: bool, peer: int) -> Callable[[FunctionBuilder], object]:
        def emit(f: FunctionBuilder) -> None:
            if sends_first:
                f.send(X, axis="pp", peer=peer)
                future = f.all_reduce(X, axes=["pp"])
            else:
                future = f.all_reduce(X, axes=["pp"])
                f.wait(f.recv(TensorType((1, 2), "float32"), axis="pp", peer=peer))
            f.result(f.wait(future))

        return emit

    result = run(pair_program(body(True, 1), body(False, 0)))
    assert [values[0].tolist() for values in result.per_rank] == [[[2.0, 4.0]]] * 2


def test_the_same_program_runs_after_one_that_raised() -> None:
    state, batch = state_and_batch()
    program = fsdp_step(PAIR, axes=("dp",))
    expected = simulate(program, state, batch).loss
    with pytest.raises(RuntimeFault):
        simulate(program, state, {"x": torch.zeros(1)})
    with pytest.raises(RuntimeFault):
        simulate(program, state, batch, observe=raising)
    assert torch.equal(simulate(program, state, batch).loss, expected)


def raising(rank: int, function: str, op: Op, size: int) -> None:
    if rank == 1:
        raise RuntimeFault("stop")


# Ops that fail.


def failing(*ops: Op) -> Program:
    f = FunctionBuilder("main", PAIR)
    f.argument("x", (2, 3))
    f.argument("y", (4, 5))
    f.ops.extend(ops)
    return program_of(f.build(), mesh=PAIR)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (
            Op("aten.mm.default", (Ref(0), Ref(1)), {}, (2,), (SCALAR,), "layers.0.attn.wq", "forward", "model.py:7"),
            "rank 0: main: op 0 'aten.mm.default' in module 'layers.0.attn.wq' at model.py:7: mat1 and mat2 shapes "
            "cannot be multiplied (2x3 and 4x5); operands: float32[2, 3], float32[4, 5]",
        ),
        (
            Op("aten.select.int", (Ref(0), 7, 0), {}, (2,), (SCALAR,)),
            "rank 0: main: op 0 'aten.select.int': Dimension out of range (expected to be in range of [-2, 1], "
            "but got 7); operands: float32[2, 3], 7, 0",
        ),
        (
            Op("aten.cat.default", ((Ref(0), Ref(1)), 0), {}, (2,), (SCALAR,)),
            "; operands: [float32[2, 3], float32[4, 5]], 0",
        ),
        (
            Op("aten.add.Tensor", (Ref(0),), {}, (2,), (SCALAR,)),
            "missing value for argument 'other'",
        ),
        (
            Op("aten.mm.defaults", (Ref(0), Ref(1)), {}, (2,), (SCALAR,)),
            "main: op 0 'aten.mm.defaults': torch .* has no operator 'aten.mm.defaults', did you mean 'default'?",
        ),
        (
            Op("aten.matmull.default", (Ref(0), Ref(1)), {}, (2,), (SCALAR,)),
            "has no operator 'aten.matmull.default', did you mean 'matmul' or ",
        ),
        (
            Op("aten.ones.default", ((2,),), {"dtype": Named("dtype", "float31")}, (2,), (SCALAR,)),
            "has no dtype 'float31', did you mean 'float32'",
        ),
        (
            Op("aten.ones.default", ((2,),), {"layout": Named("layout", "stripey")}, (2,), (SCALAR,)),
            "has no layout 'stripey'",
        ),
        (
            Op("aten.topk.default", (Ref(0), 1), {}, (2,), (SCALAR,)),
            "main: op 0 'aten.topk.default': gives 2 results, expected 1",
        ),
        (
            Op("aten.mm.default", (Ref(0), Ref(1)), {}, (2, 3), (SCALAR, SCALAR)),
            "main: op 0 'aten.mm.default': gives 1 result, expected 2",
        ),
        (
            Op("hp.all_gather", (Ref(0),), {"axes": ("pd",), "dims": (0,)}, (2,), (None,)),
            "main: op 0 'hp.all_gather': mesh has no axis 'pd', did you mean 'dp'?",
        ),
        (
            Op("hp.all_gather", (Ref(0),), {"axes": ("dp",), "dims": (0, 1)}, (2,), (None,)),
            "main: op 0 'hp.all_gather': expected dims to be one dim for each of 1 operands, got: (0, 1)",
        ),
        (
            Op("hp.all_gather", (Ref(0),), {"dims": (0,)}, (2,), (None,)),
            "main: op 0 'hp.all_gather': expected axes to be mesh axes, each once, got: None",
        ),
        (
            Op("hp.all_reduce", (), {"axes": ("dp",), "reduce": "sum"}, (2,), (None,)),
            "main: op 0 'hp.all_reduce': expected at least one operand",
        ),
        (
            Op("hp.all_reduce", (3,), {"axes": ("dp",), "reduce": "sum"}, (2,), (None,)),
            "main: op 0 'hp.all_reduce': expected tensors, got: int",
        ),
        (
            Op("hp.send", (Ref(0),), {"axis": "dp", "peer": 2}),
            "main: op 0 'hp.send': expected peer < 2, got: 2",
        ),
        (
            Op("hp.recv", (), {"axis": "dp", "peer": 1, "types": ()}, (2,), (None,)),
            "main: op 0 'hp.recv': expected types to have a pair per tensor, got: ()",
        ),
        (
            Op("hp.recv", (), {"axis": "dp", "peer": 1, "types": (("float31", (2,)),)}, (2,), (None,)),
            "main: op 0 'hp.recv': torch .* has no dtype 'float31'",
        ),
        (
            Op("hp.uniform", ((2,),), {"stream": 0}, (2,), (SCALAR,)),
            "main: op 0 'hp.uniform': expected dtype to be a dtype, got: None",
        ),
        (
            Op("hp.accumulate", (Ref(0),), {}, (2,), (SCALAR,)),
            "main: op 0 'hp.accumulate': expected N accumulators, N values and N results, got: 1 operands, 1 results",
        ),
        (
            Op("hp.wait", (1,), {}, (2,), (SCALAR,)),
            "main: op 0 'hp.wait': expected one future to wait for",
        ),
    ],
    ids=lambda value: value.target if isinstance(value, Op) else "",
)
def test_failing_ops(op: Op, message: str) -> None:
    with pytest.raises(RuntimeFault) as caught:
        simulate(failing(op), {}, {"x": torch.zeros(2, 3), "y": torch.zeros(4, 5)})
    if ".*" in message:
        before, after = message.split(".*")
        assert before in str(caught.value)
        assert after in str(caught.value)
    else:
        assert message in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_failing_op_in_a_callee_on_the_second_rank() -> None:
    inner = FunctionBuilder("inner", PAIR)
    x = inner.argument("x", (1,), "int64")
    table = inner.literal((1.0, 2.0), TensorType((2,), "float32"))
    inner.result(inner.aten("index_select.default", table, 0, x, type_=TensorType((1,), "float32")))
    callee = inner.build()
    main = FunctionBuilder("main", PAIR)
    y = main.argument("y", (2,), "int64", sharding=(("dp",),), batch_dim=0)
    main.result(main.call(callee, y)[0])
    with pytest.raises(
        RuntimeFault, match=r"^rank 1: inner: op 1 'aten.index_select.default': .*; operands: float32\[2\]"
    ):
        simulate(program_of(callee, main.build(), mesh=PAIR), {}, {"y": torch.tensor([1, 5])})


def test_values_that_are_not_defined() -> None:
    program = failing()
    functions = {
        "main": replace(program.functions["main"], ops=(Op("aten.neg.default", (Ref(9),), {}, (2,), (SCALAR,)),))
    }
    with pytest.raises(RuntimeFault, match=r"main: op 0 'aten.neg.default': value 9 is used before it is defined"):
        simulate(replace(program, functions=functions), {}, {"x": torch.zeros(2, 3), "y": torch.zeros(4, 5)})


def test_functions_that_call_each_other() -> None:
    call = Op("call", (), {"function": "main"})
    main = Function("main", (), (call,), ())
    program = replace(failing(), functions={"main": main})
    with pytest.raises(RuntimeFault, match="functions call each other in a circle: main -> main"):
        simulate(program, {}, {})


def test_several_results_and_lists_of_tensors() -> None:
    x = torch.arange(12.0).reshape(4, 3)
    two = TensorType((2, 3), "float32")

    def body(f: FunctionBuilder, x: Ref) -> list[Ref]:
        a, b = f.emit("aten.split.Tensor", x, 2, types=[two, two])
        (one,) = f.emit("aten.split.Tensor", a, 2, types=[two])
        (both,) = f.emit("aten.split.Tensor", x, 2, types=[None])
        joined = f.aten("cat.default", both, type_=TensorType((4, 3), "float32"))
        column = TensorType((4, 1), "float32")
        values, _ = f.emit("aten.topk.default", x, 1, types=[column, TensorType((4, 1), "int64")])
        return [b, one, joined, values]

    ((b, one, joined, values),) = on_ranks(Mesh.of({"all": 1}), [[x]], body)
    assert torch.equal(b, x[2:])
    assert torch.equal(one, x[:2])
    assert torch.equal(joined, x)
    assert torch.equal(values, x[:, 2:])


def test_nested_operands_and_keywords() -> None:
    x, index = torch.arange(12.0).reshape(4, 3), torch.tensor([2, 0])

    def body(f: FunctionBuilder, x: Ref, index: Ref) -> list[Ref]:
        taken = f.aten("index.Tensor", x, (None, index), type_=TensorType((4, 2), "float32"))
        total = f.aten(
            "sum.dim_IntList", x, (1,), True, type_=TensorType((4, 1), "float64"), dtype=Named("dtype", "float64")
        )
        scaled = f.aten("add.Tensor", x, x, alpha=2)
        weighted = f.aten("bincount.default", index, weights=index, type_=TensorType((None,), "float64"))
        return [taken, total, scaled, weighted]

    ((taken, total, scaled, weighted),) = on_ranks(Mesh.of({"all": 1}), [[x], [index]], body)
    assert torch.equal(taken, x[:, index])
    assert torch.equal(total, x.sum(1, keepdim=True, dtype=torch.float64))
    assert torch.equal(scaled, 3 * x)
    assert weighted.tolist() == [0.0, 0.0, 2.0]


# Memory.


def test_values_go_at_their_last_use() -> None:
    held: list[tuple[str, int]] = []

    def body(f: FunctionBuilder, x: Ref) -> list[Ref]:
        a = f.aten("neg.default", x)
        b = f.aten("neg.default", a)
        f.aten("neg.default", b)
        view = f.aten("t.default", b, type_=TensorType((1, 1024), "float32"))
        return [f.aten("neg.default", view)]

    x = torch.ones(1024, 1)
    on_ranks(Mesh.of({"all": 1}), [[x]], body, observe=lambda rank, name, op, size: held.append((op.target, size)))
    # Operand and result each time; the unused result goes at once; a view adds nothing.
    assert [size // 4096 for _, size in held[:5]] == [2, 2, 2, 1, 2]


def test_callees_free_what_the_caller_no_longer_needs() -> None:
    mesh = Mesh.of({"all": 1})
    inner = FunctionBuilder("inner", mesh)
    value = inner.argument("x", (1024,))
    for _ in range(3):
        value = inner.aten("neg.default", value)
    inner.result(value)
    callee = replace(inner.build(), results=tuple(inner.results[:1]))
    main = FunctionBuilder("main", mesh)
    y = main.argument("y", (1024,))
    main.argument("unused", (1024,))
    main.result(main.call(callee, main.call(callee, y)[0])[0])
    sizes: list[int] = []
    program = program_of(callee, main.build(), mesh=mesh)
    batch = {"y": torch.ones(1024), "unused": torch.ones(1024)}
    simulate(program, {}, batch, observe=lambda rank, name, op, size: sizes.append(size // 4096))
    assert max(sizes) == 2


def test_communication_counts_its_buffers_from_start_to_wait() -> None:
    held: dict[int, list[tuple[str, int]]] = {0: [], 1: []}

    def body(f: FunctionBuilder, x: Ref) -> list[Ref]:
        gathering = f.all_gather(x, axes=["dp"], dims=[0])
        other = f.literal(0.0, SCALAR)
        full = f.wait(gathering)
        f.aten("neg.default", full)
        return [other]

    on_ranks(
        PAIR,
        [[torch.ones(1024)] * 2],
        body,
        observe=lambda rank, name, op, size: held[rank].append((op.target, size // 4096)),
    )
    # The shard and the two shards' worth that arrive; after the wait the shard is gone.
    expected = [("hp.all_gather", 3), ("literal", 3), ("hp.wait", 2), ("aten.neg.default", 4)]
    assert held[0][:4] == expected
    assert held[1][:4] == expected


def test_observe_sees_every_op_of_every_rank_once() -> None:
    program = fsdp_step(PAIR, axes=("dp",))
    state, batch = state_and_batch()
    seen: Counter[tuple[int, str, str]] = Counter()
    simulate(program, state, batch, observe=lambda rank, name, op, size: seen.update([(rank, name, op.target)]))
    expected = Counter(op.target for op in program.functions["step"].ops)
    for rank in range(2):
        assert {target: count for (r, _, target), count in seen.items() if r == rank} == expected
    assert {name for _, name, _ in seen} == {"step"}


def test_no_tensor_of_a_step_outlives_it() -> None:
    program = fsdp_step(PAIR, axes=("dp",))
    state, batch = state_and_batch()
    simulate(program, state, batch)
    before = live_tensors()
    for _ in range(3):
        simulate(program, state, batch)
    assert live_tensors() == before


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(item), Tensor) for item in gc.get_objects())


def test_last_uses_and_private_accumulators() -> None:
    f = FunctionBuilder("main", PAIR)
    x = f.argument("x", (2,))
    first = f.accumulate([x], [x])[0]
    second = f.accumulate([first], [x])[0]
    third = f.accumulate([second], [second])[0]
    f.result(third)
    function = f.build()
    # `second` is read twice by the last sum, `x` is not the function's own, `third` is returned.
    assert private_accumulators(function) == {first.index}
    assert last_uses(function) == [(), (x.index, first.index), (second.index,), ()]


# Other precision.


def test_program_in_dtype_maps_types_constants_and_casts() -> None:
    f = FunctionBuilder("main", PAIR)
    x = f.argument("x", (2, 2), "bfloat16")
    ids = f.argument("ids", (2,), "int64")
    low = f.aten("_to_copy.default", x, type_=TensorType((2, 2), "float16"), dtype=Named("dtype", "float16"))
    soft = f.aten("_softmax.default", low, 1, True, type_=TensorType((2, 2), "float32"))
    half = f.aten("mul.Scalar", ids, 0.1, type_=TensorType((2,), "float32"))
    literal = f.literal((0.5, 0.25), TensorType((2,), "float32"))
    noise = f.random("uniform", (2,), 0, "bfloat16")
    count = f.aten("_to_copy.default", x, type_=TensorType((2, 2), "int32"), dtype=Named("dtype", "int32"))
    for ref in (soft, half, literal, noise, count):
        f.result(ref)
    program = program_of(f.build(), mesh=PAIR)
    twice = program_in_dtype(program, "float64")
    assert str(twice.functions["main"].arguments[0].type) == "float64[2, 2]"
    assert str(twice.functions["main"].arguments[1].type) == "int64[2]"
    assert program_in_dtype(twice, "float64") == twice
    batch = {"x": torch.tensor([[0.3, 0.1], [1.0, 2.0]], dtype=torch.bfloat16), "ids": torch.tensor([1, 3])}
    soft_value, half_value, literal_value, noise_value, count_value, _ = simulate(
        program, {}, batch, dtype=torch.float64, check_types=True
    ).per_rank[0]
    assert torch.equal(soft_value, batch["x"].double().softmax(1))
    assert torch.equal(half_value, batch["ids"].double() * 0.1)
    assert torch.equal(literal_value, torch.tensor([0.5, 0.25], dtype=torch.float64))
    assert noise_value.dtype == torch.float64
    assert count_value.dtype == torch.int32


def test_program_in_dtype_keeps_the_random_masks() -> None:
    def mask(f: FunctionBuilder) -> list[Ref]:
        drawn = f.random("uniform", (256,), 0)
        return [f.aten("lt.Scalar", drawn, 0.5, type_=TensorType((256,), "bool"))]

    single = on_ranks(PAIR, [], mask)[0][0]
    double = on_ranks(PAIR, [], mask, dtype=torch.float64)[0][0]
    assert torch.equal(single, double)
    assert 64 < int(single.sum()) < 192


def test_program_in_dtype_covers_messages_and_complex() -> None:
    program = pair_program(
        lambda f: f.send(X, axis="pp", peer=1),
        lambda f: f.result(f.wait(f.recv(TensorType((1, 2), "float32"), axis="pp", peer=0))),
    )
    result = run(program, dtype=torch.float64)
    assert result.per_rank[1][0].dtype == torch.float64
    values = on_ranks(
        PAIR, [[torch.tensor([1 + 1j])] * 2], lambda f, x: [f.aten("mul.Tensor", x, x)], dtype=torch.float64
    )
    assert values[0][0].dtype == torch.complex128
