"""Random streams: functions of seed, step, stream and place in the global batch, and of nothing else."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from program_builder import FunctionBuilder, program_of, run
from torch import Tensor

from hpir.errors import RuntimeFault
from hpir.mesh import Mesh
from hpir.runtime.program import Program
from hpir.runtime.random import RandomContext, draw, mixed_seed
from hpir.runtime.simulate import simulate

CPU = torch.device("cpu")
NUMBERS = {"seed": 3, "step": 5, "stream": 7, "microbatch": 4}


def sample(kind: str = "uniform", dtype: torch.dtype = torch.float32, **changes: int) -> Tensor:
    return draw(kind, (32,), dtype, CPU, **{**NUMBERS, **changes})


def test_equal_numbers_draw_equal_values() -> None:
    assert torch.equal(sample(), sample())
    assert torch.equal(sample("normal"), sample("normal"))


@pytest.mark.parametrize("name", NUMBERS)
def test_each_number_changes_the_values(name: str) -> None:
    seen = [sample("uniform", torch.float32, **{name: value}) for value in (0, 1, 2, 1000, 2**40, -1)]
    for number, first in enumerate(seen):
        for second in seen[number + 1 :]:
            assert not torch.equal(first, second)


def test_numbers_are_not_interchangeable() -> None:
    assert not torch.equal(sample(step=1, stream=2), sample(step=2, stream=1))
    assert not torch.equal(sample(stream=1, microbatch=2), sample(stream=2, microbatch=1))


@pytest.mark.parametrize("kind", ("uniform", "normal"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_rows_do_not_depend_on_how_the_batch_is_divided(kind: str, dtype: torch.dtype) -> None:
    def part(rows: int, microbatch: int) -> Tensor:
        numbers = {**NUMBERS, "microbatch": microbatch}
        # Two heads per row, which the step folds into the first dim.
        return draw(kind, (2 * rows, 3, 5), dtype, CPU, rows=rows, **numbers)

    whole = part(12, 0)
    for parts in (2, 3, 4, 6, 12):
        assert torch.equal(torch.cat([part(12 // parts, number) for number in range(parts)]), whole)
    assert len({tuple(row.flatten().tolist()) for row in whole.view(12, 2, 3, 5)}) == 12


def test_rows_without_elements() -> None:
    assert draw("uniform", (4, 0), torch.float32, CPU, rows=4, **NUMBERS).shape == (4, 0)


def test_one_row_is_drawn_as_one_block() -> None:
    assert torch.equal(draw("uniform", (32,), torch.float32, CPU, rows=1, **NUMBERS), sample())


@pytest.mark.parametrize(("sizes", "rows"), (((), 1), ((5, 2), 2), ((4,), 0)))
def test_rows_that_do_not_divide_the_first_dim(sizes: tuple[int, ...], rows: int) -> None:
    with pytest.raises(RuntimeFault, match=rf"cannot draw {rows} rows of random values of shape \["):
        draw("uniform", sizes, torch.float32, CPU, rows=rows, **NUMBERS)


def test_mixed_seed_spreads_over_64_bits() -> None:
    seeds = {
        mixed_seed(0, step, stream, microbatch, 0)
        for step in range(20)
        for stream in range(20)
        for microbatch in range(20)
    }
    assert len(seeds) == 8000
    assert mixed_seed(1, 2, 3) == mixed_seed(3, start=mixed_seed(1, 2))
    # torch's CPU generator takes the low 32 bits.
    assert len({seed & 0xFFFFFFFF for seed in seeds}) > 7990
    for bit in range(64):
        ones = sum(seed >> bit & 1 for seed in seeds)
        assert 3600 < ones < 4400, bit


def test_no_global_generator_moves() -> None:
    torch.manual_seed(11)
    random.seed(11)
    before, python = torch.get_rng_state(), random.getstate()
    sample()
    sample("normal")
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == python


def test_global_generator_has_no_influence() -> None:
    torch.manual_seed(1)
    first = sample()
    torch.manual_seed(2)
    assert torch.equal(first, sample())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_every_dtype_sees_the_same_draw(dtype: torch.dtype) -> None:
    exact, converted = sample(), sample(dtype=dtype)
    assert converted.dtype == dtype
    assert (converted.double() <= exact.double()).all()
    torch.testing.assert_close(converted.double(), exact.double(), rtol=0, atol=torch.finfo(dtype).eps)
    torch.testing.assert_close(sample("normal", dtype).double(), sample("normal").to(dtype).double(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_uniform_stays_below_one(dtype: torch.dtype) -> None:
    values = draw("uniform", (1 << 20,), dtype, CPU, **NUMBERS)
    assert values.min().item() >= 0.0
    assert values.max().item() < 1.0


def test_context_draws_as_its_numbers() -> None:
    context = RandomContext(seed=3, step=5, data_coordinate=1, microbatches=3)
    assert torch.equal(context.with_microbatch(1).draw("uniform", (32,), torch.float32, CPU, stream=7), sample())


@pytest.mark.parametrize(
    ("kind", "dtype", "message"),
    [
        ("gamma", torch.float32, "unknown kind of random values 'gamma'"),
        ("uniform", torch.int64, "cannot draw random values of dtype torch.int64"),
    ],
)
def test_malformed_draws(kind: str, dtype: torch.dtype, message: str) -> None:
    with pytest.raises(RuntimeFault, match=message):
        sample(kind, dtype)


def random_program(mesh: Mesh, data_axes: tuple[str, ...], seed: int = 0) -> Program:
    """Two microbatches, each drawing two streams in a callee; the outputs of a rank are all four."""
    part = FunctionBuilder("part", mesh)
    part.result(part.random("uniform", (8,), 0), "output", "a")
    part.result(part.random("normal", (8,), 1), "output", "b")
    callee = part.build()
    main = FunctionBuilder("main", mesh)
    for microbatch in range(2):
        for ref in main.call(callee, microbatch=microbatch)[:2]:
            main.result(ref)
    return program_of(callee, main.build(), mesh=mesh, data_axes=data_axes, microbatches=2, seed=seed)


def drawn(program: Program, **options: Any) -> list[tuple[Tensor, ...]]:
    return [values[:4] for values in run(program, **options).per_rank]


def same(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_streams_do_not_depend_on_the_mesh() -> None:
    (alone,) = drawn(random_program(Mesh.of({"all": 1}), ()))
    pair = drawn(random_program(Mesh.of({"dp": 2}), ("dp",)))
    square = drawn(random_program(Mesh.of({"tp": 2, "dp": 2}), ("dp",)))
    hybrid = drawn(random_program(Mesh.of({"rep": 2, "shard": 1, "pp": 2}), ("rep", "shard")))
    assert same(alone, pair[0])
    # Two ranks of two microbatches: four different draws.
    assert len({tuple(values[place].tolist()) for values in pair for place in (0, 2)}) == 4
    for rank, coordinate in enumerate((0, 1, 0, 1)):
        assert same(square[rank], pair[coordinate])
    for rank, coordinate in enumerate((0, 0, 1, 1)):
        assert same(hybrid[rank], pair[coordinate])


def test_streams_differ_by_microbatch_step_and_seed() -> None:
    mesh = Mesh.of({"dp": 1})
    program = random_program(mesh, ("dp",))
    (values,) = drawn(program)
    assert not torch.equal(values[0], values[2])
    assert not torch.equal(values[1], values[3])
    assert same(values, drawn(program, step=0)[0])
    assert not torch.equal(values[0], drawn(program, step=1)[0][0])
    assert not torch.equal(values[0], drawn(random_program(mesh, ("dp",), seed=1))[0][0])


def test_recomputation_draws_again() -> None:
    mesh = Mesh.of({"dp": 1})
    main = FunctionBuilder("main", mesh)
    x = main.argument("x", (8,), batch_dim=0)
    first = main.aten("mul.Tensor", x, main.random("uniform", (8,), 4))
    second = main.aten("mul.Tensor", x, main.random("uniform", (8,), 4))
    main.result(main.aten("sub.Tensor", first, second))
    result = simulate(program_of(main.build(), mesh=mesh), {}, {"x": torch.arange(8.0)})
    assert torch.equal(result.per_rank[0][0], torch.zeros(8))


def test_nested_calls_keep_the_microbatch_of_the_caller() -> None:
    mesh = Mesh.of({"dp": 1})
    leaf = FunctionBuilder("leaf", mesh)
    leaf.result(leaf.random("uniform", (8,), 0))
    leaf_function = leaf.build()
    part = FunctionBuilder("part", mesh)
    part.result(part.call(leaf_function)[0])
    part.result(part.random("uniform", (8,), 0))
    part_function = part.build()
    main = FunctionBuilder("main", mesh)
    for ref in main.call(part_function, microbatch=3)[:2]:
        main.result(ref)
    main.result(main.random("uniform", (8,), 0))
    nested, direct, entry, _ = run(program_of(leaf_function, part_function, main.build(), mesh=mesh)).per_rank[0]
    assert torch.equal(nested, direct)
    assert torch.equal(entry, draw("uniform", (8,), torch.float32, CPU, **dict.fromkeys(NUMBERS, 0)))
    assert not torch.equal(nested, entry)
