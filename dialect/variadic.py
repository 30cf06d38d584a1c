"""Ops whose operands or results vary in number and differ in type, such as a bucket of tensors of several shapes.

IRDL, which defines our ops, gives each declared operand one constraint variable, and a variable stands for one type: a
variadic operand is N values of the *same* type. So a variadic operand or result is declared as `RUNS` variadic ones,
each of which takes a run of values of equal type. IRDL then wants to be told how many values each takes, in an
attribute that would be long and say nothing; it is put on the op just before IRDL looks at it and taken off just after,
by the two hooks that MLIR calls around that. The IR never shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext, irdl

RUNS = 256
"""The most runs of values of equal type that an op may have."""

_OPERAND_SIZES, _RESULT_SIZES = "operandSegmentSizes", "resultSegmentSizes"


def emit_operation(cls: Any) -> None:
    """Emit the IRDL definition of an op, its variadic operands and results split into `RUNS` of them."""
    constraints = ext.ConstraintLoweringContext()
    operands, attributes, results, _ = ext.partition_fields(cls._fields)
    with ir.InsertionPoint(irdl.operation_(cls._op_name).body):
        for fields, emit in ((operands, irdl.operands_), (results, irdl.results_)):
            declared: list[tuple[ir.Value, str, Any]] = []
            for field in fields:
                count = RUNS if is_variadic(field) else 1
                declared += [
                    (constraints.lower(field.constraint), f"{field.name}{number or ''}", field.variadicity)
                    for number in range(count)
                ]
            if declared:
                emit(*map(list, zip(*declared, strict=True)))
        if attributes:
            irdl.attributes_(
                [constraints.lower(field.constraint) for field in attributes], [field.name for field in attributes]
            )


def is_variadic(field: Any) -> bool:
    """Tell whether a field of an op takes any number of values."""
    return bool(field.variadicity == irdl.Variadicity.variadic)


@cache
def _variadic_sides(cls: Any) -> tuple[bool, bool]:
    operands, _, results, _ = ext.partition_fields(cls._fields)
    return any(map(is_variadic, operands)), any(map(is_variadic, results))


def mark(cls: type, op: ir.Operation) -> bool:
    """Tell IRDL how many values each of the declared operands and results takes; False if there are too many runs."""
    operands, results = _variadic_sides(cls)
    sides = ((operands, op.operands, _OPERAND_SIZES), (results, op.results, _RESULT_SIZES))
    for declared, values, name in sides:
        if declared:
            runs = _runs(value.type for value in values)
            if len(runs) > RUNS:
                op.location.emit_error(
                    f"'{op.name}' op expected at most {RUNS} runs of values of equal type, got: {len(runs)}"
                )
                return False
            op.attributes[name] = _sizes(runs, op.context)
    return True


def unmark(op: ir.Operation) -> None:
    """Take off what `mark` put on."""
    for name in (_OPERAND_SIZES, _RESULT_SIZES):
        if name in op.attributes:
            del op.attributes[name]


def _runs(types: Iterable[ir.Type]) -> list[int]:
    runs: list[int] = []
    last: ir.Type | None = None
    for type_ in types:
        if last is not None and type_ == last:
            runs[-1] += 1
        else:
            runs.append(1)
        last = type_
    return runs


def _sizes(runs: Sequence[int], context: ir.Context) -> ir.Attribute:
    return ir.DenseI32ArrayAttr.get([*runs, *[0] * (RUNS - len(runs))], context)
