"""Where the shards of a bucket's parameters are to lie at run time, so that what is gathered needs no copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from ...dialect.attributes import i64_attr, read_strings
from ...dialect.signature import body_of, function_name
from ...dialect.types import DTYPE_BYTES, TensorType
from ...packed_layout import PackedLayout
from ..build import type_of
from .buckets import Bucket

_ALIGNMENT = 16
"""Bytes of which each member starts at a multiple: what vector units and GPUs load at once."""


@dataclass(frozen=True)
class Place:
    """A parameter's shard lies in `buffer` from byte `offset` on."""

    buffer: str
    offset: int


def alignment(types: Sequence[TensorType], cast_to: str = "") -> int:
    """Return the alignment of members in a packed tensor, in its elements; they stay aligned when it is cast."""
    dtypes = {type_.dtype for type_ in types}
    if len(dtypes) > 1:
        return _ALIGNMENT  # counted in bytes
    widths = [DTYPE_BYTES[dtype] for dtype in (*dtypes, cast_to) if dtype]
    return max(1, _ALIGNMENT // min(widths))


class StateLayout:
    """Which arguments of a function are parameters, and where they lie.

    Args:
        function: a step function.

    Attributes:
        parameters: the arguments that are, and the first name of each.
        places: of those that have one, by name.
    """

    def __init__(self, function: ir.Operation):
        self._function = function
        self._arguments = list(body_of(function).arguments)
        self._attributes: list[dict[str, ir.Attribute]] = [{} for _ in self._arguments]
        if "arg_attrs" in function.attributes:
            dictionaries = map(ir.DictAttr, ir.ArrayAttr(function.attributes["arg_attrs"]))
            self._attributes = [{named.name: named.attr for named in each} for each in dictionaries]
        self.parameters: dict[ir.Value, str] = {}
        self.places: dict[str, Place] = {}
        for number, (value, attributes) in enumerate(zip(self._arguments, self._attributes, strict=True)):
            role, buffer, offset = (attributes.get(name) for name in ("hp.role", "hp.buffer", "hp.offset"))
            if isinstance(role, ir.StringAttr) and role.value == "param":
                names = read_strings(attributes["hp.fqn"]) if "hp.fqn" in attributes else None
                name = self.parameters[value] = names[0] if names else f"@{function_name(function)} {number}"
                if isinstance(buffer, ir.StringAttr) and isinstance(offset, ir.IntegerAttr):
                    self.places[name] = Place(buffer.value, offset.value)

    def write(self, places: Mapping[str, Place]) -> None:
        """Put places on the arguments."""
        names = [self.parameters.get(value, "") for value in self._arguments]
        placed = [(at, places[name]) for at, name in enumerate(names) if name in places]
        if not placed:
            return
        with self._function.context:
            for at, place in placed:
                self._attributes[at]["hp.buffer"] = ir.StringAttr.get(place.buffer)
                self._attributes[at]["hp.offset"] = i64_attr(place.offset)
            self._function.attributes["arg_attrs"] = ir.ArrayAttr.get([*map(ir.DictAttr.get, self._attributes)])


def place_parameters(
    buckets: Sequence[Bucket], names: Mapping[ir.Value, str], placed: Mapping[str, Place]
) -> dict[str, Place]:
    """Decide which parameters share a buffer and in which order, and bring the buckets' members into that order.

    A parameter that several functions of a module take has one place. The gathers of the forward come first. In a
    buffer stands first what a later bucket gathers too: the backward does not need every parameter, and what it needs
    should lie in one stretch.

    Args:
        buckets: of all functions, their parameters known.
        names: of the parameters.
        placed: parameters that have a place already, by name.

    Returns:
        The places of all parameters that have one, by name.
    """
    places = dict(placed)
    taken = {place.buffer for place in places.values()}
    gathers = [bucket for bucket in buckets if bucket.parameters]
    ordered = sorted(range(len(gathers)), key=lambda number: not gathers[number].forward)
    later: dict[str, list[int]] = {}  # places in `ordered` of the buckets that gather a parameter
    for rank, number in enumerate(ordered):
        for value in gathers[number].parameters:
            later.setdefault(names[value], []).append(rank)
    for rank, number in enumerate(ordered):
        bucket = gathers[number]
        parameters = [names[value] for value in bucket.parameters]
        if not any(parameter in places for parameter in parameters) and len(set(parameters)) == len(parameters):
            following = [
                next((other for other in later[parameter] if other > rank), len(ordered)) for parameter in parameters
            ]
            bucket.order.sort(key=lambda position: following[position])
            buffer = _fresh(bucket.name or "bucket", taken)
            offsets = _laid_out(bucket)
            places.update(
                (parameters[position], Place(buffer, at)) for position, at in zip(bucket.order, offsets, strict=True)
            )
        elif all(parameter in places for parameter in parameters):
            in_buffer = [places[parameter] for parameter in parameters]
            if len({place.buffer for place in in_buffer}) == 1:
                bucket.order.sort(key=lambda position: in_buffer[position].offset)
    return places


def _laid_out(bucket: Bucket) -> list[int]:
    """Return where each parameter starts, in bytes, in the bucket's order."""
    types = [type_of(bucket.parameters[position]) for position in bucket.order]
    layout = PackedLayout.of(
        [type_.shape for type_ in types],
        [type_.dtype for type_ in types],
        alignment=alignment(types, bucket.cast_to),
    )
    width = DTYPE_BYTES[layout.dtype]
    return [offset * width for offset in layout.offsets]


def _fresh(name: str, taken: set[str]) -> str:
    fresh, number = name, 1
    while fresh in taken:
        number += 1
        fresh = f"{name} ({number})"
    taken.add(fresh)
    return fresh
