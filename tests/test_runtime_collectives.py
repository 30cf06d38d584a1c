"""Collectives and messages on real gloo ranks against the simulator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from distributed_case import run_ranks
from program_builder import FunctionBuilder, by_position, dtype, program_of
from runtime_cases import prefixed
from torch import Tensor

from hpir.mesh import Mesh
from hpir.runtime.build import Executable
from hpir.runtime.collectives import RankOps
from hpir.runtime.device import RankMesh, required_channels, required_groups
from hpir.runtime.program import Program, Ref, TensorType
from hpir.runtime.simulate import simulate

SQUARE = Mesh(("one", "dp", "tp"), (1, 2, 2))
LINE = Mesh(("pp",), (4,))
FLOATS = ("float64", "float32", "float16", "bfloat16")
MOVED = (*FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128", "uint16", "uint32")
ADDED = (*FLOATS, "int64", "int32", "int16", "int8", "uint8", "complex64")

Body = Callable[..., Sequence[Ref]]


@dataclass
class Check:
    """A Program and its operands, a row per rank; `exact`: results are bit-equal to the simulator's."""

    name: str
    program: Program
    operands: list[Tensor]
    exact: bool = True


def make(
    name: str, mesh: Mesh, shape: Sequence[int], dtype: str, body: Body, *, count: int = 1, exact: bool = True
) -> Check:
    """Build a check in which every rank has `count` operands of its own."""
    function = FunctionBuilder("main", mesh)
    refs = own_operands(function, [TensorType(tuple(shape), dtype)] * count)
    for ref in body(function, *refs):
        function.result(ref)
    program = program_of(function.build(), mesh=mesh)
    return Check(name, program, operands_of(mesh, [TensorType(tuple(shape), dtype)] * count), exact)


def own_operands(function: FunctionBuilder, types: Sequence[TensorType]) -> list[Ref]:
    """Add operands of which every rank has its own: rows of a tensor that is split over all ranks."""
    mesh = function.mesh
    rows = [
        function.argument(
            f"x{number}",
            (mesh.size, *(size or 0 for size in type_.shape)),
            type_.dtype,
            sharding=(mesh.axis_names, *((),) * len(type_.shape)),
        )
        for number, type_ in enumerate(types)
    ]
    return [function.aten("select.int", row, 0, 0, type_=type_) for row, type_ in zip(rows, types, strict=True)]


def operands_of(mesh: Mesh, types: Sequence[TensorType]) -> list[Tensor]:
    """Return values for `own_operands`, one row per rank."""
    return [values((mesh.size, *(size or 0 for size in t.shape)), t.dtype, number) for number, t in enumerate(types)]


def values(shape: Sequence[int], dtype: str, seed: int) -> Tensor:
    """Return values that every dtype holds exactly and whose sums over a few ranks it holds too."""
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    if kind == torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=generator).bool()
    if kind.is_complex:
        return torch.randn(tuple(shape), generator=generator, dtype=kind)
    if kind.is_floating_point:
        return torch.randn(tuple(shape), generator=generator).to(kind)
    return torch.randint(0, 20, tuple(shape), generator=generator).to(kind)


def gathers() -> list[Check]:
    checks = []
    for axes in (("dp",), ("tp",), ("dp", "tp"), ("tp", "dp"), ("one",), ("one", "tp")):
        checks.append(
            make(
                f"all_gather {axes}",
                SQUARE,
                (4, 8, 3),
                "float32",
                lambda f, x, y, z, axes=axes: f.wait_all(f.all_gather(x, y, z, axes=axes, dims=(0, 1, 2))),
                count=3,
            )
        )
        for reduce in ("sum", "avg"):
            checks.append(
                make(
                    f"reduce_scatter {reduce} {axes}",
                    SQUARE,
                    (4, 8, 4),
                    "float32",
                    lambda f, x, y, z, axes=axes, reduce=reduce: f.wait_all(
                        f.reduce_scatter(x, y, z, axes=axes, dims=(0, 1, 2), reduce=reduce)
                    ),
                    count=3,
                )
            )
            checks.append(
                make(
                    f"all_reduce {reduce} {axes}",
                    SQUARE,
                    (3, 5),
                    "float32",
                    lambda f, x, y, axes=axes, reduce=reduce: f.wait_all(f.all_reduce(x, y, axes=axes, reduce=reduce)),
                    count=2,
                    # Over more than two ranks gloo adds in another order.
                    exact=SQUARE.count(axes) <= 2,
                )
            )
        for root in range(SQUARE.count(axes)):
            checks.append(
                make(
                    f"broadcast {axes} {root}",
                    SQUARE,
                    (3,),
                    "float32",
                    lambda f, x, axes=axes, root=root: f.wait_all(f.broadcast(x, axes=axes, root=root)),
                )
            )
        for split, concat in itertools.product(range(3), range(3)):
            checks.append(
                make(
                    f"all_to_all {axes} {split} {concat}",
                    SQUARE,
                    (4, 8, 4),
                    "int64",
                    lambda f, x, axes=axes, s=split, c=concat: f.wait_all(
                        f.all_to_all(x, axes=axes, splits=(s,), concats=(c,))
                    ),
                )
            )
        checks.append(
            make(
                f"shard_slice {axes}",
                SQUARE,
                (3, 7),
                "int32",
                lambda f, x, axes=axes: [f.shard_slice(x, axes, 1), f.shard_slice(x, axes, 0)],
            )
        )
    return checks


def kinds() -> list[Check]:
    checks = []
    for kind in MOVED:
        checks.append(
            make(
                f"moved {kind}",
                SQUARE,
                (4, 2),
                kind,
                lambda f, x: [
                    f.wait(f.all_gather(x, axes=("tp",), dims=(1,))),
                    f.wait(f.all_to_all(x, axes=("dp",), splits=(0,), concats=(1,))),
                    f.wait(f.broadcast(x, axes=("tp", "dp"), root=1)),
                ],
            )
        )
    for kind in ADDED:
        for reduce in ("sum", "avg") if "int" not in kind else ("sum",):
            checks.append(
                make(
                    f"added {kind} {reduce}",
                    SQUARE,
                    (4, 2),
                    kind,
                    lambda f, x, reduce=reduce: [
                        f.wait(f.all_reduce(x, axes=("tp",), reduce=reduce)),
                        f.wait(f.reduce_scatter(x, axes=("dp",), dims=(0,), reduce=reduce)),
                    ],
                )
            )
    return checks


def layouts() -> list[Check]:
    """Operands that are not laid out row by row, scalars, empty ones, and waits out of order."""

    def transposed(f: FunctionBuilder, x: Ref) -> list[Ref]:
        turned = f.aten("t.default", x, type_=TensorType((6, 4), "float32"))
        wide = f.aten("expand.default", turned, (2, 6, 4), type_=TensorType((2, 6, 4), "float32"))
        return [
            f.wait(f.all_gather(turned, axes=("dp",), dims=(0,))),
            f.wait(f.reduce_scatter(wide, axes=("dp",), dims=(0,))),
            f.wait(f.all_reduce(wide, axes=("dp",))),
            f.wait(f.all_to_all(turned, axes=("dp",), splits=(1,), concats=(0,))),
            f.wait(f.broadcast(turned, axes=("tp",), root=1)),
        ]

    def pipelined(f: FunctionBuilder, *operands: Ref) -> list[Ref]:
        started = [f.all_gather(operand, axes=("dp",), dims=(0,)) for operand in operands]
        return [f.wait(future) for future in reversed(started)]

    return [
        make("transposed", SQUARE, (4, 6), "float32", transposed),
        make("scalar", SQUARE, (), "float32", lambda f, x: [f.wait(f.all_reduce(x, axes=("dp",), reduce="avg"))]),
        make("empty", SQUARE, (0, 3), "float32", lambda f, x: [f.wait(f.all_gather(x, axes=("dp",), dims=(0,)))]),
        make("pipelined", SQUARE, (8, 3), "float32", pipelined, count=8),
    ]


def packed() -> list[Check]:
    """Operands of several dtypes and sizes at once: small ones travel together, large ones alone."""

    def every(f: FunctionBuilder, *operands: Ref) -> list[Ref]:
        many = len(operands)
        gather = f.all_gather(*operands, axes=("tp", "dp"), dims=(0, 1) * (many // 2))
        scatter = f.reduce_scatter(*operands, axes=("dp",), dims=(1, 0) * (many // 2), reduce="avg")
        reduced = f.all_reduce(*operands, axes=("tp",), reduce="avg")
        exchanged = f.all_to_all(*operands, axes=("tp",), splits=(0, 1) * (many // 2), concats=(1, 0) * (many // 2))
        sent = f.broadcast(*operands, axes=("dp",), root=1)
        return [ref for future in (gather, scatter, reduced, exchanged, sent) for ref in f.wait_all(future)]

    def mixed(f: FunctionBuilder, x: Ref, y: Ref, z: Ref) -> list[Ref]:
        half = f.aten("_to_copy.default", x, type_=TensorType((4, 8), "bfloat16"), dtype=dtype("bfloat16"))
        flags = f.aten("gt.Scalar", x, 0, type_=TensorType((4, 8), "bool"))
        large = f.aten("expand.default", y, (600, 4, 8), type_=TensorType((600, 4, 8), "float32"))
        larger = f.aten("repeat.default", y, (300, 30), type_=TensorType((1200, 240), "float32"))
        operands = (half, x, flags, larger, z, half, large)
        gather = f.all_gather(*operands, axes=("dp",), dims=(0,) * 7)
        scatter = f.reduce_scatter(half, x, larger, z, half, large, axes=("dp",), dims=(0,) * 6)
        return [*f.wait_all(gather), *f.wait_all(scatter)]

    return [
        make("packed", SQUARE, (4, 8), "float32", every, count=6),
        make(
            "packed scalars", SQUARE, (), "float64", lambda f, *s: f.wait_all(f.all_reduce(*s, axes=("dp",))), count=3
        ),
        make("packed empty", SQUARE, (0, 4), "float32", every, count=2),
        make("packed mixed", SQUARE, (4, 8), "float32", mixed, count=3),
    ]


def messages() -> list[Check]:
    """Neighbours that both send before they receive, in three dtypes; a broadcast among positions 0 and 2."""
    types = [TensorType((3, 2), "float32"), TensorType((4,), "bool"), TensorType((), "bfloat16")]
    functions = []
    for position in range(4):
        f = FunctionBuilder(f"rank{position}", LINE)
        refs = own_operands(f, types)
        peer = position ^ 1
        f.send(*refs[:2], axis="pp", peer=peer)
        f.send(refs[2], axis="pp", peer=peer)
        first = f.recv(*types[:2], axis="pp", peer=peer)
        received = [*f.wait_all(first), f.wait(f.recv(types[2], axis="pp", peer=peer))]
        if position in (0, 2):
            future = f.broadcast(received[0], axes=("pp",), root=2, coordinates=(0, 2))
            received[0] = f.wait(future)
            received.append(f.wait(f.all_reduce(refs[0], axes=("pp",), coordinates=(0, 2))))
        for ref in received:
            f.result(ref)
        functions.append(f.build())
    program = by_position(functions, LINE, "pp")
    return [Check("messages", program, operands_of(LINE, types))]


def run_checks(rank: int, checks: Sequence[Check]) -> list[list[Tensor]]:
    """Run checks on a real rank; return the results of each."""
    results = []
    for check in checks:
        program = check.program
        ranks = RankMesh(program.mesh, groups=required_groups(program), channels=required_channels(program))
        ops = RankOps(ranks)
        entry = program.entry(rank)
        executable = Executable(program, [entry.name], ops)
        operands = [operand[rank : rank + 1] for operand in check.operands]
        before = [operand.clone() for operand in operands]
        with torch.no_grad():
            results.append(list(executable.run(entry.name, list(operands))))
        ops.drain()
        assert all(torch.equal(now, then) for now, then in zip(operands, before, strict=True)), check.name
    return results


def run_coalesced(rank: int, checks: Sequence[Check]) -> list[list[Tensor]]:
    """As `run_checks`, but the way it goes on other backends: several operands in one call, no exchange."""
    made = RankOps.__init__

    def plain(self: RankOps, ranks: RankMesh) -> None:
        made(self, ranks)
        self._direct = None

    RankOps.__init__ = plain  # type: ignore[method-assign]
    return run_checks(rank, checks)


def compare(check: Check, found: Sequence[Sequence[Tensor]]) -> None:
    """Compare what each rank returned for a check with the simulator."""
    batch = {f"x{index}": operand for index, operand in enumerate(check.operands)}
    expected = simulate(check.program, {}, batch, check_types=True).per_rank
    for rank, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        assert len(got) == len(wanted)
        for position, (left, right) in enumerate(zip(got, wanted, strict=True)):
            where = f"{check.name}: rank {rank}: result {position}"
            assert (left.shape, left.dtype) == (right.shape, right.dtype), where
            if check.exact:
                assert torch.equal(left, right), where
            else:
                torch.testing.assert_close(left, right, msg=prefixed(where))


CHECKS = [*gathers(), *kinds(), *layouts(), *packed(), *messages()]


@pytest.fixture(scope="module")
def results() -> list[list[list[Tensor]]]:
    """What each of four real ranks returns for each check; one start of the ranks for all."""
    return run_ranks(run_checks, 4, CHECKS)


@pytest.mark.parametrize("number", range(len(CHECKS)), ids=[check.name for check in CHECKS])
def test_real_ranks_equal_the_simulator(number: int, results: list[list[list[Tensor]]]) -> None:
    compare(CHECKS[number], [rank[number] for rank in results])


COALESCED = [
    replace(check, exact=False)
    for check in [*gathers(), *packed()]
    if not check.name.startswith(("all_to_all", "broadcast", "packed mixed"))
]


@pytest.fixture(scope="module")
def coalesced() -> list[list[list[Tensor]]]:
    return run_ranks(run_coalesced, 4, COALESCED)


@pytest.mark.parametrize("number", range(len(COALESCED)), ids=[check.name for check in COALESCED])
def test_several_operands_in_one_call_equal_the_simulator(number: int, coalesced: list[list[list[Tensor]]]) -> None:
    compare(COALESCED[number], [rank[number] for rank in coalesced])
