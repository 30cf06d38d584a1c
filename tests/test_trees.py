"""Nested batches and outputs as flat leaves, and back."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from hpir.errors import RuntimeFault
from hpir.runtime.trees import build_outputs, decode_tree, encode_tree, flatten_batch, nest_leaves, output_tree

T = torch.zeros(2)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Sample:
    pixels: Any
    label: Any = None


class Encoding(UserDict[str, Any]):
    """A mapping that is no dict, as tokenizers return it."""


@pytest.mark.parametrize(
    ("batch", "leaves"),
    [
        ({}, {}),
        ({"ids": 1, "mask": 2}, {"ids": 1, "mask": 2}),
        ({"image": {"pixels": 1, "sizes": {"h": 2}}}, {"image.pixels": 1, "image.sizes.h": 2}),
        ({"pair": (1, 2), "list": [3, [4]]}, {"pair.0": 1, "pair.1": 2, "list.0": 3, "list.1.0": 4}),
        ({"named": Pair(1, Pair(2, 3))}, {"named.0": 1, "named.1.0": 2, "named.1.1": 3}),
        ({"sample": Sample(1, {"x": 2})}, {"sample.pixels": 1, "sample.label.x": 2}),
        (
            {"a": None, "b": [None, 1], "sample": Sample(2)},
            {"a": None, "b.0": None, "b.1": 1, "sample.pixels": 2, "sample.label": None},
        ),
        ({"text": Encoding(ids=1, mask=2)}, {"text.ids": 1, "text.mask": 2}),
        (Encoding(ids=1), {"ids": 1}),
        ({"flag": True, "rate": 0.5, "kind": Sample}, {"flag": True, "rate": 0.5, "kind": Sample}),
        ({"empty": {}, "none": [], "x": 1}, {"x": 1}),
    ],
)
def test_flatten_batch(batch: Mapping[str, Any], leaves: dict[str, Any]) -> None:
    assert flatten_batch(batch) == leaves


def test_flatten_batch_keeps_the_order_of_insertion() -> None:
    batch = OrderedDict([("z", 1), ("a", {"y": 2, "b": 3}), ("m", [4])])
    assert list(flatten_batch(batch)) == ["z", "a.y", "a.b", "m.0"]


def test_flatten_batch_keeps_tensors_as_they_are() -> None:
    tensor = torch.zeros(3, 2)
    assert flatten_batch({"x": {"y": tensor}})["x.y"] is tensor


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"a.b": 1}, "key 'a.b' at the top: expected a name without dots"),
        ({"x": [{"a.b": 1}]}, "key 'a.b' in 'x.0': expected a name without dots"),
        ({"": 1}, "key '' at the top: expected a name without dots"),
        ({"x": {0: 1}}, "key 0 in 'x' is of type int, expected a string"),
        ({None: 1}, "key None at the top is of type NoneType, expected a string"),
    ],
)
def test_flatten_batch_refuses_keys(batch: Any, message: str) -> None:
    with pytest.raises(RuntimeFault) as caught:
        flatten_batch(batch)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "tree", "leaves"),
    [
        (None, None, {}),
        (T, "output", {"output": T}),
        ({"a": T, "b": {"c": T}}, {"dict": {"a": "a", "b": {"dict": {"c": "b.c"}}}}, {"a": T, "b.c": T}),
        ([T, None, (T,)], {"list": ["0", None, {"tuple": ["2.0"]}]}, {"0": T, "2.0": T}),
        (Pair(T, 2), {"tuple": ["0", {"constant": 2}]}, {"0": T}),
        (Sample(T), {"dict": {"pixels": "pixels", "label": None}}, {"pixels": T}),
        (Encoding(ids=T), {"dict": {"ids": "ids"}}, {"ids": T}),
        (
            {"a": True, "b": "text", "c": 0.1, "d": math.inf, "e": math.nan},
            {
                "dict": {
                    "a": {"constant": True},
                    "b": {"constant": "text"},
                    "c": {"constant": 0.1},
                    "d": {"float": "inf"},
                    "e": {"float": "nan"},
                }
            },
            {},
        ),
        ({}, {"dict": {}}, {}),
        ((), {"tuple": []}, {}),
    ],
)
def test_output_tree(value: Any, tree: Any, leaves: dict[str, Any]) -> None:
    assert output_tree(value) == (tree, leaves)


@pytest.mark.parametrize(
    "value",
    [
        None,
        2,
        "text",
        -math.inf,
        T,
        {"b": T, "a": {"d": 2, "c": None}},
        [1, (T, [3.5, False])],
        (),
        {},
        {"x": ()},
        ({"y": [None]},),
    ],
)
def test_build_outputs_is_the_inverse(value: Any) -> None:
    tree, leaves = output_tree(value)
    built = build_outputs(decode_tree(json.loads(json.dumps(encode_tree(tree), sort_keys=True))), leaves)
    assert built is value or built == value
    assert type(built) is type(value)
    assert not isinstance(value, dict) or list(built) == list(value)


def test_build_outputs_turns_named_tuples_and_dataclasses_into_plain_ones() -> None:
    tree, leaves = output_tree({"pair": Pair(T, 2), "sample": Sample(3, T)})
    assert build_outputs(tree, leaves) == {"pair": (T, 2), "sample": {"pixels": 3, "label": T}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {"b": 1j}}, "output 'a.b' is of type complex, expected tensors, numbers and strings"),
        (object(), "output is of type object, expected tensors, numbers and strings"),
        ({"a.b": 1}, "key 'a.b' at the top: expected a name without dots"),
        ({1: 1}, "key 1 at the top is of type int, expected a string"),
    ],
)
def test_output_tree_refuses(value: Any, message: str) -> None:
    with pytest.raises(RuntimeFault) as caught:
        output_tree(value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("b", "output 'b' has no value"),
        ({"dict": {"x": "b"}}, "output 'b' has no value"),
        ({"set": ["a"]}, "malformed output tree"),
        ({"dict": ["a"]}, "malformed output tree"),
        ({"list": {"a": "a"}}, "malformed output tree"),
        ({"dict": {}, "list": []}, "malformed output tree"),
        (3, "malformed output tree"),
    ],
)
def test_build_outputs_refuses(tree: Any, message: str) -> None:
    with pytest.raises(RuntimeFault, match=message):
        build_outputs(tree, {"a": 1})


def test_nesting_gives_back_the_same_paths() -> None:
    leaves = {"ids": 1, "image.pixels": 2, "image.sizes.h": 3, "pair.0": 4, "pair.1": 5}
    assert flatten_batch(nest_leaves(leaves)) == leaves
    assert nest_leaves({}) == {}
