"""The functions of stages: reading them, and rule V15.

- V15: the module states `hp.pipeline_axis`, an axis of its mesh, and `hp.stage_count`. Stage functions are named
  ``@stage<k>_<task>``, with `hp.stage` and `hp.task` that say the same; every stage has a forward, and its backward is
  either one function or one for the gradients of what it was given and one for those of its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch_mlir import ir

from ...dialect.attributes import find_mesh
from ...dialect.diagnostics import error_at
from ...dialect.signature import body_of, function_name, read_signature, step_functions
from ...errors import nearest
from ...mesh import Mesh
from ..stage_function import TASKS, StageFunction, number_attribute, text_attribute
from .findings import Findings

_NAME = re.compile(rf"stage(\d+)_({'|'.join(TASKS)})")
_VALUE_NAME = re.compile(r"([fbiw])(\d+)\.(\d+)")
_STAGE_ATTRIBUTES = ("hp.stage", "hp.task")


def is_value_name(name: str) -> bool:
    """Return whether a name is one of a value that crosses."""
    return _VALUE_NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class Stages:
    """The stage functions of a module, in an order in which each stands behind those it takes values of.

    `axis` is the pipeline axis, `count` the number of stages.
    """

    mesh_name: str
    mesh: Mesh
    axis: str
    count: int
    functions: tuple[StageFunction, ...]

    def of_stage(self, stage: int) -> Iterator[StageFunction]:
        """Yield the functions of a stage in the order of `TASKS`."""
        return (function for function in self.functions if function.stage == stage)


def is_stage_function(function: ir.Operation) -> bool:
    """Return whether a function is, or means to be, one of a stage."""
    named = _NAME.fullmatch(function_name(function)) is not None
    return named or any(name in function.attributes for name in _STAGE_ATTRIBUTES)


def read_stages(module: ir.Operation, findings: Findings) -> Stages:
    """Read the stage functions of a module (V15); what does not agree is noted.

    Raises:
        IRError: something is missing without which nothing else can be checked.
    """
    found = find_mesh(module)
    if found is None:
        raise error_at(module, "has stages, expected a mesh", named=False)
    mesh_name, mesh = found
    axis = text_attribute(module, "hp.pipeline_axis")
    if axis not in mesh.axis_names:
        hint = nearest(axis, mesh.axis_names)
        raise error_at(module, f"hp.pipeline_axis: mesh has no axis '{axis}'{hint}", named=False)
    count = number_attribute(module, "hp.stage_count")
    functions = [
        _read(function, mesh, count, findings) for function in step_functions(module) if is_stage_function(function)
    ]
    functions.sort(key=lambda function: function.order)
    stages = Stages(mesh_name, mesh, axis, count, tuple(functions))
    _check_tasks(module, stages, findings)
    return stages


def _read(function: ir.Operation, mesh: Mesh, count: int, findings: Findings) -> StageFunction:
    name = function_name(function)
    match = _NAME.fullmatch(name)
    if match is None:
        raise error_at(function, f"@{name} has hp.stage or hp.task, expected its name to be @stage<k>_<task>")
    stage, task = int(match[1]), match[2]
    stated = number_attribute(function, "hp.stage"), text_attribute(function, "hp.task")
    if stated != (stage, task):
        findings.add(
            function, f"@{name}: expected hp.stage = {stage} and hp.task = '{task}', got: {stated[0]}, '{stated[1]}'"
        )
    if stage >= count:
        findings.add(function, f"@{name}: expected a stage < {count} (hp.stage_count), got: {stage}")
    body_of(function)
    return StageFunction(function, name, stage, task, read_signature(function, mesh))


def _check_tasks(module: ir.Operation, stages: Stages, findings: Findings) -> None:
    for stage in range(stages.count):
        by_task = {function.task: function for function in stages.of_stage(stage)}
        if "forward" not in by_task:
            findings.add(module, f"stage {stage} has no function @stage{stage}_forward", named=False)
        for task in ("backward_input", "backward_weight"):
            if "backward" in by_task and task in by_task:
                findings.add(
                    by_task[task].op,
                    f"@{by_task[task].name}: the backward of stage {stage} is one function, or two, not both",
                    notes=[(by_task["backward"].op, f"@{by_task['backward'].name} is all of it")],
                )
