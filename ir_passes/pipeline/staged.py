"""A module at level "staged" as data: its stage functions, and who makes and who takes each value between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch_mlir import ir

from ...dialect.diagnostics import error_at
from ...dialect.levels import require_mesh
from ...dialect.signature import ValueInfo, function_name, read_signature, step_functions
from ...errors import nearest
from ...mesh import Mesh
from ..stage_function import FORWARD, TASKS, StageFunction, number_attribute, text_attribute


@dataclass(frozen=True)
class StagedModule:
    """What the signatures of all stage functions say together.

    Attributes:
        module: the `builtin.module`.
        mesh_name: symbol of its mesh.
        mesh: its mesh.
        axis: the pipeline axis.
        stage_count: number of stages.
        functions: by stage and task, in program order.
        makers: by value name, the function that makes it.
        takers: by value name, the functions that take it.
    """

    module: ir.Operation
    mesh_name: str
    mesh: Mesh
    axis: str
    stage_count: int
    functions: Mapping[tuple[int, str], StageFunction]
    makers: Mapping[str, StageFunction]
    takers: Mapping[str, tuple[StageFunction, ...]]

    @property
    def ranks(self) -> int:
        """Positions on the pipeline axis."""
        return self.mesh.axis_size(self.axis)

    @property
    def data_axes(self) -> tuple[str, ...]:
        """Mesh axes that split the inputs of any stage along their batch dims; axes of one rank left out."""
        axes: dict[str, None] = {}
        for function in self.functions.values():
            axes.update(dict.fromkeys(function.signature.data_axes))
        return tuple(axis for axis in axes if self.mesh.axis_size(axis) > 1)

    @property
    def sizes(self) -> tuple[ValueInfo, ...]:
        """The dynamic sizes of the whole module, each once."""
        sizes: dict[str, ValueInfo] = {}
        for function in self.functions.values():
            for info in function.signature.with_role("size"):
                sizes.setdefault(info.name, info)
        return tuple(sizes.values())

    @property
    def rows(self) -> str:
        """Name of the dynamic size that microbatches split; empty where the rows are fixed."""
        for function in self.functions.values():
            for info in function.signature.with_role("input"):
                if info.batch_dim is not None and info.dim_names and info.dim_names[info.batch_dim]:
                    return info.dim_names[info.batch_dim]
        return ""

    def result(self, role: str) -> tuple[StageFunction, ValueInfo] | None:
        """Return the one result of role "loss" or "weight" and the function that makes it."""
        for function in self.functions.values():
            for info in function.signature.results_with_role(role):
                return function, info
        return None

    def of_stages(self, stages: Iterable[int]) -> tuple[StageFunction, ...]:
        """Return all functions of some stages, stage by stage."""
        return tuple(
            self.functions[stage, task] for stage in stages for task in TASKS if (stage, task) in self.functions
        )


def read_staged(module: ir.Operation, pass_name: str) -> StagedModule:
    """Read a module at level "staged".

    Args:
        module: a `builtin.module`.
        pass_name: who asks, for messages.

    Raises:
        IRError: an attribute is missing or malformed, or the functions do not fit together.
    """
    module = module.operation
    mesh_name, mesh = require_mesh(module, pass_name)
    axis = text_attribute(module, "hp.pipeline_axis", "the name of a mesh axis")
    if axis not in mesh.axis_names:
        raise error_at(module, f"hp.pipeline_axis: mesh {mesh} has no axis '{axis}'{nearest(axis, mesh.axis_names)}")
    count = number_attribute(module, "hp.stage_count", "a number of stages")
    functions: dict[tuple[int, str], StageFunction] = {}
    for op in step_functions(module):
        function = _read_function(op, mesh)
        if function.stage >= count:
            raise error_at(op, f"expected hp.stage < {count} (hp.stage_count), got: {function.stage}")
        first = functions.setdefault((function.stage, function.task), function)
        if first is not function:
            message = f"{function} is a second {function.task} of stage {function.stage}"
            raise error_at(op, message, notes=[(first.op, "first one")])
    makers, takers = _crossing(functions.values())
    _check_results(module, functions.values())
    return StagedModule(module, mesh_name, mesh, axis, count, functions, makers, takers)


def _read_function(op: ir.Operation, mesh: Mesh) -> StageFunction:
    stage = number_attribute(op, "hp.stage", "the number of a stage")
    task = text_attribute(op, "hp.task", "a task")
    if task not in TASKS:
        raise error_at(op, f"unknown hp.task '{task}'{nearest(task, TASKS) or ', expected one of ' + ', '.join(TASKS)}")
    return StageFunction(op, function_name(op), stage, task, read_signature(op, mesh))


def _crossing(
    functions: Iterable[StageFunction],
) -> tuple[dict[str, StageFunction], dict[str, tuple[StageFunction, ...]]]:
    makers: dict[str, StageFunction] = {}
    types: dict[str, ValueInfo] = {}
    takers: dict[str, list[StageFunction]] = {}
    for function in functions:
        for info in function.made:
            if info.name in makers:
                raise error_at(
                    function.op,
                    f"{function} makes '{info.name}' a second time",
                    notes=[(makers[info.name].op, "first made here")],
                )
            makers[info.name], types[info.name] = function, info
    for function in functions:
        for info in function.taken:
            maker = makers.get(info.name)
            if maker is None:
                hint = nearest(info.name, makers)
                raise error_at(function.op, f"{function} takes '{info.name}', which no function makes{hint}")
            if types[info.name].type != info.type:
                raise error_at(
                    function.op,
                    f"{function} takes '{info.name}' as {info.type}, it is made as {types[info.name].type}",
                    notes=[(maker.op, "made here")],
                )
            takers.setdefault(info.name, []).append(function)
    return makers, {name: tuple(found) for name, found in takers.items()}


def _check_results(module: ir.Operation, functions: Iterable[StageFunction]) -> None:
    """Refuse a module without a loss, and one whose results no rank function could return."""
    first: dict[tuple[str, str], StageFunction] = {}
    for function in functions:
        for info in function.signature.results:
            if info.role not in ("loss", "weight", "output", "buffer"):
                continue
            if function.task != FORWARD:
                raise error_at(function.op, f"{function} returns {info.role} '{info.name}', which only forwards do")
            other = first.setdefault((info.role, "" if info.role in ("loss", "weight") else info.name), function)
            if other is not function:
                notes = [(other.op, "first returned here")]
                raise error_at(function.op, f"{info.role} '{info.name}' is returned a second time", notes=notes)
    if ("loss", "") not in first:
        raise error_at(module, "expected one function that returns the loss, got: none", named=False)
