"""Nested batches and outputs as flat leaves with paths, and back.

A leaf's path joins the keys on the way to it with dots: ``ids``, ``image.pixels``, ``pair.0``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..errors import RuntimeFault
from .program import Named

_NOT_FINITE = (float("inf"), float("-inf"))

BARE_OUTPUT = "output"
"""The path of an output that is one tensor and not a container of some."""


def flatten_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a nested batch by path, in the order met.

    Mappings, lists, tuples (named ones by position) and dataclasses are containers; everything else is a leaf, None
    too.

    Args:
        batch: the keyword inputs of a step.

    Raises:
        RuntimeFault: it is no mapping, or a key is no string or contains a dot.
    """
    if not isinstance(batch, Mapping):
        raise RuntimeFault(f"expected the batch to be a mapping of inputs, got: {type(batch).__name__}")
    leaves: dict[str, Any] = {}
    _collect(batch, "", leaves)
    return leaves


def nest_leaves(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return leaves by path as nested dicts, which `flatten_batch` takes apart into the same paths."""
    nested: dict[str, Any] = {}
    for path, leaf in leaves.items():
        table = nested
        *parents, last = path.split(".")
        for parent in parents:
            table = table.setdefault(parent, {})
        table[last] = leaf
    return nested


def _collect(value: Any, path: str, leaves: dict[str, Any]) -> None:
    found = items_of(value, path)
    if found is None:
        leaves[path] = value
        return
    for key, child in found[1]:
        _collect(child, child_path(path, key), leaves)


def items_of(value: Any, path: str) -> tuple[str, Iterator[tuple[str, Any]]] | None:
    """Return the kind of a container and its children by key, or None for a leaf.

    Args:
        value: of a batch or of outputs.
        path: of `value`, for messages.

    Raises:
        RuntimeFault: while the children are read: a key is no string or contains a dot.
    """
    if value is None or isinstance(value, (torch.Tensor, Named)):
        return None
    if isinstance(value, Mapping):
        return "dict", ((_checked(key, path), child) for key, child in value.items())
    if isinstance(value, (list, tuple)):
        return "list" if isinstance(value, list) else "tuple", (
            (str(index), child) for index, child in enumerate(value)
        )
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "dict", ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    return None


def _checked(key: Any, path: str) -> str:
    where = f"in '{path}'" if path else "at the top"
    if not isinstance(key, str):
        raise RuntimeFault(f"key {key!r} {where} is of type {type(key).__name__}, expected a string")
    if not key or "." in key:
        raise RuntimeFault(f"key '{key}' {where}: expected a name without dots")
    return key


def child_path(path: str, key: str) -> str:
    """Return the path of a child of the container at `path`."""
    return f"{path}.{key}" if path else key


def output_tree(value: Any) -> tuple[Any, dict[str, Any]]:
    """Return the structure of extra outputs, as `Program.output_tree` has it, and their leaves by path.

    A dataclass becomes a dict, a named tuple a tuple. Leaves are tensors; Python numbers and strings are constants of
    the structure.

    Args:
        value: what the step function returned beside the loss.

    Raises:
        RuntimeFault: a value is something else, or a key is no string or contains a dot.

    Example:
        >>> output_tree({"logits": logits, "hidden": [h0, None]})[0]
        {"dict": {"logits": "logits", "hidden": {"list": ["hidden.0", None]}}}
    """
    leaves: dict[str, Any] = {}
    return _structure(value, "", leaves), leaves


def _structure(value: Any, path: str, leaves: dict[str, Any]) -> Any:
    if value is None:
        return None
    found = items_of(value, path)
    if found is None:
        if isinstance(value, (bool, int, float, str)):
            # JSON has no word for infinities.
            return {"float": repr(value)} if value in _NOT_FINITE or value != value else {"constant": value}
        if not isinstance(value, torch.Tensor):
            where = f"output '{path}'" if path else "output"
            raise RuntimeFault(f"{where} is of type {type(value).__name__}, expected tensors, numbers and strings")
        leaves[path or BARE_OUTPUT] = value
        return path or BARE_OUTPUT
    kind, items = found
    trees = {key: _structure(child, child_path(path, key), leaves) for key, child in items}
    return {kind: trees if kind == "dict" else list(trees.values())}


def build_outputs(tree: Any, values: Mapping[str, Any]) -> Any:
    """Return outputs in the structure `tree` with `values` as leaves: the inverse of `output_tree`.

    Raises:
        RuntimeFault: a leaf has no value, or `tree` is malformed.
    """
    if tree is None:
        return None
    if isinstance(tree, str):
        if tree not in values:
            raise RuntimeFault(f"output '{tree}' has no value")
        return values[tree]
    if isinstance(tree, dict) and len(tree) == 1:
        ((kind, children),) = tree.items()
        if kind == "float" and children in ("inf", "-inf", "nan"):
            return float(children)
        if kind == "constant" and isinstance(children, (bool, int, float, str)):
            return children
        if kind == "dict" and isinstance(children, dict):
            return {key: build_outputs(child, values) for key, child in children.items()}
        if kind == "list" and isinstance(children, (list, tuple)):
            return [build_outputs(child, values) for child in children]
        if kind == "tuple" and isinstance(children, (list, tuple)):
            return tuple(build_outputs(child, values) for child in children)
    raise RuntimeFault(f"malformed output tree: {tree!r}")


def encode_tree(tree: Any) -> Any:
    """Return an output tree with its dicts as lists of pairs: in JSON that is sorted their order would be lost."""
    if not isinstance(tree, dict):
        return tree
    ((kind, children),) = tree.items()
    if kind == "dict":
        return {kind: [[key, encode_tree(child)] for key, child in children.items()]}
    return {kind: [encode_tree(child) for child in children]} if kind in ("list", "tuple") else tree


def decode_tree(encoded: Any) -> Any:
    """Return the output tree that `encode_tree` gave; what is none raises whatever it makes Python raise."""
    if not isinstance(encoded, dict):
        return encoded
    ((kind, children),) = encoded.items()
    if kind == "dict":
        return {kind: {str(key): decode_tree(child) for key, child in children}}
    return {kind: [decode_tree(child) for child in children]} if kind in ("list", "tuple") else encoded
