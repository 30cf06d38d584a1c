"""Which parameters or gradients a collective moves, and how many bytes of each: what reports name."""

from __future__ import annotations

from collections.abc import Mapping

from torch_mlir import ir

from ..dialect.attributes import read_ints, read_strings
from ..dialect.types import tensor_type


class CollectiveMembers:
    """Reads members off collectives and their waits.

    Args:
        first_names: the first name of every parameter by each of its names; a tied one is one member.
    """

    def __init__(self, first_names: Mapping[str, str]):
        self._first_names = first_names
        self._bytes: dict[ir.Value, tuple[int, ...]] = {}  # by the future that a wait is given

    def of(self, op: ir.Operation) -> tuple[str, str, tuple[str, ...], tuple[int, ...]]:
        """Return bucket, unit, members and bytes per member of a collective or its wait; empty if unsaid."""
        attributes = op.attributes
        names = read_strings(attributes["hp.fqn"]) if "hp.fqn" in attributes else None
        members = tuple(dict.fromkeys(self._first_names.get(name, name) for name in names or ()))
        sizes = self._sizes(op)
        if op.name == "hp.wait":
            sizes = self._bytes.get(op.operands[0], sizes)
        elif len(op.results):
            self._bytes[op.results[0]] = sizes
        sizes = sizes if len(sizes) == len(members) else ()
        return _text(op, "hp.bucket"), _text(op, "hp.unit"), members, sizes

    def _sizes(self, op: ir.Operation) -> tuple[int, ...]:
        """Return the bytes per member: what the op says, else those of its operands."""
        if "hp.member_bytes" in op.attributes:
            return read_ints(op.attributes["hp.member_bytes"]) or ()
        types = [tensor_type(operand.type) for operand in op.operands]
        known = [type_.bytes for type_ in types if type_ is not None and None not in type_.shape]
        return tuple(known) if len(known) == len(types) else ()


def _text(op: ir.Operation, key: str) -> str:
    attribute = op.attributes.get(key)
    return str(attribute.value) if isinstance(attribute, ir.StringAttr) else ""
