"""Putting flat leaves back into the structure of a batch, as objects of the user's own types.

What is returned here runs three times: on the whole batch's first rows, on fake tensors, and under dynamo, which traces
through it and takes no dataclass and no mapping but dict as an argument. So objects are made inside the trace: without
their constructor, as copying would make them, so that nothing a constructor does (checks of values, defaults) is done
twice. A dataclass that keeps more than its fields is the exception: its constructor makes the rest, from the fields.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...errors import CaptureError
from ...runtime.trees import child_path, items_of

Build = Callable[[Sequence[Any]], Any]
"""Makes a value from the tensors of a batch, in the order of their paths."""


def rebuilder(
    batch: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], source: str
) -> Callable[[Sequence[Any]], dict[str, Any]]:
    """Return the function that makes the keyword arguments of a step from tensors in the place of those of `batch`.

    Args:
        batch: as given by the user.
        tensors: its tensors by path, in the order in which the function takes others. All else stays as it is.
        source: ``file:line`` of the step function.

    Raises:
        CaptureError: a container of `batch` cannot be made again.
    """
    plan = _Plan({path: position for position, path in enumerate(tensors)}, source)
    parts = [(key, plan.value(item, key)) for key, item in batch.items()]
    leaves = list(tensors.values())
    for key, build in parts:
        try:
            build(leaves)
        except _CONSTRUCTION_ERRORS as error:
            raise CaptureError(
                f"{source}: input '{key}': an object of type {type(batch[key]).__name__} cannot be made again "
                f"({error}): give dicts, lists, tuples or dataclasses"
            ) from None
    return lambda leaves: {key: build(leaves) for key, build in parts}


_CONSTRUCTION_ERRORS = (TypeError, ValueError, AttributeError, LookupError, AssertionError, RuntimeError)


class _Plan:
    """Makes the functions that make the parts of a batch."""

    def __init__(self, positions: Mapping[str, int], source: str):
        self._positions = positions
        self._source = source

    def value(self, value: Any, path: str) -> Build:
        """Return what makes a part of the batch: a leaf or a container."""
        found = items_of(value, path)
        if found is None:
            return self._leaf(value, path)
        parts = {key: (item, self.value(item, child_path(path, key))) for key, item in found[1]}
        kind = type(value)
        builds = [build for _, build in parts.values()]
        if kind is dict:
            return _dict(list(zip(parts, builds, strict=True)))
        if kind is list:
            return lambda leaves: [build(leaves) for build in builds]
        if isinstance(value, tuple):
            return _tuple(kind, builds)
        known = {id(item): build for item, build in parts.values()}
        if isinstance(value, list):
            return _list(kind, builds, self._attributes(value, known, path))
        if isinstance(value, dict):
            items = list(zip(parts, builds, strict=True))
            if isinstance(value, collections.defaultdict) and kind is collections.defaultdict:
                return _default_dict(value.default_factory, items)
            make = _ordered if isinstance(value, collections.OrderedDict) else _dict_like
            return make(kind, items, self._attributes(value, known, path))
        if dataclasses.is_dataclass(value) and not isinstance(value, Mapping):
            fields = list(zip(parts, builds, strict=True))
            if _keeps_more(value):
                return self._constructed(value, fields, path)
            return _object(kind, fields)
        return _object(kind, self._attributes(value, known, path))

    def _leaf(self, value: Any, path: str) -> Build:
        return _at(self._positions[path]) if path in self._positions else _same(value)

    def _attributes(self, value: Any, known: Mapping[int, Build], path: str) -> list[tuple[str, Build]]:
        """Return what makes the attributes of an object, in which parts of the batch are found by identity."""
        attributes = [(name, getattr(value, name)) for name in _own_names(value)]
        attributes += [(name, getattr(value, name)) for name in _slots(type(value)) if hasattr(value, name)]
        return [(name, self._inner(item, known, f"attribute '{name}' of '{path}'")) for name, item in attributes]

    def _inner(self, value: Any, known: Mapping[int, Build], where: str) -> Build:
        if id(value) in known:
            return known[id(value)]
        if isinstance(value, torch.Tensor):
            raise CaptureError(
                f"{self._source}: {where} is a tensor that is no item of it: give a plain dict of what the step uses"
            )
        if type(value) is dict:
            return _dict([(key, self._inner(item, known, where)) for key, item in value.items()])
        if type(value) is list:
            builds = [self._inner(item, known, where) for item in value]
            return lambda leaves: [build(leaves) for build in builds]
        if type(value) is tuple:
            return _tuple(tuple, [self._inner(item, known, where) for item in value])
        return _same(value)

    def _constructed(self, value: Any, fields: Sequence[tuple[str, Build]], path: str) -> Build:
        """Return what calls a dataclass's constructor, once that is known to give the same fields."""
        kind = type(value)
        taken = {field.name for field in dataclasses.fields(value) if field.init}
        try:
            again = kind(**{name: getattr(value, name) for name in taken})
            same = all(_equal(getattr(again, name), getattr(value, name)) for name in _own_names(value))
        except _CONSTRUCTION_ERRORS:
            same = False
        if not same:
            extra = next(name for name in _own_names(value) if name not in {f.name for f in dataclasses.fields(value)})
            raise CaptureError(
                f"{self._source}: input '{path}' is a {kind.__name__} that keeps '{extra}', which is no field, and "
                "whose constructor does not make it again from the fields: make it a field or a property"
            )
        parts = [(name, build) for name, build in fields if name in taken]
        return lambda leaves: kind(**{name: build(leaves) for name, build in parts})


def _equal(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first.shape == second.shape and first.dtype == second.dtype and torch.equal(first, second)
    return type(first) is type(second) and bool(first == second)


def _keeps_more(value: Any) -> bool:
    fields = {field.name for field in dataclasses.fields(value)}
    return any(name not in fields for name in _own_names(value))


def _own_names(value: Any) -> list[str]:
    """Return the names an object keeps in its dictionary; what is only a cache of a property is left out."""
    return [
        name
        for name in getattr(value, "__dict__", {})
        if not isinstance(getattr(type(value), name, None), functools.cached_property)
    ]


def _slots(kind: type) -> list[str]:
    names: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _at(position: int) -> Build:
    return lambda leaves: leaves[position]


def _same(value: Any) -> Build:
    return lambda leaves: value


def _dict(parts: Sequence[tuple[Any, Build]]) -> Build:
    return lambda leaves: {key: build(leaves) for key, build in parts}


def _tuple(kind: type, builds: Sequence[Build]) -> Build:
    if hasattr(kind, "_fields"):
        return lambda leaves: kind(*[build(leaves) for build in builds])
    if kind is tuple:
        return lambda leaves: tuple([build(leaves) for build in builds])
    return lambda leaves: kind([build(leaves) for build in builds])


def _object(kind: type, attributes: Sequence[tuple[str, Build]]) -> Build:
    def make(leaves: Sequence[Any]) -> Any:
        made: Any = object.__new__(kind)
        for name, build in attributes:
            object.__setattr__(made, name, build(leaves))
        return made

    return make


# What puts items into a container: a dict's past what its class has made of that, which dynamo cannot do for a list.
# Each is spelled out, because dynamo knows these methods by name only.


def _list(kind: Any, items: Sequence[Build], attributes: Sequence[tuple[str, Build]]) -> Build:
    def make(leaves: Sequence[Any]) -> Any:
        made: list[Any] = kind.__new__(kind)
        for item in items:
            made.append(item(leaves))
        for name, build in attributes:
            object.__setattr__(made, name, build(leaves))
        return made

    return make


def _dict_like(kind: Any, items: Sequence[tuple[Any, Build]], attributes: Sequence[tuple[str, Build]]) -> Build:
    def make(leaves: Sequence[Any]) -> Any:
        made = kind.__new__(kind)
        for key, item in items:
            dict.__setitem__(made, key, item(leaves))
        for name, build in attributes:
            object.__setattr__(made, name, build(leaves))
        return made

    return make


def _ordered(kind: Any, items: Sequence[tuple[Any, Build]], attributes: Sequence[tuple[str, Build]]) -> Build:
    def make(leaves: Sequence[Any]) -> Any:
        made = kind.__new__(kind)
        for key, item in items:
            collections.OrderedDict.__setitem__(made, key, item(leaves))
        for name, build in attributes:
            object.__setattr__(made, name, build(leaves))
        return made

    return make


def _default_dict(factory: Any, items: Sequence[tuple[Any, Build]]) -> Build:
    def make(leaves: Sequence[Any]) -> Any:
        made: dict[Any, Any] = collections.defaultdict(factory)
        for key, item in items:
            made[key] = item(leaves)
        return made

    return make
