"""A module at level "program" as a Program: the functions of all pipeline positions and the stages that they call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from torch_mlir import ir

from ..dialect.diagnostics import error_at
from ..dialect.signature import function_name, read_signature, step_functions
from ..errors import PlanError
from ..mesh import Mesh
from ..runtime.program import Function, Op
from .step_function import prune, renumber

KINDS = ("train", "evaluate")


def module_microbatches(module: ir.Operation, asked: int | None) -> int:
    """Return the microbatches of a scheduled module.

    Raises:
        IRError: the module does not say.
        PlanError: another number was asked for.
    """
    count = _integer(module, "hp.microbatches")
    if asked not in (None, count):
        raise PlanError(f"expected {count} microbatches, which the module is scheduled for, got: {asked}")
    return count


def pipeline_axis(module: ir.Operation) -> str:
    """Return the mesh axis that the functions of a scheduled module are indexed by.

    Raises:
        IRError: the module does not say.
    """
    attribute = module.attributes.get("hp.pipeline_axis")
    if not isinstance(attribute, ir.StringAttr):
        raise error_at(module, f"expected hp.pipeline_axis to be a mesh axis, got: {attribute or 'none'}")
    return str(attribute.value)


def scheduled_data_axes(module: ir.Operation, mesh: Mesh) -> tuple[str, ...]:
    """Return the mesh axes that split the inputs of any function along their batch dims."""
    axes: dict[str, None] = {}
    for function in step_functions(module):
        axes.update(dict.fromkeys(read_signature(function, mesh).data_axes))
    return tuple(axes)


def lower_rank_functions(
    module: ir.Operation, mesh: Mesh, lower: Callable[[ir.Operation], Function]
) -> tuple[dict[str, Function], dict[str, tuple[str, ...]]]:
    """Lower the functions of a scheduled module.

    A stage function has, for each kind of step, only the results that some call of this kind uses, and the ops that
    these need; where the two kinds differ, the evaluation's is a function of its own.

    Args:
        module: at level "program".
        mesh: its mesh.
        lower: lowers one function.

    Returns:
        All functions by name, and per kind the names of the functions that the positions enter.

    Raises:
        IRError: a position has no function, or an op cannot be lowered.
    """
    entries = {kind: _entries(module, kind) for kind in KINDS}
    expected = mesh.axis_size(pipeline_axis(module))
    for kind, found in entries.items():
        if sorted(found) != list(range(expected)):
            raise error_at(
                module,
                f"expected a function with hp.kind = '{kind}' for each of {expected} ranks, got: {sorted(found)}",
            )
    own = {function_name(op) for found in entries.values() for op in found.values()}
    stages = {function_name(op): lower(op) for op in step_functions(module) if function_name(op) not in own}
    functions: dict[str, Function] = {}
    names: dict[str, tuple[str, ...]] = {}
    for kind, found in entries.items():
        lowered = [lower(found[position]) for position in range(expected)]
        used = _used_results(lowered)
        callees: dict[str, Function] = {}
        for name, indices in used.items():
            callee = _with_results(stages[name], indices)
            if name in functions and functions[name] != callee:
                callee = replace(callee, name=f"{name}_{kind}")
            callees[name] = callee
            functions[callee.name] = callee
        for function in lowered:
            functions[function.name] = _with_callees(function, callees, used)
        names[kind] = tuple(function.name for function in lowered)
    return functions, names


def _entries(module: ir.Operation, kind: str) -> dict[int, ir.Operation]:
    found: dict[int, ir.Operation] = {}
    for op in step_functions(module):
        attribute = op.attributes.get("hp.kind")
        if isinstance(attribute, ir.StringAttr) and attribute.value == kind:
            first = found.setdefault(_integer(op, "hp.coordinate"), op)
            if first != op:
                raise error_at(op, f"is a second '{kind}' function of this hp.coordinate", notes=[(first, "first one")])
    return found


def _integer(op: ir.Operation, name: str) -> int:
    attribute = op.attributes.get(name)
    if not isinstance(attribute, ir.IntegerAttr):
        raise error_at(op, f"expected {name} to be an integer, got: {attribute or 'none'}")
    return int(attribute.value)


def _used_results(functions: Iterable[Function]) -> dict[str, tuple[int, ...]]:
    """Return, per callee, the results that some call in these functions uses."""
    used: dict[str, set[int]] = {}
    for function in functions:
        needed = {value for op in function.ops for value in op.operands()}
        needed |= {result.value for result in function.results}
        for op in function.ops:
            if op.target == "call":
                indices = used.setdefault(str(op.kwargs["function"]), set())
                indices.update(index for index, value in enumerate(op.results) if value in needed)
    return {name: tuple(sorted(indices)) for name, indices in used.items()}


def _with_results(function: Function, indices: Iterable[int]) -> Function:
    kept = {id(function.results[index]) for index in indices}
    return prune(function, lambda result: id(result) in kept)


def _with_callees(function: Function, callees: Mapping[str, Function], used: Mapping[str, tuple[int, ...]]) -> Function:
    """Return an entry whose calls are of the pruned functions."""
    ops: list[Op] = []
    for op in function.ops:
        if op.target == "call":
            name = str(op.kwargs["function"])
            indices = used[name]
            op = replace(
                op,
                kwargs={**op.kwargs, "function": callees[name].name},
                results=tuple(op.results[index] for index in indices),
                types=tuple(op.types[index] for index in indices),
            )
        ops.append(op)
    return renumber(function, ops, function.results)
