"""hp.pack and hp.unpack: where members lie, whose memory they have, and the same in every way they are run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from program_builder import FunctionBuilder, on_ranks, program_of
from torch import Tensor

from hpir.errors import PlanError, RuntimeFault
from hpir.mesh import Mesh
from hpir.packed_layout import PackedLayout
from hpir.runtime.aliasing import program_aliases
from hpir.runtime.build import Executable
from hpir.runtime.collectives import RankOps
from hpir.runtime.device import RankMesh
from hpir.runtime.operators import dtype_name, tensor_type
from hpir.runtime.packing import Packing, packing
from hpir.runtime.precision import program_in_dtype
from hpir.runtime.program import Function, Program, Ref, TensorType
from hpir.runtime.simulate import simulate

ONE = Mesh.of({"all": 1})
PAIR = Mesh.of({"dp": 2})
DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


def values(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    if dtype.is_complex:
        return torch.randn(list(shape), dtype=dtype)
    drawn = torch.randn(list(shape)) * 10
    return drawn > 0 if dtype is torch.bool else drawn.to(dtype)


def packing_for(tensors: Sequence[Tensor], ranks: int = 1, alignment: int = 16, dims: Sequence[int] = ()) -> Packing:
    types = tuple((dtype_name(tensor.dtype), tuple(tensor.shape)) for tensor in tensors)
    return packing(types, ranks, alignment, tuple(dims))


def by_the_book(tensors: Sequence[Tensor], ranks: int, alignment: int, dims: Sequence[int]) -> Tensor:
    """Pack as the dialect reference says, byte by byte: for each rank its piece of every member, padded."""
    mixed = len({tensor.dtype for tensor in tensors}) > 1
    unit = alignment * (1 if mixed else tensors[0].dtype.itemsize)
    packed = bytearray()
    for rank in range(ranks):
        for number, tensor in enumerate(tensors):
            piece = tensor.chunk(ranks, dims[number])[rank] if ranks > 1 else tensor
            dense = piece.resolve_conj().clone(memory_format=torch.contiguous_format).reshape(-1)
            packed += bytes(dense.view(torch.uint8).tolist()) if dense.numel() else b""
            packed += bytes(-len(packed) % unit)
    return torch.frombuffer(packed, dtype=torch.uint8).clone() if packed else torch.empty(0, dtype=torch.uint8)


def storages(tensors: Sequence[Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


@pytest.mark.parametrize("seed", range(300))
def test_random_members(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    ranks, mixed, common = rng.choice([1, 1, 2, 3, 4]), rng.random() < 0.5, rng.choice(DTYPES)
    tensors, dims = [], []
    for _ in range(rng.randint(1, 6)):
        shape = [rng.choice([0, 1, 2, 3, 5]) for _ in range(rng.randint(int(ranks > 1), 3))]
        dims.append(rng.randrange(len(shape)) if ranks > 1 else 0)
        if ranks > 1:
            shape[dims[-1]] *= ranks
        tensor = values(shape, rng.choice(DTYPES) if mixed else common)
        if rng.random() < 0.3:
            tensor = values(shape[::-1], tensor.dtype).permute(tuple(reversed(range(len(shape)))))
        if tensor.dtype.is_complex and rng.random() < 0.3:
            tensor = tensor.conj()
        tensors.append(tensor)
    layout = packing_for(tensors, ranks, 16, dims if ranks > 1 else ())
    packed = layout.pack(tensors)
    assert packed.shape == (layout.numel,)
    assert packed.dtype is layout.dtype
    assert torch.equal(packed.view(torch.uint8), by_the_book(tensors, ranks, 16, dims))
    owned, views = layout.unpack(packed, "packed"), layout.unpack(packed, "flat")
    for found in (owned, views, layout.traced(packed)):
        assert [tensor_type(tensor) for tensor in found] == [tensor_type(tensor) for tensor in tensors]
        assert all(torch.equal(a, b) for a, b in zip(found, tensors, strict=True))
    assert all(tensor.is_contiguous() for tensor in (*owned, *views))
    assert len(storages(owned)) == sum(tensor.numel() > 0 for tensor in owned)
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in owned)
    assert len(storages(views)) <= 1
    assert (storages(views) == storages([packed])) == (ranks == 1 or not packed.numel())
    unit = 16 if layout.dtype is not tensors[0].dtype else 16 * layout.dtype.itemsize
    start = min([tensor.data_ptr() for tensor in views if tensor.numel()], default=0)
    assert all((tensor.data_ptr() - start) % unit == 0 for tensor in views if tensor.numel())
    if ranks == 1 and packed.numel():
        # What lies as it is to lie is not copied.
        again = layout.pack(views)
        assert again.data_ptr() == packed.data_ptr()
        assert torch.equal(again.view(torch.uint8), packed.view(torch.uint8))


def side_by_side() -> tuple[Packing, list[Tensor]]:
    buffer = torch.arange(12.0)
    members = [buffer[0:3], buffer[4:8].view(2, 2), buffer[8:9].view([])]
    return packing_for(members, alignment=4), members


def test_members_side_by_side_are_one_view() -> None:
    layout, members = side_by_side()
    packed = layout.pack(members)
    assert packed.data_ptr() == members[0].data_ptr()
    assert packed.tolist() == list(range(12))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: [m[0].clone(), *m[1:]],
        lambda m: [m[0], m[1].clone(), m[2]],
        lambda m: [m[0], m[1].t(), m[2]],
        lambda m: [m[0], m[2].view(1).expand(4).view(2, 2), m[2]],
    ],
    ids=["first elsewhere", "middle elsewhere", "transposed", "other place"],
)
def test_members_that_lie_elsewhere_are_copied(change: Any) -> None:
    layout, members = side_by_side()
    changed = change(members)
    packed = layout.pack(changed)
    assert packed.untyped_storage().data_ptr() != members[0].untyped_storage().data_ptr()
    assert all(torch.equal(a, b) for a, b in zip(layout.unpack(packed, "flat"), changed, strict=True))


def test_padding_behind_the_last_must_be_there() -> None:
    buffer = torch.arange(9.0)
    members = [buffer[0:3], buffer[4:8].view(2, 2), buffer[8:9].view([])]
    packed = packing_for(members, alignment=4).pack(members)
    assert packed.data_ptr() != buffer.data_ptr()
    assert packed.numel() == 12


def test_conjugates_are_what_they_are_not_what_they_lie_as() -> None:
    buffer = torch.randn(8, dtype=torch.complex64)
    members = [buffer[:4].conj(), buffer[4:]]
    layout = packing_for(members, alignment=2)
    assert torch.equal(layout.pack(members), torch.cat([buffer[:4].conj(), buffer[4:]]).resolve_conj())


def test_freeing_one_of_packed_frees_it() -> None:
    members = [torch.randn(4, 8), torch.randn(4, 2)]
    layout = packing_for(members, ranks=2, alignment=4, dims=(0, 0))
    first, second = layout.unpack(layout.pack(members), "packed")
    assert (first.untyped_storage().nbytes(), second.untyped_storage().nbytes()) == (128, 32)
    first, second = layout.unpack(layout.pack(members), "flat")
    assert first.untyped_storage().nbytes() == second.untyped_storage().nbytes() == 160
    assert second.data_ptr() == first.data_ptr() + first.nbytes


def test_what_is_unpacked_must_fit() -> None:
    layout = packing_for([torch.ones(4)], alignment=4)
    with pytest.raises(RuntimeFault, match=r"expected float32\[4\] to unpack, got: \[8\]"):
        layout.unpack(torch.ones(8), "flat")


@pytest.mark.parametrize(
    ("shapes", "dtypes", "options", "message"),
    [
        ([], [], {}, "expected at least one tensor to pack"),
        ([(2,)], ["float32"], {"ranks": 0}, "expected ranks and alignment >= 1, got: 0 and 1"),
        ([(2,)], ["float32"], {"ranks": 2}, "expected 1 dims with ranks = 2, got: 0"),
        ([(3,)], ["float32"], {"ranks": 2, "dims": (0,)}, "expected dim 0 to divide into 2 pieces, got: 3"),
        ([(3,)], ["float32"], {"ranks": 3, "dims": (1,)}, "expected dim < 1, got: 1"),
        ([(None,)], ["float32"], {}, "expected tensor 0 to have a static shape"),
        ([(2,), (2,)], ["float32", "float64"], {"alignment": 4}, "a multiple of 8 bytes for float64, got: 4"),
        ([(2,), (2,)], ["int8", "uint64"], {}, "expected tensors of dtypes whose size is known, got: uint64"),
    ],
)
def test_what_cannot_be_laid_out(
    shapes: list[tuple[int | None, ...]], dtypes: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError) as caught:
        PackedLayout.of(shapes, dtypes, **options)
    assert message in str(caught.value)


# As ops of a Program.


F23, F4 = TensorType((2, 3), "float32"), TensorType((4,), "float32")


@pytest.mark.parametrize("layout", ["flat", "packed"])
def test_pack_and_unpack_semantics(layout: str) -> None:
    """A bucket's gather: what each rank packs is what all unpack, gathered along each member's own dim."""

    def body(f: FunctionBuilder, a: Ref, b: Ref) -> list[Ref]:
        sent = f.pack(a, b)
        arrived = f.wait(f.all_gather(sent, axes=["dp"], dims=[0]))
        types = [TensorType((2, 6), "float32"), TensorType((8,), "float32")]
        return list(f.unpack(arrived, types, layout=layout, ranks=2, dims=(1, 0)))

    a, b = [[torch.randn(2, 3), torch.randn(2, 3)], [torch.randn(4), torch.randn(4)]]
    for whole_a, whole_b in on_ranks(PAIR, [a, b], body):
        assert torch.equal(whole_a, torch.cat(a, 1))
        assert torch.equal(whole_b, torch.cat(b))


def test_rank_major_semantics() -> None:
    """A bucket's reduce-scatter: each rank gets its piece of every member."""

    def body(f: FunctionBuilder, a: Ref, b: Ref) -> list[Ref]:
        sent = f.pack(a, b, ranks=2, dims=(0, 0))
        arrived = f.wait(f.reduce_scatter(sent, axes=["dp"], dims=[0]))
        return list(f.unpack(arrived, [TensorType((1, 3), "float32"), TensorType((2,), "float32")], layout="flat"))

    a, b = [[torch.randn(2, 3), torch.randn(2, 3)], [torch.randn(4), torch.randn(4)]]
    for rank, (piece_a, piece_b) in enumerate(on_ranks(PAIR, [a, b], body)):
        assert torch.equal(piece_a, (a[0] + a[1])[rank : rank + 1])
        assert torch.equal(piece_b, (b[0] + b[1])[2 * rank : 2 * rank + 2])


def mixed_gather(f: FunctionBuilder, a: Ref, b: Ref) -> list[Ref]:
    sent = f.pack(a, b, alignment=16)
    arrived = f.wait(f.all_gather(sent, axes=["dp"], dims=[0]))
    types = [TensorType((4, 3), "float32"), TensorType((8,), "bfloat16")]
    return list(f.unpack(arrived, types, layout="packed", ranks=2, alignment=16, dims=(0, 0)))


def test_bytes_are_right_in_another_precision() -> None:
    """Members of two dtypes become members of one: no bytes any more, and other sizes."""
    a, b = [torch.randn(2, 3), torch.randn(2, 3)], [torch.randn(4).bfloat16(), torch.randn(4).bfloat16()]
    for dtype in (None, torch.float64):
        for whole_a, whole_b in on_ranks(PAIR, [a, b], mixed_gather, dtype=dtype):
            assert torch.equal(whole_a, torch.cat(a).to(whole_a.dtype))
            assert torch.equal(whole_b, torch.cat(b).to(whole_b.dtype))
            assert dtype in (None, whole_a.dtype, whole_b.dtype)


def test_types_in_another_precision() -> None:
    f = FunctionBuilder("main", PAIR)
    a, b = f.argument("a", (2, 3)), f.argument("b", (4,), "bfloat16")
    for ref in mixed_gather(f, a, b):
        f.result(ref)
    program = program_in_dtype(program_of(f.build(), mesh=PAIR), "float64")
    program.validate()
    types = {op.target: op.types[0] for op in program.functions["main"].ops}
    assert types["hp.pack"] == TensorType((32,), "float64")
    assert types["hp.wait"] == TensorType((64,), "float64")


def two_members() -> Program:
    f = FunctionBuilder("main", ONE)
    a, b = f.argument("a", (2, 3)), f.argument("b", (4,))
    for ref in f.unpack(f.pack(a, b), [F23, F4], layout="flat"):
        f.result(ref)
    return program_of(f.build(), mesh=ONE)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_in_code(backend: str) -> None:
    program = two_members()
    inputs = [torch.randn(2, 3), torch.randn(4)]
    executable = Executable(program, ["main"], RankOps(RankMesh(ONE, torch.device("cpu"))), backend)
    found = executable.run("main", list(inputs))
    assert all(torch.equal(a, b) for a, b in zip(found, inputs, strict=False))
    expected = simulate(program, {}, {"a": inputs[0], "b": inputs[1]}, check_types=True).per_rank[0]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def changed(number: int, **changes: Any) -> Program:
    program = two_members()
    main = program.functions["main"]
    ops = list(main.ops)
    kwargs = {name: value for name, value in {**ops[number].kwargs, **changes}.items() if value is not ...}
    ops[number] = replace(ops[number], kwargs=kwargs)
    return replace(program, functions={"main": replace(main, ops=tuple(ops))})


@pytest.mark.parametrize(
    ("number", "changes", "message"),
    [
        (0, {"ranks": "2"}, "op 0 'hp.pack': expected ranks and alignment to be integers, got: '2' and 4"),
        (0, {"alignment": ...}, "op 0 'hp.pack': expected ranks and alignment to be integers, got: 1 and None"),
        (0, {"dims": 3}, "op 0 'hp.pack': expected dims to be integers, got: 3"),
        (0, {"types": ...}, "op 0 'hp.pack': expected at least one tensor to pack"),
        (0, {"types": (("float32", (2, -3)),)}, "op 0 'hp.pack': malformed types: (('float32', (2, -3)),)"),
        (0, {"types": (("float32",),)}, "op 0 'hp.pack': malformed types: (('float32',),)"),
        (
            0,
            {"types": (("float32", (2, 3)), ("float32", (5,)))},
            "op 0 'hp.pack': expected members float32[2, 3], float32[5] in float32[16], "
            "got: float32[2, 3], float32[4] in float32[12]",
        ),
        (1, {"layout": "loose"}, "op 1 'hp.unpack': expected layout to be 'packed' or 'flat', got: 'loose'"),
        (1, {"alignment": 8}, "in float32[16], got: float32[2, 3], float32[4] in float32[12]"),
    ],
)
def test_a_program_that_contradicts_itself(number: int, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeFault) as caught:
        changed(number, **changes).validate()
    assert message in str(caught.value)


def aliases_of(function: Function) -> tuple[bool, ...]:
    return program_aliases(program_of(function, mesh=PAIR), ["main"])["main"].owned


def test_members_of_a_reduced_bucket_are_nobody_elses() -> None:
    """They lie in one storage, but none can reach another: gradients may be kept and added to."""
    f = FunctionBuilder("main", PAIR)
    a, b = f.argument("a", (2, 3)), f.argument("b", (4,))
    arrived = f.wait(f.all_reduce(f.pack(a, b), axes=["dp"]))
    for ref in f.unpack(arrived, [F23, F4], layout="flat"):
        f.result(ref)
    assert aliases_of(f.build())[:2] == (True, True)


def test_members_of_what_others_read_are_not_owned() -> None:
    f = FunctionBuilder("main", PAIR)
    a, b = f.argument("a", (2, 3)), f.argument("b", (4,))
    packed = f.pack(a, b)  # may be the arguments' own memory
    arrived = f.wait(f.all_reduce(packed, axes=["dp"]))
    for ref in (*f.unpack(packed, [F23, F4], layout="flat"), *f.unpack(arrived, [F23, F4], layout="flat"), arrived):
        f.result(ref)
    assert aliases_of(f.build())[:5] == (False,) * 5
