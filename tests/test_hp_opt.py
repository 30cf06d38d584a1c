"""hp-opt as a process, and `run_passes` as a call."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from torch_mlir import ir

from hpir.dialect.attributes import ints_attr, strings_attr
from hpir.dialect.context import make_context
from hpir.dialect.diagnostics import IRError, collect, error_at, remark
from hpir.dialect.parsing import parse_module, parse_module_file
from hpir.errors import PassError, PlanError
from hpir.ir_passes.base import ModulePass
from hpir.ir_passes.pass_manager import run_passes
from hpir.mesh import Mesh
from hpir.tools.opt_driver import OptDriver

MODULE = "func.func @f() {\n  return\n}\n"
WITH_GATHER = """\
"hp.mesh"() {sym_name = "mesh", axis_names = ["dp"], axis_sizes = array<i64: 2>} : () -> ()
func.func @f(%x: !torch.vtensor<[4],f32>) {
  %0 = "hp.all_gather"(%x) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>}
      : (!torch.vtensor<[4],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
  return
}
"""


def hp_opt(*arguments: str, stdin: str | bytes = b"") -> tuple[int, str, str]:
    """Run the tool; return its exit status, stdout and stderr."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [sys.executable, "-m", "hpir.tools.hp_opt", *arguments], input=data, capture_output=True, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@dataclass(frozen=True)
class Refuse(ModulePass):
    """Refuse every module, with a note."""

    name: ClassVar[str] = "hp-refuse"

    def run(self, module: ir.Operation) -> None:
        mesh, function = (child.operation for child in module.regions[0].blocks[0].operations)
        raise error_at(function, "is refused", notes=[(mesh, "because of this mesh")])


@dataclass(frozen=True)
class AskMesh(ModulePass):
    """Make a mistake that is a PlanError, as passes that look up axes do."""

    name: ClassVar[str] = "hp-ask-mesh"

    def run(self, module: ir.Operation) -> None:
        Mesh(("dp",), (2,)).axis_size("dq")


@dataclass(frozen=True)
class BreakGather(ModulePass):
    """Leave an op that its verifier refuses."""

    name: ClassVar[str] = "hp-break-gather"

    def run(self, module: ir.Operation) -> None:
        function = module.regions[0].blocks[0].operations[1]
        function.regions[0].blocks[0].operations[0].attributes["axes"] = strings_attr(["dq"])


@dataclass(frozen=True)
class Remark(ModulePass):
    """Say something of each op of the module."""

    name: ClassVar[str] = "hp-remark"

    def run(self, module: ir.Operation) -> None:
        for child in module.regions[0].blocks[0].operations:
            remark(child, "is looked at")


@dataclass(frozen=True)
class Crash(ModulePass):
    """Have a bug."""

    name: ClassVar[str] = "hp-crash"

    def run(self, module: ir.Operation) -> None:
        raise ZeroDivisionError("a bug")


def test_starts_fast_and_light() -> None:
    code = (
        "import sys, hpir.tools.opt_driver as d; status = d.OptDriver().main(['--hp-set-mesh=axes=dp:2']);"
        "print([m for m in ('torch', 'pydantic', 'jax', 'rich') if m in sys.modules], file=sys.stderr)"
    )
    elapsed = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], input=MODULE.encode(), capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Processor time, which other work on the machine does not change much.
        elapsed.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.stderr.decode().strip() == "[]"
        assert b'"hp.mesh"' in done.stdout
    assert min(elapsed) < 1.0


def test_passes_import_no_torch() -> None:
    code = "import sys, hpir.ir_passes.registry as r; r.load_all(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_output_goes_to_stdout_and_reads_again() -> None:
    status, text, errors = hp_opt("--hp-set-mesh=axes=pp:2,dp:2", "--cse", stdin=MODULE)
    assert (status, errors) == (0, "")
    assert hp_opt("-", stdin=text) == (0, text, "")


def test_a_file_keeps_its_name_in_locations(tmp_path: Path) -> None:
    path = tmp_path / "step.mlir"
    path.write_text(MODULE)
    _, text, _ = hp_opt(str(path), "--mlir-print-debuginfo")
    assert f'loc("{path}":1:1)' in text


def test_output_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    source, target, link = tmp_path / "in.mlir", tmp_path / "out.mlir", tmp_path / "link.mlir"
    source.write_text(MODULE)
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    assert hp_opt(str(source), "-o", str(link)) == (0, "", "")
    assert "func.func @f" in target.read_text()
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    # Also the input itself may be the output.
    assert hp_opt(str(target), "--hp-set-mesh=axes=dp:2", "-o", str(target))[0] == 0
    assert '"hp.mesh"' in target.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.mlir", "link.mlir", "out.mlir"]


def test_a_failure_writes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "out.mlir"
    target.write_text("old")
    status, text, errors = hp_opt("-o", str(target), stdin="garbage")
    assert (status, text) == (1, "")
    assert errors == "<stdin>:1:1: error: custom op 'garbage' is unknown (tried 'builtin.garbage' as well)\n"
    assert target.read_text() == "old"


def test_a_failed_part_is_no_output_file(tmp_path: Path) -> None:
    parts = f"{MODULE}// -----\ngarbage\n// -----\n{MODULE}"
    status, text, errors = hp_opt("--split-input-file", stdin=parts)
    assert (status, text.count("func.func"), text.count("// -----")) == (1, 2, 2)
    assert errors.startswith("<stdin>:5:1: error: custom op 'garbage'")
    target = tmp_path / "out.mlir"
    assert hp_opt("--split-input-file", "-o", str(target), stdin=parts)[:2] == (1, "")
    assert not target.exists()


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ((), b"", "<stdin>:1:1: error: input is empty"),
        ((), b" \n\n", "<stdin>:1:1: error: input is empty"),
        ((), b"module {\n  \xff}", "<stdin>:2:3: error: input is not UTF-8 text (byte 0xff)"),
        ((), b"\x7fELF\0\0", "<stdin>:1:5: error: input is binary, neither MLIR text nor bytecode"),
        ((), b"ML\xefR\x06", "<stdin>:1:1: error: "),
        ((), b"module {", "<stdin>:1:"),
        (("none.mlir",), b"", "none.mlir: error: cannot read input: no such file or directory"),
        (("--hp-simplfy",), b"", "--hp-simplfy:1:3: error: unknown pass 'hp-simplfy', did you mean 'hp-simplify'"),
        (("--cse=x",), b"", "--cse:1:7: error: unknown option 'x' of cse"),
        (("--mlir-timing=3",), b"", "hp-opt: error: argument --mlir-timing: ignored explicit argument '3'"),
        (("-o", "/dev/full"), MODULE.encode(), "/dev/full: error: cannot write output: no space left on device"),
        (("-o", "/none/out.mlir"), MODULE.encode(), "/none/out.mlir: error: cannot write output: no such file"),
        (("-o", "/"), MODULE.encode(), "/: error: cannot write output: is a directory"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], stdin: bytes, message: str) -> None:
    status, text, errors = hp_opt(*arguments, stdin=stdin)
    assert (status, text) == (1, "")
    assert errors.startswith(message)
    assert errors.count("\n") == 1


def test_a_name_no_file_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert OptDriver().main(["a\0b"]) == 1
    assert capsys.readouterr().err == "a\0b: error: cannot read input: embedded null byte\n"


def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret.mlir"
    path.write_text(MODULE)
    path.chmod(0)
    if os.access(path, os.R_OK):  # root reads everything
        path = path / "below.mlir"
    status, text, errors = hp_opt(str(path))
    assert (status, text) == (1, "")
    assert errors.startswith(f"{path}: error: cannot read input: ")


def test_truncated_bytecode_at_every_length() -> None:
    module = parse_module(WITH_GATHER)
    driver = OptDriver()
    driver._parse_arguments(["--emit-bytecode"])
    data = driver.print(module)
    context = make_context()
    for length in range(4, len(data), 7):
        with pytest.raises(IRError):
            parse_module(data[:length], context)
    assert parse_module(data, context).operation.verify()


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    path = tmp_path / "long.mlir"
    path.write_text(f'module attributes {{hp.text = "{"x" * 1_000_000}"}} {{}}')
    command = [sys.executable, "-m", "hpir.tools.hp_opt", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, errors = process.communicate()
    assert (process.returncode, errors) == (1, b"")


@pytest.mark.parametrize(("redirection", "stream"), [(">&-", "output"), ("<&-", "input")])
def test_closed_streams(redirection: str, stream: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m hpir.tools.hp_opt - {redirection}"],
        input=MODULE.encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    expected = {"output": b"stdout: error: cannot write output: it is closed\n", "input": b"error: input is empty\n"}
    assert done.stderr.endswith(expected[stream])


def test_input_from_a_pipe_that_is_no_file() -> None:
    command = f"{sys.executable} -m hpir.tools.hp_opt <(echo 'func.func @f() {{ return }}')"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "func.func @f()" in done.stdout


def test_a_large_module_takes_mlirs_own_time() -> None:
    context = make_context()
    line = "  %{} = torch.aten.relu %{} : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>\n"
    body = "".join(line.format(number + 1, number) for number in range(100_000))
    source = f"func.func @f(%0: !torch.vtensor<[2],f32>) {{\n{body}  return\n}}\n"
    driver = OptDriver()
    driver._parse_arguments([])
    begin = time.perf_counter()
    module = parse_module(source, context)
    text = driver.print(run_passes(module, "cse"))
    assert time.perf_counter() - begin < 10.0
    assert text.count(b"torch.aten.relu") == 100_000


def test_run_passes_works_in_place_on_modules_and_operations() -> None:
    module = parse_module(MODULE)
    assert run_passes(module, "hp-set-mesh{axes=dp:2},cse") is module
    assert '"hp.mesh"' in str(module)
    operation = parse_module(MODULE).operation
    assert run_passes(operation, ["cse", "hp-set-mesh{axes=dp:2}"]) is operation
    assert '"hp.mesh"' in str(operation)
    assert run_passes(module, "") is module


def test_run_passes_on_something_else() -> None:
    function = parse_module(MODULE).body.operations[0].operation
    with pytest.raises(PassError, match=r"^-:1:1: error: passes run on a builtin.module, got: 'func.func'$"):
        run_passes(function, "cse")


def test_a_pass_that_refuses_gives_its_located_error_with_notes() -> None:
    with pytest.raises(IRError) as caught:
        run_passes(parse_module(WITH_GATHER), ["cse", Refuse()])
    assert str(caught.value) == "-:2:1: error: 'func.func' op is refused\n-:1:1: note: because of this mesh"


def test_what_a_pass_says_of_a_mesh_is_located_and_names_the_pass() -> None:
    with pytest.raises(IRError, match=r"^-:1:1: error: hp-ask-mesh: mesh has no axis 'dq'") as caught:
        run_passes(parse_module(WITH_GATHER), [AskMesh()])
    assert isinstance(caught.value.__cause__, PlanError)


def test_the_verifier_runs_after_each_pass() -> None:
    with pytest.raises(IRError) as caught:
        run_passes(parse_module(WITH_GATHER), [BreakGather(), Refuse()])
    assert str(caught.value) == "-:3:8: error: 'hp.all_gather' op mesh has no axis 'dq', did you mean 'dp'?"


def test_a_bug_in_a_pass_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError, match="a bug"):
        run_passes(parse_module(WITH_GATHER), [Crash()])


def test_remarks_are_collected() -> None:
    with collect() as said:
        run_passes(parse_module(WITH_GATHER), [Remark()])
    assert [str(diagnostic) for diagnostic in said] == [
        "-:1:1: remark: 'hp.mesh' op is looked at",
        "-:2:1: remark: 'func.func' op is looked at",
    ]


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ("hp-fsdpp", "pipeline:1:1: error: unknown pass 'hp-fsdpp', did you mean 'hp-fsdp'"),
        ("func.func(cse,cze)", "pipeline:1:15: error: unknown pass 'cze', did you mean 'cse'?"),
        ("hp-simplify(cse)", "pipeline:1:1: error: 'hp-simplify' is a pass, expected an op name before '('"),
        ("func.func(any(hp-simplify))", "pipeline:1:15: error: hp-simplify runs on builtin.module"),
    ],
)
def test_wrong_pipelines(pipeline: str, message: str) -> None:
    with pytest.raises(IRError) as caught:
        run_passes(parse_module(MODULE), pipeline)
    assert str(caught.value).startswith(message)


def test_many_contexts_live_side_by_side() -> None:
    modules = [parse_module(WITH_GATHER, make_context()) for _ in range(20)]
    for module in modules:
        run_passes(module, "hp-simplify,cse")
    for module in modules[::2]:
        assert module.operation.verify()
    texts = {str(module) for module in modules}
    assert len(texts) == 1
    # Types of one context are not those of another, and both are ours.
    for module in modules[:3]:
        other = parse_module(WITH_GATHER, module.context)
        future = other.body.operations[1].regions[0].blocks[0].operations[0].results[0].type
        assert type(future).__name__ == "Future"


def test_parse_errors_from_python(tmp_path: Path) -> None:
    with pytest.raises(IRError, match=r"^-:1:1: error: custom op 'garbage' is unknown"):
        parse_module("garbage")
    with pytest.raises(IRError, match="could not open input file"):
        parse_module_file(tmp_path / "none.mlir")


@pytest.fixture
def runs() -> Iterator[list[int]]:
    yield [1, 255, 256]


def test_ops_of_many_types(runs: list[int]) -> None:
    """A bucket may hold tensors of many types; IRDL's bookkeeping of them is never seen."""
    context = make_context()
    for count in runs:
        module = parse_module(_send_of(count), context)
        run_passes(module, "cse")
        assert "SegmentSizes" not in str(module)
    with pytest.raises(IRError, match="expected at most 256 runs of values of equal type, got: 257"):
        parse_module(_send_of(257), context)


def _send_of(count: int) -> str:
    types = [f"!torch.vtensor<[{size + 1}],f32>" for size in range(count)]
    arguments = ", ".join(f"%{number}: {type_}" for number, type_ in enumerate(types))
    operands = ", ".join(f"%{number}" for number in range(count))
    return f"""
"hp.mesh"() {{sym_name = "mesh", axis_names = ["pp"], axis_sizes = array<i64: 2>}} : () -> ()
func.func @f({arguments}) {{
  "hp.send"({operands}) {{mesh = @mesh, axis = "pp", peer = 1 : i64}} : ({", ".join(types)}) -> ()
  return
}}
"""


def test_an_op_built_without_its_attributes_is_an_error() -> None:
    with make_context(), ir.Location.file("model.py", 3, 1):
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            ir.Operation.create("hp.mesh", attributes={"axis_sizes": ints_attr([2])})
        with pytest.raises(IRError, match=r'^model.py:3:1: error: \'hp.mesh\' op attribute "axis_names" is expected'):
            run_passes(module, "hp-simplify")
