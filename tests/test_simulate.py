"""The simulator: whole steps against plain torch, and what it says of state and batch that do not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fsdp_by_hand import PAIR, ROWS, fsdp_step, state_and_batch
from program_builder import FunctionBuilder, program_of, run
from torch import Tensor

from hpir.errors import RuntimeFault
from hpir.mesh import Mesh
from hpir.runtime.program import Program, TensorType
from hpir.runtime.simulate import simulate, simulate_evaluate


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
        ({"x": None}, "input 'x' (of all ranks, over 'dp'): expected float32[12, 5], got: None"),
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


def test_arguments_of_simulate() -> None:
    program = fsdp_step(PAIR, axes=("dp",))
    state, batch = state_and_batch()
    with pytest.raises(RuntimeFault, match="expected the state to be a mapping of tensors, got: Linear"):
        simulate(program, torch.nn.Linear(2, 2), batch)  # type: ignore[arg-type]
    with pytest.raises(RuntimeFault, match="expected a floating dtype to run in, got: int32"):
        simulate(program, state, batch, dtype=torch.int32)
    with pytest.raises(RuntimeFault, match="no device 'gpu': Expected one of cpu"):
        simulate(program, state, batch, device="gpu")
