"""Textual pipelines: what parses to what, and where messages point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from torch_mlir import ir

from hpir.dialect.diagnostics import IRError
from hpir.errors import PassError
from hpir.ir_passes.base import ModulePass
from hpir.ir_passes.options import build_pass, describe_options, spell_pass
from hpir.ir_passes.pipeline_text import PipelineItem, parse_flag, parse_pipeline


@dataclass(frozen=True)
class Sample(ModulePass):
    """A pass with an option of each kind."""

    name: ClassVar[str] = "hp-sample"

    axes: tuple[str, ...] = ()
    file: str = ""
    prefetch: int = 1
    cap_mb: float = 64.0
    strict: bool = False
    reshard_after_forward: bool = True
    limit: int | None = None

    def run(self, module: ir.Operation) -> None:
        raise AssertionError("only its options are looked at")


@dataclass(frozen=True)
class Needy(ModulePass):
    """A pass that checks its option."""

    name: ClassVar[str] = "hp-needy"

    level: str

    def __post_init__(self) -> None:
        if self.level != "joint":
            raise PassError(f"option 'level' names no level: '{self.level}'")

    def run(self, module: ir.Operation) -> None:
        raise AssertionError("only its options are looked at")


def sample(options: str) -> ModulePass:
    (item,) = parse_pipeline(f"hp-sample{{{options}}}")
    built = build_pass(Sample, item)
    assert isinstance(built, ModulePass)
    return built


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  ", []),
        ("cse", ["cse"]),
        (" cse , canonicalize\n", ["cse", "canonicalize"]),
        ("hp-fsdp{axes=dp}", ["hp-fsdp{axes=dp}"]),
        ("hp-fsdp {axes=dp}", ["hp-fsdp{axes=dp}"]),
        ("hp-simplify{}", ["hp-simplify"]),
        ("hp-fsdp{axes={a,b} units='x, y'},cse", ["hp-fsdp{axes={a,b} units='x, y'}", "cse"]),
        ('hp-plan{file="a}b,(c.toml"},cse', ['hp-plan{file="a}b,(c.toml"}', "cse"]),
        ("func.func(cse,canonicalize{a=1}),cse", ["func.func(cse,canonicalize{a=1})", "cse"]),
        ("builtin.module(cse,func.func(cse))", ["cse", "func.func(cse)"]),
        ("builtin.module()", []),
        ("cse,builtin.module(cse),cse", ["cse", "cse", "cse"]),
        ("builtin.module(builtin.module(cse))", ["builtin.module(cse)"]),
        ("any(any(any()))", ["any(any(any()))"]),
    ],
)
def test_pipeline(text: str, expected: list[str]) -> None:
    assert [str(item) for item in parse_pipeline(text)] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cse,", "pipeline:1:5: error: expected a pass name, got: the end"),
        (",cse", "pipeline:1:1: error: expected a pass name, got: ','"),
        ("cse canonicalize", "pipeline:1:5: error: expected ',' or the end of the pipeline, got: 'c'"),
        ("cse)", "pipeline:1:4: error: expected ',' or the end of the pipeline, got: ')'"),
        ("func.func(cse", "pipeline:1:1: error: the '(' after 'func.func' is never closed"),
        ("func.func(cse,)", "pipeline:1:15: error: expected a pass name, got: ')'"),
        ("hp-fsdp{axes=dp", "pipeline:1:8: error: '{' is never closed"),
        ("hp-fsdp{axes='dp}", "pipeline:1:8: error: '{' is never closed"),
        ("{axes=dp}", "pipeline:1:1: error: expected a pass name, got: '{'"),
        ("hp-fsdp{axes=dp}x", "pipeline:1:17: error: expected ',' or the end of the pipeline, got: 'x'"),
    ],
)
def test_malformed_pipeline(text: str, message: str) -> None:
    with pytest.raises(IRError) as caught:
        parse_pipeline(text)
    assert str(caught.value) == message


def test_deep_nesting_is_no_recursion() -> None:
    depth = 20_000
    (item,) = parse_pipeline("any(" * depth + "cse" + ")" * depth)
    levels = 0
    while item.nested:
        (item,) = item.nested
        levels += 1
    assert (levels, item.name) == (depth, "cse")
    (braces,) = parse_pipeline("cse{" + "{" * depth + "}" * depth + "}")
    assert len(braces.options) == 2 * depth


@pytest.mark.parametrize(
    ("flag", "name", "options", "column"),
    [
        ("--cse", "cse", "", None),
        ("-cse", "cse", "", None),
        ("--hp-fsdp=axes=dp units=a", "hp-fsdp", "axes=dp units=a", 11),
        ("--hp-fsdp={axes=dp}", "hp-fsdp", "axes=dp", 12),
        ("--hp-fsdp{axes=dp}", "hp-fsdp", "axes=dp", 11),
    ],
)
def test_flag(flag: str, name: str, options: str, column: int | None) -> None:
    item = parse_flag(flag)
    assert (item.name, item.options, item.nested) == (name, options, None)
    assert item.place.source == flag[: flag.index(name) + len(name)]
    assert (item.options_place.column if item.options_place else None) == column


@pytest.mark.parametrize("flag", ["--cse,canonicalize", "--func.func(cse)"])
def test_flag_is_one_pass(flag: str) -> None:
    with pytest.raises(IRError, match="expected one pass per flag; a pipeline goes into --pass-pipeline"):
        parse_flag(flag)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", Sample()),
        ("axes=dp", Sample(axes=("dp",))),
        ("axes=", Sample()),
        ("axes={}", Sample()),
        ("axes=pp:2,dp:2", Sample(axes=("pp:2", "dp:2"))),
        ("axes={pp, dp}", Sample(axes=("pp", "dp"))),
        ("axes='pp,dp'", Sample(axes=("pp", "dp"))),
        ("axes=\"a b\",'c,d',e", Sample(axes=("a b", "c,d", "e"))),
        ("axes=layers.[0-3],x{1,2}y", Sample(axes=("layers.[0-3]", "x{1,2}y"))),
        ("file=plans/a.toml", Sample(file="plans/a.toml")),
        ("file='a b.toml'", Sample(file="a b.toml")),
        ("file=a=b", Sample(file="a=b")),
        ("prefetch=-3", Sample(prefetch=-3)),
        ("cap-mb=0.5", Sample(cap_mb=0.5)),
        ("cap-mb=2", Sample(cap_mb=2.0)),
        ("strict", Sample(strict=True)),
        ("strict=true", Sample(strict=True)),
        ("strict=0", Sample()),
        ("reshard-after-forward=false", Sample(reshard_after_forward=False)),
        ("limit=7", Sample(limit=7)),
        ("strict  axes=a\n prefetch=2 ", Sample(axes=("a",), prefetch=2, strict=True)),
    ],
)
def test_options(options: str, expected: Sample) -> None:
    assert sample(options) == expected
    # Spelled again, a pass reads as itself.
    (item,) = parse_pipeline(spell_pass(expected))
    assert build_pass(Sample, item) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("axis=dp", "pipeline:1:11: error: unknown option 'axis' of hp-sample, did you mean 'axes'?"),
        ("axes=a cap_mb=3", "pipeline:1:18: error: unknown option 'cap_mb' of hp-sample, did you mean 'cap-mb'?"),
        ("axes=a axes=b", "pipeline:1:18: error: option 'axes' of hp-sample is given twice"),
        ("axes", "pipeline:1:11: error: option 'axes' of hp-sample expects a comma-separated list, got no value"),
        ("prefetch=two", "pipeline:1:11: error: option 'prefetch' of hp-sample expects an integer, got: 'two'"),
        ("prefetch=1.5", "pipeline:1:11: error: option 'prefetch' of hp-sample expects an integer, got: '1.5'"),
        ("cap-mb=nan", "pipeline:1:11: error: option 'cap-mb' of hp-sample expects a number, got: 'nan'"),
        ("file=''", "pipeline:1:11: error: option 'file' of hp-sample expects text, got: ''"),
        ("file=", "pipeline:1:11: error: option 'file' of hp-sample expects text, got: ''"),
        ("file=' '", "pipeline:1:11: error: option 'file' of hp-sample expects text, got: ' '"),
        ("strict=maybe", "pipeline:1:11: error: option 'strict' of hp-sample expects true or false, got: 'maybe'"),
        ("=3", "pipeline:1:11: error: expected an option's name, got: '='"),
    ],
)
def test_bad_options(options: str, message: str) -> None:
    with pytest.raises(IRError) as caught:
        sample(options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cse,hp-needy", "pipeline:1:5: error: hp-needy needs option 'level', text"),
        ("hp-needy{level=spdm}", "pipeline:1:10: error: hp-needy: option 'level' names no level: 'spdm'"),
    ],
)
def test_a_pass_that_checks_its_option(text: str, message: str) -> None:
    item = parse_pipeline(text)[-1]
    with pytest.raises(IRError) as caught:
        build_pass(Needy, item)
    assert str(caught.value) == message


def test_descriptions() -> None:
    assert describe_options(Sample) == [
        "axes=<list>",
        "file=<text>",
        "prefetch=<integer> (default: 1)",
        "cap-mb=<number> (default: 64.0)",
        "strict",
        "reshard-after-forward=<true|false> (default: true)",
        "limit=<integer>",
    ]


def test_an_item_has_no_options_by_default() -> None:
    item = parse_pipeline("cse")[0]
    assert isinstance(item, PipelineItem)
    assert (item.options, item.nested) == ("", None)
