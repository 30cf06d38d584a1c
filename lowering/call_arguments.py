"""Operands of a torch op in the IR as the arguments its operator is called with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_mlir import ir

from ..dialect.diagnostics import error_at
from ..dialect.types import TORCH_DTYPE_CODES
from ..runtime.program import Arg, Named

_DTYPE_NAMES = {code: name for name, code in TORCH_DTYPE_CODES.items()}
_LAYOUTS = {0: "strided", 1: "sparse_coo"}
_MEMORY_FORMATS = {0: "contiguous_format", 1: "preserve_format", 2: "channels_last", 3: "channels_last_3d"}

_plans: dict[Any, tuple[tuple[str, bool, str, bool, Any], ...]] = {}


def _plan(operator: Any) -> tuple[tuple[str, bool, str, bool, Any], ...]:
    """Return (name, keyword only, kind of enumeration, has default, default) per schema argument."""
    if operator not in _plans:
        rows = []
        for argument in operator._schema.arguments:
            kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
            rows.append(
                (argument.name, argument.kwarg_only, kind, argument.has_default_value(), argument.default_value)
            )
        _plans[operator] = tuple(rows)
    return _plans[operator]


def call_arguments(op: ir.Operation, operator: Any, operands: Sequence[Arg]) -> tuple[tuple[Arg, ...], dict[str, Arg]]:
    """Match operands with the operator's schema: enumerations by name, defaults left out, devices made neutral."""
    plan = _plan(operator)
    if len(operands) != len(plan):
        raise error_at(op, f"expected {len(plan)} operands for '{operator}', got: {len(operands)}")
    args: list[Arg] = []
    kwargs: dict[str, Arg] = {}
    factory = not any(kind == "Tensor" or kind.startswith("List[Tensor") for _, _, kind, _, _ in plan)
    required = 0
    for (name, keyword_only, kind, has_default, default), operand in zip(plan, operands, strict=True):
        value = _enumeration(kind, operand)
        if kind == "Device" and factory:
            value = Named("device", "")
        is_default = has_default and _is_default(value, default)
        if keyword_only:
            if not is_default:
                kwargs[name] = value
        else:
            args.append(value)
            if not is_default:
                required = len(args)
    return tuple(args[:required]), kwargs


def _is_default(value: Arg, default: Any) -> bool:
    if isinstance(default, list):
        return isinstance(value, tuple) and list(value) == default
    return type(value) is type(default) and value == default


def _enumeration(kind: str, value: Arg) -> Arg:
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if kind == "ScalarType" and value in _DTYPE_NAMES:
        return Named("dtype", _DTYPE_NAMES[value])
    if kind == "Layout" and value in _LAYOUTS:
        return Named("layout", _LAYOUTS[value])
    if kind == "MemoryFormat" and value in _MEMORY_FORMATS:
        return Named("memory_format", _MEMORY_FORMATS[value])
    return value
