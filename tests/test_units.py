"""Module patterns: what they match, and which unit a parameter falls to."""

from __future__ import annotations

import time

import pytest

from hpir.ir_passes.sharding.units import (
    ROOT,
    ancestors,
    assign_units,
    innermost_match,
    matches,
    matches_any,
    unmatched_patterns,
)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("layers.*", "layers.0", True),
        ("layers.*", "layers.0.attn", False),
        ("layers.*", "layers", False),
        ("layers", "layers", True),
        ("layers.?", "layers.12", False),
        ("layers.[01]", "layers.1", True),
        ("layers.[01]", "layers.2", False),
        ("*.attn", "layers.attn", True),
        ("*.attn", "layers.0.attn", False),
        ("**.attn", "layers.0.attn", True),
        ("**.attn", "attn", True),
        ("**", "layers.0", True),
        ("layers.**", "layers", True),
        ("layers.**", "layers.0.attn.wq", True),
        ("layers.**.wq", "layers.0.attn.wq", True),
        ("layers.**.wq", "layers.0.attn.wk", False),
        ("**.a.**.b", "a.a.c.b", True),
        ("**.a.b.**.c", "a.a.b.c", True),
        ("**.a.*.b", "a.a.b", True),
        ("**.x.**", "a.b.c", False),
        ("Layers.*", "layers.0", False),
        ("", "layers", False),
        ("layers..w", "layers.0.w", False),
    ],
)
def test_patterns_match_component_by_component(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


def test_ancestors_go_from_the_name_outwards() -> None:
    assert ancestors("layers.0.attn.weight") == ["layers.0.attn.weight", "layers.0.attn", "layers.0", "layers"]
    assert ancestors("weight") == ["weight"]


def test_the_innermost_match_is_the_unit() -> None:
    units = ["layers.*", "layers.*.attn"]
    assert innermost_match(["layers.0.attn.wq.weight"], units) == "layers.0.attn"
    assert innermost_match(["layers.0.mlp.up.weight"], units) == "layers.0"
    assert innermost_match(["embed.weight"], units) is None


def test_a_pattern_may_name_a_parameter() -> None:
    assert innermost_match(["layers.0.scale"], ["layers.*", "layers.*.scale"]) == "layers.0.scale"


def test_any_name_of_a_tied_parameter_counts() -> None:
    assert innermost_match(["embed.weight", "head.weight"], ["head"]) == "head"
    # The longest match wins whichever name it is on; of equally long ones, the earlier name's.
    assert innermost_match(["embed.weight", "lm.head.weight"], ["embed", "lm.head"]) == "lm.head"
    assert innermost_match(["embed.weight", "head.weight"], ["head", "embed"]) == "embed"
    assert matches_any(["embed.weight", "head.weight"], ["head.weight"])
    assert not matches_any(["embed.weight", "head.weight"], ["tail"])


def test_what_no_pattern_claims_is_the_root_unit() -> None:
    parameters = [["layers.0.w"], ["layers.1.w"], ["embed.w"]]
    assert assign_units(parameters, ["layers.*"]) == ["layers.0", "layers.1", ROOT]
    assert assign_units(parameters, []) == [ROOT, ROOT, ROOT]


def test_a_pattern_without_a_match_names_the_nearest() -> None:
    parameters = [["layers.0.attn.w"], ["layers.1.attn.w"], ["embed.w", "head.w"]]
    assert unmatched_patterns(parameters, ["layers.*", "head", "**.w"]) == []
    assert unmatched_patterns(parameters, ["embde"]) == [("embde", ", did you mean 'embed' or 'embed.w'?")]
    ((pattern, hint),) = unmatched_patterns(parameters, ["embed", "layers.*.atn"])
    assert pattern == "layers.*.atn" and "'layers.0.attn'" in hint
    assert unmatched_patterns(parameters, ["qqqqqq"]) == [("qqqqqq", "")]


def test_many_components_take_no_time() -> None:
    name = ".".join(["a"] * 60)
    start = time.perf_counter()
    assert not matches(".".join(["**", "a"] * 20) + ".b", name)
    assert time.perf_counter() - start < 1
