"""One pass, one file, one flag, one FileCheck test, one heading; one op, its tests."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from hpir.dialect import hp
from hpir.dialect.context import make_context
from hpir.ir_passes.base import ModulePass, PipelinePass
from hpir.ir_passes.options import option_name, option_types
from hpir.ir_passes.pass_manager import PassRunner, expand_pipeline
from hpir.ir_passes.registry import MLIR_PASSES, PASSES, load_all, load_pass, suggest, summary

ROOT = Path(__file__).parent.parent
FILECHECK = ROOT / "tests" / "filecheck"
PASS_NAMES = sorted(PASSES)
TESTS = sorted(FILECHECK.rglob("*.mlir"))
OPS = sorted(cls.OPERATION_NAME.removeprefix("hp.") for cls in hp.Hp.operations)


_PREFIX = r"[A-Z]{2}[A-Z0-9_-]*?"  # one letter and a number is a constraint
_SUFFIX = r"-(?:NEXT|SAME|NOT|DAG|LABEL|EMPTY|COUNT-\d+)"


def pass_file(name: str) -> Path:
    """Return where a pass lies, relative to `ir_passes`."""
    return Path(*PASSES[name].partition(":")[0].split(".")).with_suffix(".py")


def base_names(node: ast.ClassDef) -> set[str]:
    return {base.id for base in node.bases if isinstance(base, ast.Name)}


@pytest.mark.parametrize("name", PASS_NAMES)
def test_a_pass_is_a_frozen_dataclass_of_its_name(name: str) -> None:
    cls = load_pass(name)
    assert cls.name == name
    assert is_dataclass(cls)
    assert issubclass(cls, ModulePass | PipelinePass)
    assert inspect.getsourcefile(cls) == str(ROOT / "ir_passes" / pass_file(name))
    assert option_types(cls).keys() == {field.name for field in fields(cls)}


@pytest.mark.parametrize("name", PASS_NAMES)
def test_a_pass_has_its_file_check_test(name: str) -> None:
    test = (FILECHECK / pass_file(name)).with_suffix(".mlir")
    runs = [line for line in test.read_text().splitlines() if "RUN:" in line]
    assert any(name in line for line in runs), f"{test} does not run {name}"


@pytest.mark.parametrize("name", PASS_NAMES)
def test_a_pass_has_its_heading(name: str) -> None:
    assert f"\n## {name}\n" in (ROOT / "docs" / "passes.md").read_text()


@pytest.mark.parametrize("name", PASS_NAMES)
def test_a_pass_documents_its_contract(name: str) -> None:
    cls = load_pass(name)
    text = inspect.cleandoc(cls.__doc__ or "")
    assert summary(cls).endswith(".")
    for section in ("Requires: ", "Leaves: ", "Does not handle: ", "Example"):
        assert f"\n{section}" in text, f"{name} has no section '{section.strip(': ')}'"
    documented = re.findall(r"^    ([a-z][a-z0-9-]*): ", text.partition("\nOptions:")[2], re.MULTILINE)
    assert documented == [option_name(field) for field in fields(cls)]


@pytest.mark.parametrize("name", PASS_NAMES)
def test_a_pass_file_is_one_thing(name: str) -> None:
    source = (ROOT / "ir_passes" / pass_file(name)).read_text()
    assert len(source.splitlines()) <= 400
    passes = [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and base_names(node) & {"ModulePass", "PipelinePass"}
    ]
    assert passes == [load_pass(name).__name__]


def test_every_pass_is_registered() -> None:
    registered = {pass_file(name) for name in PASSES}
    for path in (ROOT / "ir_passes").rglob("*.py"):
        relative = path.relative_to(ROOT / "ir_passes")
        if relative == Path("base.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and base_names(node) & {"ModulePass", "PipelinePass"}:
                assert relative in registered, f"{node.name} of {relative} is not in the registry"


def test_loading_gives_every_pass_in_order() -> None:
    assert list(load_all()) == list(PASSES)


def test_importing_the_registry_imports_no_pass() -> None:
    module = importlib.import_module("hpir.ir_passes.registry")
    imported = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.ImportFrom)]
    assert {node.module for node in imported} <= {"__future__", "collections.abc", "errors", "base"}


@pytest.mark.parametrize("name", MLIR_PASSES)
def test_named_mlir_passes_exist(name: str) -> None:
    assert name in str(PassRunner(make_context(), expand_pipeline(name)))


def test_suggestions() -> None:
    assert suggest("hp-fsd") == ", did you mean 'hp-fsdp'?"
    assert suggest("canonicalise") == ", did you mean 'canonicalize'?"
    assert suggest("zzzzzz") == ""


@pytest.mark.parametrize("test", TESTS, ids=lambda path: str(path.relative_to(FILECHECK)))
def test_every_check_prefix_is_read(test: Path) -> None:
    text = test.read_text()
    read = set()
    for run in re.findall(r"RUN:(.*)", text):
        for command in re.findall(r"[Ff]ile[Cc]heck ([^|]*)", run):
            given = re.search(r"--?check-prefix(?:es)?[= ]([\w,-]+)", command)
            read |= set(given[1].split(",")) if given else {"CHECK"}
    found = re.findall(rf"^\s*//\s*({_PREFIX})({_SUFFIX})?:", text, re.MULTILINE)
    written = {prefix for prefix, _ in found}
    assert read <= written, "a RUN line reads a prefix that is not there"
    # Prose may begin with a word in capitals; a prefix has a suffix somewhere, or is a slip of one that is read.
    meant = {prefix for prefix, suffix in found if suffix or difflib.get_close_matches(prefix, read, cutoff=0.7)}
    assert meant - {"RUN"} <= read, "no RUN line reads it"


@pytest.mark.parametrize("op", OPS)
def test_an_op_has_its_tests(op: str) -> None:
    assert f'"hp.{op}"' in (FILECHECK / "dialect" / f"{op}_parse_print.mlir").read_text()
    verify = (FILECHECK / "dialect" / f"{op}_verify.mlir").read_text()
    cls = next(cls for cls in hp.Hp.operations if f"hp.{op}" == cls.OPERATION_NAME)
    constraints = re.findall(r"^\s*- (C\d+): ", cls.__doc__ or "", re.MULTILINE)
    assert constraints == [f"C{number + 1}" for number in range(len(constraints))]
    chunks = verify.split("// -----")
    for constraint in constraints:
        broken = [chunk for chunk in chunks if f"// {constraint}: " in chunk]
        assert broken, f"no test breaks {constraint} of hp.{op}"
        assert all("expected-error" in chunk for chunk in broken)
