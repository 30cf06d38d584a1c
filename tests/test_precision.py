"""A Program run in another floating dtype."""

from __future__ import annotations

import torch
from fsdp_by_hand import PAIR
from program_builder import FunctionBuilder, on_ranks, program_of, run
from program_pair import X, pair_program

from hpir.runtime.precision import program_in_dtype
from hpir.runtime.program import Named, Ref, TensorType
from hpir.runtime.simulate import simulate


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
