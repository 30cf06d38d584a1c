"""The Program on disk: what is written comes back, and what is damaged or not allowed is refused with a message."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpir.errors import RuntimeFault
from hpir.mesh import Mesh
from hpir.runtime.program import (
    SCHEMA_VERSION,
    Arg,
    Argument,
    Function,
    Named,
    Op,
    Program,
    Ref,
    Result,
    TensorType,
    last_uses,
    map_args,
)

MESH = Mesh.of({"pp": 1, "dp": 2})
F2 = TensorType((2,), "float32")


def small(*ops: Op, **changes: Any) -> Program:
    """One function of one input `x` that returns it as the loss."""
    main = Function(
        "main",
        (Argument(F2, "input", ("x",), batch_dim=0, sharding=(("dp",),), full_shape=(4,)),),
        ops,
        (Result(0, F2, "loss", ("loss",), sharding=((),), full_shape=(2,)),),
    )
    return replace(Program(MESH, ("dp",), 1, {"main": main}, ("main",), ("main",)), **changes)


def random_arg(rng: random.Random, values: int, depth: int = 0) -> Arg:
    choices: list[Callable[[], Arg]] = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.randint(-(2**70), 2**70),
        lambda: rng.choice([0.0, -0.0, 1e-310, 0.1, 2.0, 1e300, float("inf"), float("-inf")]),
        lambda: complex(rng.random(), rng.choice([1.0, float("-inf")])),
        lambda: rng.choice(["", "sum", "a 'quoted' \\ \n text", "ü€𝄞", "value"]),
        lambda: Named(rng.choice(["dtype", "layout", "memory_format", "device"]), rng.choice(["", "float32"])),
        lambda: Ref(rng.randrange(values)),
    ]
    if depth < 3:
        choices.append(lambda: tuple(random_arg(rng, values, depth + 1) for _ in range(rng.randrange(4))))
    return rng.choice(choices)()


def random_program(seed: int) -> Program:
    rng = random.Random(seed)

    def shape() -> tuple[int | None, ...]:
        return tuple(rng.choice([None, 0, 1, 7, 2**40]) for _ in range(rng.randrange(4)))

    def names() -> tuple[str, ...]:
        return tuple(rng.sample(["weight", "layers.0.weight", "größe", "x"], rng.randint(1, 3)))

    def sharding(rank: int) -> tuple[tuple[str, ...], ...]:
        return tuple(rng.choice([(), ("dp",), ("dp", "pp")]) for _ in range(rank))

    functions: dict[str, Function] = {}
    for number in range(rng.randint(1, 4)):
        arguments = []
        for _ in range(rng.randint(1, 4)):
            size = shape()
            rank = len(size)
            dim = rng.randrange(rank) if rank and rng.random() < 0.5 else None
            trainable = rng.random() < 0.5
            arguments.append(
                Argument(TensorType(size, "bfloat16"), "param", names(), trainable, dim, sharding(rank), size)
            )
        values = len(arguments)
        ops = []
        for _ in range(rng.randrange(20)):
            results = tuple(range(values, values + rng.randrange(3)))
            types = tuple(rng.choice([None, TensorType(shape(), "int64")]) for _ in results)
            args = tuple(random_arg(rng, values) for _ in range(rng.randrange(4)))
            kwargs = {key: random_arg(rng, values) for key in rng.sample(["alpha", "dtype", "dim"], rng.randrange(3))}
            text = rng.choice(["", "layers.0", "f.py:3"])
            ops.append(Op("aten.add.Tensor", args, kwargs, results, types, text, rng.choice(["", "forward"]), text))
            values += len(results)
        if functions and rng.random() < 0.5:
            callee = rng.choice(list(functions.values()))
            results = tuple(range(values, values + len(callee.results)))
            called = tuple(Ref(0) for _ in callee.arguments)
            types = tuple(result.type for result in callee.results)
            ops.append(Op("call", called, {"function": callee.name}, results, types))
            values += len(results)
        size = shape()
        result = Result(
            rng.randrange(values), TensorType(size, "float32"), "grad", names(), None, ((),) * len(size), size
        )
        functions[f"f{number}"] = Function(
            f"f{number}", tuple(arguments), tuple(ops), (result,), *rng.choice([(None, ""), (3, "backward_input")])
        )
    name = rng.choice(list(functions))
    return Program(
        MESH,
        rng.choice([(), ("dp",), ("pp", "dp")]),
        rng.randint(1, 8),
        functions,
        (name,),
        (name,),
        reference=rng.choice([None, name]),
        pipeline_axis=rng.choice([None, "pp"]),
        seed=rng.randint(-5, 2**63),
        output_tree=rng.choice([None, "output", {"dict": {"b": "b", "a": {"list": ["a.0", None]}}}]),
        text=rng.choice(["", "module {\n}\n"]),
    )


@pytest.mark.parametrize("seed", range(40))
def test_round_trip(tmp_path: Path, seed: int) -> None:
    program = random_program(seed)
    program.validate()
    program.save(tmp_path / "deep" / "directory")
    loaded = Program.load(tmp_path / "deep" / "directory")
    assert loaded == program
    assert loaded.digest == program.digest
    loaded.save(tmp_path / "again")
    written = (tmp_path / "deep" / "directory" / "program.json").read_bytes()
    assert (tmp_path / "again" / "program.json").read_bytes() == written


def test_round_trip_keeps_types_of_numbers(tmp_path: Path) -> None:
    args: tuple[Arg, ...] = (True, 1, 1.0, -0.0, 1 + 0j, "1", None, (), ((),), Ref(0), float("nan"))
    small(Op("aten.neg.default", args, {}, (1,), (F2,))).save(tmp_path)
    loaded = Program.load(tmp_path).functions["main"].ops[0].args
    assert repr(loaded) == repr(args)


def test_saving_replaces(tmp_path: Path) -> None:
    small(seed=1, text="first, longer").save(tmp_path)
    small(seed=2).save(tmp_path)
    assert Program.load(tmp_path).seed == 2
    assert Program.load(tmp_path).text == ""
    assert sorted(file.name for file in tmp_path.iterdir()) == ["program.json", "program.mlir"]


def test_program_without_its_text_loads(tmp_path: Path) -> None:
    small(text="module {}").save(tmp_path)
    (tmp_path / "program.mlir").write_bytes(b"\xff\xfe\x00")
    assert Program.load(tmp_path) == replace(small(), text=Program.load(tmp_path).text)
    (tmp_path / "program.mlir").unlink()
    assert Program.load(tmp_path) == small()


def test_digest_covers_everything_but_the_text_and_places() -> None:
    program = small(Op("aten.neg.default", (Ref(0),), {}, (1,), (F2,)))
    main = program.functions["main"]
    assert replace(program, text="other").digest == program.digest
    moved = replace(main, ops=(replace(main.ops[0], location="elsewhere.py:1"),))
    assert replace(program, functions={"main": moved}).digest == program.digest
    changed = [
        replace(program, seed=1),
        replace(program, microbatches=2),
        replace(program, mesh=Mesh.of({"pp": 1, "dp": 3})),
        replace(program, data_axes=()),
        replace(program, output_tree="output"),
        replace(program, reference="main"),
        *(
            replace(program, functions={"main": function})
            for function in (
                replace(main, ops=()),
                replace(main, ops=(replace(main.ops[0], target="aten.abs.default"),)),
                replace(main, ops=(replace(main.ops[0], args=(Ref(0), 1)),)),
                replace(main, ops=(replace(main.ops[0], args=(Ref(0), 1.0)),)),
                replace(main, ops=(replace(main.ops[0], args=(Ref(0), True)),)),
                replace(main, results=(replace(main.results[0], role="grad"),)),
                replace(main, arguments=(replace(main.arguments[0], trainable=True),)),
            )
        ),
    ]
    digests = [program.digest, *(other.digest for other in changed)]
    assert len(set(digests)) == len(digests)


def test_digest_is_the_same_in_another_process(tmp_path: Path) -> None:
    program = random_program(3)
    program.save(tmp_path)
    code = f"from hpir.runtime.program import Program; print(Program.load({str(tmp_path)!r}).digest)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == program.digest


def test_reading_a_program_imports_neither_torch_nor_mlir() -> None:
    code = "import sys, hpir.runtime.program; print([m for m in ('torch', 'torch_mlir') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_simulator_imports_no_mlir() -> None:
    code = "import sys, hpir.runtime.simulate; print([m for m in sys.modules if m.split('.')[0] == 'torch_mlir'])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_entry_by_pipeline_coordinate() -> None:
    main = small().functions["main"]
    program = replace(
        small(),
        mesh=Mesh.of({"dp": 2, "pp": 2}),
        functions={"a": replace(main, name="a"), "b": replace(main, name="b")},
        train=("a", "b"),
        evaluate=("b", "a"),
        pipeline_axis="pp",
    )
    program.validate()
    assert [program.entry(rank).name for rank in range(4)] == ["a", "b", "a", "b"]
    assert [program.entry(rank, "evaluate").name for rank in range(4)] == ["b", "a", "b", "a"]


# What is damaged.


def load_error(path: Path, **options: Any) -> str:
    with pytest.raises(RuntimeFault) as caught:
        Program.load(path, **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path / "program.json"))
    return str(caught.value).removeprefix(f"{path / 'program.json'}: ")


def test_nothing_there(tmp_path: Path) -> None:
    assert load_error(tmp_path) == "cannot read a Program: No such file or directory"
    (tmp_path / "program.json").mkdir()
    assert load_error(tmp_path) == "cannot read a Program: Is a directory"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a Program: Expecting value"),
        (b"garbage", "not a Program: Expecting value"),
        (b"\xff\xfe\x00\x01", "not a Program: 'utf-8' codec can't decode"),
        (b"[1, 2]", "not a Program: expected an object"),
        (b"3", "not a Program: expected an object"),
        (b"{}", f"schema version None, this hpir reads {SCHEMA_VERSION}"),
        (b'{"schema": %d}' % SCHEMA_VERSION, "digest does not match"),
        (b'{"schema": %d, "x": NaN}' % SCHEMA_VERSION, "digest does not match"),
        (b"[" * 200_000, "not a Program: "),
    ],
    ids=["empty", "garbage", "binary", "list", "number", "no version", "no digest", "nan", "deep"],
)
def test_garbage(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "program.json").write_bytes(content)
    assert load_error(tmp_path).startswith(message)


def test_truncated(tmp_path: Path) -> None:
    random_program(7).save(tmp_path)
    content = (tmp_path / "program.json").read_bytes()
    for length in range(0, len(content), max(1, len(content) // 50)):
        (tmp_path / "program.json").write_bytes(content[:length])
        assert load_error(tmp_path).startswith("not a Program: ")


@pytest.mark.parametrize(
    ("old", "new"),
    [('"seed":0', '"seed":1'), ("aten.neg.default", "aten.abs.default"), ('"digest":"', '"digest":"0'), ('"x"', '"y"')],
)
def test_changed(tmp_path: Path, old: str, new: str) -> None:
    small(Op("aten.neg.default", (Ref(0),), {}, (1,), (F2,))).save(tmp_path)
    file = tmp_path / "program.json"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    assert load_error(tmp_path) == "digest does not match: the file was changed or cut off after it was written"


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, "1", None])
def test_other_version(tmp_path: Path, version: Any) -> None:
    small().save(tmp_path)
    file = tmp_path / "program.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": version}))
    assert load_error(tmp_path) == f"schema version {version!r}, this hpir reads {SCHEMA_VERSION}"


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write a Program whose digest is right and whose content is not what `save` would write."""
    from hpir.runtime.program_json import digest

    small(Op("aten.neg.default", (Ref(0),), {}, (1,), (F2,))).save(path)
    encoded = json.loads((path / "program.json").read_text())
    del encoded["digest"]
    change(encoded)
    encoded["digest"] = digest(encoded)
    (path / "program.json").write_text(json.dumps(encoded))


def op_of(encoded: dict[str, Any]) -> dict[str, Any]:
    op: dict[str, Any] = encoded["functions"]["main"]["ops"][0]
    return op


def argument_of(encoded: dict[str, Any]) -> dict[str, Any]:
    argument: dict[str, Any] = encoded["functions"]["main"]["arguments"][0]
    return argument


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.pop("mesh"), "not a Program: 'mesh'"),
        (lambda e: e["mesh"].update(axis_sizes=[0, 2]), "mesh axis 'pp' has size 0, expected at least 1"),
        (lambda e: e["mesh"].update(axis_sizes="ab"), "not a Program: invalid literal for int"),
        (lambda e: e.update(functions=[]), "not a Program: 'list' object has no attribute 'items'"),
        (lambda e: op_of(e).pop("op"), "main: op 0: 'op'"),
        (lambda e: op_of(e).update(args=[{"value": 0, "more": 1}]), "main: op 0: malformed operand"),
        (lambda e: op_of(e).update(args=[{"value": "0"}]), "main: op 0: malformed operand"),
        (lambda e: op_of(e).update(args=[{"float": "1e5"}]), "main: op 0: malformed operand"),
        (lambda e: op_of(e).update(args=[{"stream": "cuda"}]), "main: op 0: malformed operand"),
        (lambda e: op_of(e).update(args=[{"complex": [1, "2"]}]), "main: op 0: malformed operand"),
        (lambda e: op_of(e).update(args=7), "main: op 0: 'int' object is not iterable"),
        (lambda e: op_of(e).update(types=[["float32", [-1]]]), "main: op 0: malformed shape: [-1]"),
        (lambda e: op_of(e).update(types=[]), "main: op 0 'aten.neg.default': 1 results but 0 types"),
        (lambda e: argument_of(e).update(type=None), "expected a tensor type, got: null"),
        (lambda e: argument_of(e).update(names=[]), "an argument or result has no name"),
        (lambda e: argument_of(e).update(batch_dim=1), "main: 'x': expected batch_dim < 1, got: 1"),
        (lambda e: argument_of(e).update(batch_dim="one"), "not a Program: invalid literal for int"),
        (lambda e: argument_of(e).update(sharding=[["pd"]]), "main: 'x': mesh has no axis 'pd', did you mean"),
        (lambda e: argument_of(e).update(sharding=[[], []]), "main: 'x': sharding or full shape does not have 1 dims"),
        (lambda e: e.update(train=["man"]), "train: no function 'man'"),
        (lambda e: e.update(train=[]), "train: expected 1 functions, got: 0"),
        (lambda e: e.update(evaluate=["main", "main"]), "evaluate: expected 1 functions, got: 2"),
        (lambda e: e.update(reference="joint"), "reference: no function 'joint'"),
        (lambda e: e.update(pipeline_axis="qq"), "mesh has no axis 'qq'"),
        (lambda e: e.update(data_axes=["dd"]), "mesh has no axis 'dd', did you mean 'dp'?"),
    ],
)
def test_malformed(tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    forge(tmp_path, change)
    assert message in load_error(tmp_path)


# What is not allowed.


@pytest.mark.parametrize(
    "target",
    [
        "aten.neg",
        "aten.neg.default.x",
        "os.system.default",
        "torchvision.nms.default",
        "aten.from_file.default",
        "aten.save.default",
        "hp.reduce",
        "hp.mesh",
        "",
    ],
)
def test_operator_that_is_not_allowed(tmp_path: Path, target: str) -> None:
    small(Op(target, (Ref(0),), {}, (1,), (F2,))).save(tmp_path)
    named = {"os.system.default": "['os']", "torchvision.nms.default": "['torchvision']"}.get(target, "[...]")
    assert load_error(tmp_path) == (
        f"main: op 0 '{target}': operator is not on the allow-list; name its namespace in allow={named} if you trust it"
    )


def test_operator_of_an_allowed_namespace(tmp_path: Path) -> None:
    program = small(
        Op("mylib.scale.default", (Ref(0),), {}, (1,), (F2,)),
        Op("prims.neg.default", (Ref(0),), {}, (2,), (F2,)),
        Op("_c10d_functional.wait_tensor.default", (Ref(0),), {}, (3,), (F2,)),
    )
    program.save(tmp_path)
    assert "'mylib.scale.default': operator is not on the allow-list" in load_error(tmp_path)
    assert "'mylib.scale.default'" in load_error(tmp_path, allow=["other"])
    assert Program.load(tmp_path, allow=["mylib"]) == program


def test_refused_operators_stay_refused(tmp_path: Path) -> None:
    small(Op("aten.from_file.default", ("/etc/passwd",), {}, (1,), (F2,))).save(tmp_path)
    assert "not on the allow-list" in load_error(tmp_path, allow=["aten"])


NEG = Op("aten.neg.default", (Ref(0),), {}, (1,), (F2,))


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((replace(NEG, args=(Ref(1),)),), "main: op 0 'aten.neg.default': value 1 is used before it is defined"),
        ((replace(NEG, args=(Ref(-1),)),), "main: op 0 'aten.neg.default': value -1 is used before it is defined"),
        (
            (NEG, replace(NEG, args=((Ref(0), (Ref(5),)),), results=(2,))),
            "main: op 1 'aten.neg.default': value 5 is used",
        ),
        (
            (replace(NEG, kwargs={"out": Ref(3)}),),
            "main: op 0 'aten.neg.default': value 3 is used before it is defined",
        ),
        ((NEG, NEG), "main: op 1 'aten.neg.default': value 1 is defined twice"),
        ((replace(NEG, results=(0,)),), "main: op 0 'aten.neg.default': value 0 is defined twice"),
        ((replace(NEG, types=()),), "main: op 0 'aten.neg.default': 1 results but 0 types"),
        ((replace(NEG, target="call"),), "main: op 0 'call': no function 'None'"),
        ((replace(NEG, target="call", kwargs={"function": "man"}),), "main: op 0 'call': no function 'man'"),
        (
            (replace(NEG, target="call", args=(), kwargs={"function": "main"}),),
            "main: op 0 'call': operands or results do not match 'main'",
        ),
        (
            (replace(NEG, target="call", kwargs={"function": "main"}),),
            "functions call each other in a circle: main",
        ),
    ],
)
def test_validate(ops: tuple[Op, ...], message: str) -> None:
    with pytest.raises(RuntimeFault) as caught:
        small(*ops).validate(where="here")
    assert str(caught.value).startswith(f"here: {message}")


def test_validate_results() -> None:
    main = small().functions["main"]
    program = replace(small(), functions={"main": replace(main, results=(replace(main.results[0], value=4),))})
    with pytest.raises(RuntimeFault, match="program: main: result 'loss' is never defined"):
        program.validate()


def test_validate_roles_of_entries() -> None:
    main = small().functions["main"]
    taking = replace(main, arguments=(replace(main.arguments[0], role="incoming"), *main.arguments[1:]))
    returning = replace(main, results=(replace(main.results[0], role="saved"),))
    for function, message in (
        (taking, "main: argument 'x' has role 'incoming', expected one of param, buffer, constant, input, size"),
        (returning, "main: result 'loss' has role 'saved', expected one of loss, weight, output, grad, buffer"),
    ):
        with pytest.raises(RuntimeFault) as caught:
            replace(small(), functions={"main": function}).validate()
        assert str(caught.value) == f"program: train: {message}"


def test_validate_types_of_calls() -> None:
    main = small().functions["main"]
    called = replace(NEG, target="call", kwargs={"function": "a"}, types=(TensorType((3,), "float32"),))
    functions = {"main": replace(main, ops=(called,)), "a": replace(main, name="a")}
    with pytest.raises(RuntimeFault) as caught:
        replace(small(), functions=functions).validate()
    found = main.results[0].type
    assert str(caught.value) == f"program: main: op 0 'call': loss 'loss' is float32[3], expected {found}"


def test_validate_circle_of_three() -> None:
    main = small().functions["main"]

    def calling(name: str, callee: str) -> Function:
        return replace(main, name=name, ops=(replace(NEG, target="call", kwargs={"function": callee}),))

    functions = {"main": calling("main", "a"), "a": calling("a", "b"), "b": calling("b", "a")}
    with pytest.raises(RuntimeFault, match="functions call each other in a circle: a, b"):
        replace(small(), functions=functions).validate()


def test_map_args_and_operands() -> None:
    op = Op("aten.cat.default", ((Ref(3), (Ref(1), 2)), None), {"x": Ref(3)})
    assert list(op.operands()) == [3, 1, 3]
    assert map_args(op.args, lambda leaf: leaf.index if isinstance(leaf, Ref) else leaf) == [[3, [1, 2]], None]


def test_last_uses() -> None:
    ops = (NEG, replace(NEG, args=(Ref(1), Ref(1)), results=(2,)), replace(NEG, args=(Ref(1),), results=(3,)))
    function = small(*ops).functions["main"]
    # Value 0 is returned; 2 and 3 are never used, so they go where they come.
    assert last_uses(function) == [(), (2,), (1, 3)]
