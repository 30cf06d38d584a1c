"""Python values of a batch in the IR: the attribute `hp.static_inputs` of a step function, by input path.

A bool, int (of 64 bits), float or string is MLIR's attribute of that kind, and None is `unit`. What MLIR has none for
is a dictionary of one entry: ``{complex = [0.0, 1.0]}``, ``{dtype = "float32"}``, ``{enum = "Mode.FAST"}``,
``{int = "18446744073709551616"}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_mlir import ir

from ..dialect.diagnostics import error_at
from ..runtime.program import Arg, Named

ATTRIBUTE = "hp.static_inputs"


def write_static_inputs(function: ir.Operation, values: Mapping[str, Arg]) -> None:
    """Set the attribute, where there are values; in the current context."""
    if values:
        function.attributes[ATTRIBUTE] = ir.DictAttr.get({name: _attribute(value) for name, value in values.items()})


def read_static_inputs(function: ir.Operation) -> dict[str, Arg]:
    """Return the values by path, empty without the attribute.

    Raises:
        IRError: the attribute is malformed.
    """
    if ATTRIBUTE not in function.attributes:
        return {}
    attribute = function.attributes[ATTRIBUTE]
    if not isinstance(attribute, ir.DictAttr):
        raise error_at(function, f"expected {ATTRIBUTE} to be a dictionary of values by input, got: {attribute}")
    values: dict[str, Arg] = {}
    for entry in attribute:
        found = _value(entry.attr)
        if found is None:
            raise error_at(function, f"{ATTRIBUTE}: expected a Python value for '{entry.name}', got: {entry.attr}")
        values[entry.name] = found[0]
    return values


def _attribute(value: Arg) -> ir.Attribute:
    if value is None:
        return ir.UnitAttr.get()
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
        return ir.DictAttr.get({"int": ir.StringAttr.get(str(value))})
    if isinstance(value, float):
        return ir.FloatAttr.get_f64(value)
    if isinstance(value, complex):
        parts = ir.ArrayAttr.get([ir.FloatAttr.get_f64(value.real), ir.FloatAttr.get_f64(value.imag)])
        return ir.DictAttr.get({"complex": parts})
    if isinstance(value, Named):
        return ir.DictAttr.get({value.kind: ir.StringAttr.get(value.name)})
    assert isinstance(value, str)
    return ir.StringAttr.get(value)


def _value(attribute: Any) -> tuple[Arg] | None:
    if isinstance(attribute, ir.UnitAttr):
        return (None,)
    if isinstance(attribute, (ir.BoolAttr, ir.FloatAttr, ir.StringAttr)):
        return (attribute.value,)
    if isinstance(attribute, ir.IntegerAttr):
        return (int(attribute.value),)
    if not isinstance(attribute, ir.DictAttr) or len(attribute) != 1:
        return None
    kind, inner = attribute[0].name, attribute[0].attr
    if kind == "complex" and isinstance(inner, ir.ArrayAttr) and len(inner) == 2:
        parts = [part.value for part in inner if isinstance(part, ir.FloatAttr)]
        return (complex(*parts),) if len(parts) == 2 else None
    if not isinstance(inner, ir.StringAttr):
        return None
    if kind == "int":
        digits = inner.value.removeprefix("-")
        return (int(inner.value),) if digits.isascii() and digits.isdigit() else None
    return (Named(kind, inner.value),) if kind in ("dtype", "enum") else None
