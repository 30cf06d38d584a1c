"""What a Program says of buckets and of where parameters lie: kept on disk, checked, read off the IR."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch_mlir import ir

from hpir.dialect.context import make_context
from hpir.dialect.signature import read_signature, step_functions, write_signature
from hpir.errors import RuntimeFault
from hpir.lowering.to_program import to_program
from hpir.mesh import Mesh
from hpir.runtime.program import Argument, Function, Op, Program, Ref, Result, TensorType
from hpir.runtime.program_json import digest

F4 = TensorType((4,), "float32")
GATHER = Op(
    "hp.all_gather",
    (Ref(0), Ref(1)),
    {"axes": ("dp",), "dims": (0, 0)},
    (2,),
    (None,),
    bucket="layers.0",
    members=("a", "b"),
    member_bytes=(16, 16),
    unit="layers.0",
)


def parameter(name: str, offset: int, buffer: str = "layers.0", type_: TensorType = F4) -> Argument:
    return Argument(type_, "param", (name,), buffer=buffer, offset=offset)


def program_of(*arguments: Argument, ops: tuple[Op, ...] = ()) -> Program:
    result = Result(0, arguments[0].type, "loss", ("loss",))
    main = Function("main", arguments, ops, (result,))
    return Program(Mesh.of({"dp": 2}), ("dp",), 1, {"main": main}, ("main",), ("main",))


TWO = program_of(parameter("a", 0), parameter("b", 16), ops=(GATHER,))


def test_buckets_and_places_come_back(tmp_path: Path) -> None:
    TWO.save(tmp_path)
    loaded = Program.load(tmp_path)
    assert loaded == TWO
    assert loaded.functions["main"].ops[0].members == ("a", "b")
    assert [argument.offset for argument in loaded.functions["main"].arguments] == [0, 16]


def test_what_is_absent_is_not_written(tmp_path: Path) -> None:
    plain = replace(GATHER, bucket="", members=(), member_bytes=(), unit="")
    program_of(parameter("a", 0, ""), parameter("b", 0, ""), ops=(plain,)).save(tmp_path)
    text = (tmp_path / "program.json").read_text()
    assert not [key for key in ("bucket", "members", "member_bytes", "unit", "buffer", "offset") if f'"{key}"' in text]


def test_the_digest_depends_on_them() -> None:
    others = [
        program_of(parameter("a", 16), parameter("b", 0), ops=(GATHER,)),
        program_of(parameter("a", 0, "x"), parameter("b", 16, "x"), ops=(GATHER,)),
        program_of(parameter("a", 0), parameter("b", 16), ops=(replace(GATHER, bucket="layers.1"),)),
        program_of(parameter("a", 0), parameter("b", 16), ops=(replace(GATHER, members=("b", "a")),)),
    ]
    assert len({program.digest for program in (TWO, *others)}) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([parameter("a", 0), parameter("b", 12)], "buffer 'layers.0': 'b' overlaps 'a'"),
        ([parameter("a", 0), parameter("b", 0)], "buffer 'layers.0': 'b' overlaps 'a'"),
        ([parameter("a", 0), parameter("b", 80)], "buffer 'layers.0': 64 bytes before 'b' are of nothing"),
        ([parameter("a", 1 << 40)], "bytes before 'a' are of nothing"),
        ([parameter("a", 2)], "main: 'a': expected offset to be a multiple of 4 bytes, got: 2"),
        ([parameter("a", -4)], "main: 'a': expected offset to be a multiple of 4 bytes, got: -4"),
        (
            [parameter("a", 0, type_=TensorType((None,), "float32"))],
            "main: 'a': expected a static shape and a known dtype, got: float32[?]",
        ),
        (
            [parameter("a", 0, type_=TensorType((2,), "uint64"))],
            "main: 'a': expected a static shape and a known dtype, got: uint64[2]",
        ),
        ([replace(parameter("a", 0), role="buffer")], "expected a parameter in buffer 'layers.0', got: buffer"),
    ],
)
def test_places_that_cannot_be(arguments: list[Argument], message: str) -> None:
    with pytest.raises(RuntimeFault) as caught:
        program_of(*arguments).validate(where="here")
    assert message in str(caught.value)


def test_padding_between_parameters_is_fine() -> None:
    program_of(parameter("a", 0), parameter("b", 76), parameter("c", 0, "other")).validate()


def test_empty_shards_take_no_place() -> None:
    empty = TensorType((0, 4), "float32")
    program_of(parameter("a", 0), parameter("b", 16, type_=empty), parameter("c", 16)).validate()


def test_one_place_in_all_functions() -> None:
    other = replace(TWO.functions["main"], name="other", arguments=(parameter("a", 0), parameter("b", 32)))
    with pytest.raises(RuntimeFault) as caught:
        replace(TWO, functions={**TWO.functions, "other": other}).validate()
    text = "other: 'b': is at byte 32 of buffer 'layers.0' here, at byte 16 of 'layers.0' in another function"
    assert text in str(caught.value)


@pytest.mark.parametrize("sizes", [(16,), (16, 16, 16), (16, -1)])
def test_one_size_per_member(sizes: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeFault, match="expected bytes of 2 members, got"):
        program_of(parameter("a", 0), parameter("b", 16), ops=(replace(GATHER, member_bytes=sizes),)).validate()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda op, _: op.update(bucket=3), "main: op 0: expected bucket to be a string, got: 3"),
        (lambda op, _: op.update(members="ab"), "main: op 0: expected members to be a list of str, got: 'ab'"),
        (lambda op, _: op.update(members=["a", 1]), "main: op 0: expected members to be a list of str"),
        (lambda op, _: op.update(member_bytes=[True, 16]), "main: op 0: expected member_bytes to be a list of int"),
        (lambda _, argument: argument.update(buffer=["x"]), "expected buffer to be a string, got: ['x']"),
        (lambda _, argument: argument.update(offset="0"), "expected offset to be an integer, got: '0'"),
        (lambda _, argument: argument.update(offset=0.5), "expected offset to be an integer, got: 0.5"),
        (lambda _, argument: argument.pop("offset"), "expected buffer and offset of an argument together"),
        (lambda _, argument: argument.pop("buffer"), "expected buffer and offset of an argument together"),
    ],
)
def test_malformed(tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object], message: str) -> None:
    TWO.save(tmp_path)
    file = tmp_path / "program.json"
    encoded = json.loads(file.read_text())
    del encoded["digest"]
    main = encoded["functions"]["main"]
    change(main["ops"][0], main["arguments"][0])
    file.write_text(json.dumps({**encoded, "digest": digest(encoded)}))
    with pytest.raises(RuntimeFault) as caught:
        Program.load(tmp_path)
    assert message in str(caught.value)


STEP = """
module attributes {hp.level = "spmd"} {
  "hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
  func.func @joint(
      %a: !torch.vtensor<[4],f32> {hp.role = "param", hp.fqn = ["a"], hp.sharding = #hp.sharding<@mesh, [["dp"]]>,
                                   hp.buffer = "both", hp.offset = 0 : i64},
      %b: !torch.vtensor<[2],f32> {hp.role = "param", hp.fqn = ["b", "tied"],
                                   hp.sharding = #hp.sharding<@mesh, [["dp"]]>,
                                   hp.buffer = "both", hp.offset = 16 : i64},
      %x: !torch.vtensor<[],f32> {hp.role = "input", hp.name = "x"})
      -> (!torch.vtensor<[],f32> {hp.role = "loss"}, !torch.vtensor<[8],f32> {hp.role = "output", hp.name = "a"},
          !torch.vtensor<[4],f32> {hp.role = "output", hp.name = "b"},
          !torch.vtensor<[4],f32> {hp.role = "output", hp.name = "c"}) {
    %f = "hp.all_gather"(%a, %b) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0, 0>, hp.bucket = "both",
      hp.fqn = ["a", "b", "tied"]}
      : (!torch.vtensor<[4],f32>, !torch.vtensor<[2],f32>)
      -> !hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[4],f32>]>
    %full:2 = "hp.wait"(%f) {hp.bucket = "both", hp.fqn = ["a", "b", "tied"]}
      : (!hp.future<[!torch.vtensor<[8],f32>, !torch.vtensor<[4],f32>]>)
      -> (!torch.vtensor<[8],f32>, !torch.vtensor<[4],f32>)
    %g = "hp.all_gather"(%b) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["b", "tied"],
      hp.member_bytes = array<i64: 7>}
      : (!torch.vtensor<[2],f32>) -> !hp.future<[!torch.vtensor<[4],f32>]>
    %c = "hp.wait"(%g) : (!hp.future<[!torch.vtensor<[4],f32>]>) -> !torch.vtensor<[4],f32>
    return %x, %full#0, %full#1, %c
      : !torch.vtensor<[],f32>, !torch.vtensor<[8],f32>, !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>
  }
}
"""


def parsed() -> ir.Module:
    with make_context():
        return ir.Module.parse(STEP)


def test_they_are_read_off_the_ir() -> None:
    program = to_program(parsed())
    forward = program.functions["stage0_forward"]
    assert [(each.buffer, each.offset) for each in forward.arguments] == [("both", 0), ("both", 16), ("", 0)]
    found = [(op.target, op.bucket, op.members, op.member_bytes) for op in forward.ops]
    assert found == [
        ("hp.all_gather", "both", ("a", "b"), (16, 8)),
        ("hp.wait", "both", ("a", "b"), (16, 8)),
        ("hp.all_gather", "", ("b",), (7,)),
        ("hp.wait", "", (), ()),
    ]


def test_the_signature_keeps_them() -> None:
    module = parsed()
    (function,) = step_functions(module.operation)
    mesh = Mesh.of({"dp": 2})
    signature = read_signature(function, mesh)
    assert [(info.buffer, info.offset) for info in signature.arguments] == [("both", 0), ("both", 16), ("", 0)]
    before = str(function.attributes["arg_attrs"])
    write_signature(function, signature, "mesh", mesh)
    assert str(function.attributes["arg_attrs"]) == before
