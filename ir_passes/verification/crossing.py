"""What stage functions take and give, rules V16 and V17.

- V16: arguments are state, inputs, sizes, incoming and saved values, results outgoing and saved values, buffers, loss,
  weight, outputs and gradients. A forward takes nothing saved and returns no gradient, a backward returns no loss,
  weight or output. At level "program", a stage may also be given a gathered parameter and return a partial gradient.
- V17: each value that crosses is made by one function, whose stage and task its name begins with, and is taken by
  others of the same type that run later: outgoing where another stage takes it, else saved; incoming where it comes
  from another stage, else saved. One that nobody takes is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch_mlir import ir

from ...dialect.diagnostics import remark
from ...dialect.signature import CROSSING_ROLES, ValueInfo
from ...errors import nearest
from ..stage_function import StageFunction
from .findings import Findings
from .signature_rules import called
from .stage_functions import Stages, is_value_name

_ARGUMENTS = ("param", "buffer", "constant", "input", "size", "incoming", "saved")
_RESULTS = ("outgoing", "saved", "buffer", "loss", "weight", "output", "grad")
_FORWARD_ONLY = ("loss", "weight", "output")
_OF_PROGRAMS = ("gathered", "partial")
"""Roles of what a rank function gathers once for several calls, and reduces once."""


@dataclass
class _Crossing:
    """A value that crosses, where it is made and where it is taken."""

    maker: StageFunction
    info: ValueInfo
    takers: list[tuple[StageFunction, ValueInfo]] = field(default_factory=list)


def check_crossing(stages: Stages, findings: Findings, *, program: bool = False) -> None:
    """Check rules V16 and V17 on all stage functions, of a module at level "program" or "staged"."""
    for function in stages.functions:
        _check_roles(function, findings, program)
    made = _made(stages, findings)
    for function in stages.functions:
        for info in function.signature.arguments:
            if info.role in CROSSING_ROLES:
                _check_taken(function, info, made, findings)
    for crossing in made.values():
        _check_made(crossing, findings)


def _check_roles(function: StageFunction, findings: Findings, program: bool) -> None:
    forward = function.task == "forward"
    illegal = {"argument": ("saved",) if forward else (), "result": ("grad", "partial") if forward else _FORWARD_ONLY}
    for side, infos, legal in (
        ("argument", function.signature.arguments, _ARGUMENTS),
        ("result", function.signature.results, _RESULTS),
    ):
        for info in infos:
            known = info.role in legal or (program and info.role in _OF_PROGRAMS)
            if not known or info.role in illegal[side]:
                where = called(function.op, side, info)
                findings.add(function.op, f"{where}: a {function.task} has no {side} of role '{info.role}'")


def _made(stages: Stages, findings: Findings) -> dict[str, _Crossing]:
    made: dict[str, _Crossing] = {}
    for function in stages.functions:
        for info in function.signature.results:
            if info.role not in CROSSING_ROLES:
                continue
            where = called(function.op, "result", info)
            if not is_value_name(info.name) or not info.name.startswith(function.prefix):
                findings.add(
                    function.op, f"{where}: expected hp.name '{function.prefix}<n>' of what @{function.name} makes"
                )
            if info.name in made:
                first = made[info.name]
                findings.add(
                    function.op,
                    f"{where}: '{info.name}' is made twice",
                    notes=[(first.maker.op, f"{called(first.maker.op, 'result', first.info)} has this name too")],
                )
                continue
            made[info.name] = _Crossing(function, info)
    return made


def _check_taken(function: StageFunction, info: ValueInfo, made: Mapping[str, _Crossing], findings: Findings) -> None:
    where = called(function.op, "argument", info)
    crossing = made.get(info.name)
    if crossing is None:
        findings.add(function.op, f"{where}: no stage function makes '{info.name}'{nearest(info.name, made)}")
        return
    crossing.takers.append((function, info))
    maker = crossing.maker
    notes: list[tuple[ir.Operation, str]] = [(maker.op, f"made by @{maker.name}")]
    if info.type != crossing.info.type:
        findings.add(function.op, f"{where}: expected {crossing.info.type}, got: {info.type}", notes=notes)
    if not maker.order < function.order:
        findings.add(function.op, f"{where} is made by @{maker.name}, which runs after @{function.name}", notes=notes)
    expected = "saved" if maker.stage == function.stage else "incoming"
    if info.role != expected:
        findings.add(
            function.op,
            f"{where} comes from @{maker.name}: expected role '{expected}', got: '{info.role}'",
            notes=notes,
        )


def _check_made(crossing: _Crossing, findings: Findings) -> None:
    maker, info = crossing.maker, crossing.info
    where = called(maker.op, "result", info)
    if not crossing.takers:
        remark(maker.op, f"{where} crosses, but no stage function takes it", severity="warning")
        return
    others = [(function, taken) for function, taken in crossing.takers if function.stage != maker.stage]
    expected = "outgoing" if others else "saved"
    if info.role != expected:
        function, _ = others[0] if others else crossing.takers[0]
        findings.add(
            maker.op,
            f"{where}: expected role '{expected}', got: '{info.role}'",
            notes=[(function.op, f"taken by @{function.name}")],
        )
