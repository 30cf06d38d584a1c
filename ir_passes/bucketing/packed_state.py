"""Where the shards of a bucket's parameters are to lie at run time, so that what is gathered needs no copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from ...dialect.attributes import i64_attr
from ...dialect.signature import body_of
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
        parameters: the arguments that are.
        places: of those that have one.
    """

    def __init__(self, function: ir.Operation):
        self._function = function
        self._arguments = list(body_of(function).arguments)
        self._attributes: list[dict[str, ir.Attribute]] = [{} for _ in self._arguments]
        if "arg_attrs" in function.attributes:
            dictionaries = map(ir.DictAttr, ir.ArrayAttr(function.attributes["arg_attrs"]))
            self._attributes = [{named.name: named.attr for named in each} for each in dictionaries]
        self.parameters: set[ir.Value] = set()
        self.places: dict[ir.Value, Place] = {}
        for value, attributes in zip(self._arguments, self._attributes, strict=True):
            role, buffer, offset = (attributes.get(name) for name in ("hp.role", "hp.buffer", "hp.offset"))
            if isinstance(role, ir.StringAttr) and role.value == "param":
                self.parameters.add(value)
                if isinstance(buffer, ir.StringAttr) and isinstance(offset, ir.IntegerAttr):
                    self.places[value] = Place(buffer.value, offset.value)

    def write(self, places: Mapping[ir.Value, Place]) -> None:
        """Put places on the arguments."""
        if not places:
            return
        with self._function.context:
            for value, attributes in zip(self._arguments, self._attributes, strict=True):
                if value in places:
                    attributes["hp.buffer"] = ir.StringAttr.get(places[value].buffer)
                    attributes["hp.offset"] = i64_attr(places[value].offset)
            self._function.attributes["arg_attrs"] = ir.ArrayAttr.get([*map(ir.DictAttr.get, self._attributes)])


def place_parameters(buckets: Sequence[Bucket], placed: Mapping[ir.Value, Place]) -> dict[ir.Value, Place]:
    """Decide which parameters share a buffer and in which order, and bring the buckets' members into that order.

    The gathers of the forward come first. In a buffer stands first what a later bucket gathers too: the backward does
    not need every parameter, and what it needs should lie in one stretch.

    Args:
        buckets: of a function, their parameters known.
        placed: parameters that have a place already.

    Returns:
        The places of all parameters that have one.
    """
    places = dict(placed)
    names = {place.buffer for place in places.values()}
    gathers = [bucket for bucket in buckets if bucket.parameters]
    ordered = sorted(range(len(gathers)), key=lambda number: not gathers[number].forward)
    later: dict[ir.Value, list[int]] = {}  # places in `ordered` of the buckets that gather a parameter
    for rank, number in enumerate(ordered):
        for parameter in gathers[number].parameters:
            later.setdefault(parameter, []).append(rank)
    for rank, number in enumerate(ordered):
        bucket = gathers[number]
        parameters = bucket.parameters
        if not any(parameter in places for parameter in parameters) and len(set(parameters)) == len(parameters):
            following = [
                next((other for other in later[parameter] if other > rank), len(ordered)) for parameter in parameters
            ]
            bucket.order.sort(key=lambda position: following[position])
            name = _fresh(bucket.name or "bucket", names)
            places.update(_laid_out(bucket, name))
        elif all(parameter in places for parameter in parameters):
            in_buffer = [places[parameter] for parameter in parameters]
            if len({place.buffer for place in in_buffer}) == 1:
                bucket.order.sort(key=lambda position: in_buffer[position].offset)
    return places


def _laid_out(bucket: Bucket, buffer: str) -> dict[ir.Value, Place]:
    parameters = [bucket.parameters[position] for position in bucket.order]
    types = [type_of(parameter) for parameter in parameters]
    layout = PackedLayout.of(
        [type_.shape for type_ in types],
        [type_.dtype for type_ in types],
        alignment=alignment(types, bucket.cast_to),
    )
    width = DTYPE_BYTES[layout.dtype]
    return {
        parameter: Place(buffer, offset * width) for parameter, offset in zip(parameters, layout.offsets, strict=True)
    }


def _fresh(name: str, taken: set[str]) -> str:
    fresh, number = name, 1
    while fresh in taken:
        number += 1
        fresh = f"{name} ({number})"
    taken.add(fresh)
    return fresh
