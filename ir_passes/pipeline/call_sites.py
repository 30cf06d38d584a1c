"""The calls of a module at level "program": which ranks' functions call which stage functions, and with what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from ...dialect.diagnostics import error_at
from ...dialect.levels import require_mesh
from ...dialect.signature import Signature, body_of, function_name, read_signature, step_functions
from ...mesh import Mesh


@dataclass(frozen=True, eq=False)
class Stage:
    """A stage function, its name, and what it takes and returns; compared by identity."""

    op: ir.Operation
    name: str
    signature: Signature


@dataclass(frozen=True, eq=False)
class Rank:
    """A function of one rank, and its calls by callee, in order."""

    op: ir.Operation
    calls: Mapping[str, Sequence[ir.Operation]]


@dataclass(frozen=True)
class CalledModule:
    """The functions of a module at level "program".

    Attributes:
        mesh_name: symbol of its mesh.
        mesh: its mesh.
        stages: its stage functions by name.
        ranks: the functions that call them.
    """

    mesh_name: str
    mesh: Mesh

    stages: Mapping[str, Stage]
    ranks: Sequence[Rank]


def read_calls(module: ir.Operation, pass_name: str) -> CalledModule:
    """Read the functions of a module and their calls; one walk over the ranks' functions.

    Args:
        module: a `builtin.module` at level "program".
        pass_name: who asks, for messages.

    Raises:
        IRError: the module has no mesh, or a call is of no stage function.
    """
    mesh_name, mesh = require_mesh(module, pass_name)
    stages: dict[str, Stage] = {}
    entries: list[ir.Operation] = []
    for op in step_functions(module):
        if "hp.stage" in op.attributes:
            name = function_name(op)
            stages[name] = Stage(op, name, read_signature(op, mesh))
        else:
            entries.append(op)
    return CalledModule(mesh_name, mesh, stages, [_read_rank(op, stages) for op in entries])


def _read_rank(function: ir.Operation, stages: Mapping[str, Stage]) -> Rank:
    calls: dict[str, list[ir.Operation]] = {}
    for view in body_of(function).operations:
        op = view.operation
        if op.name != "func.call":
            continue
        callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        if callee not in stages:
            raise error_at(op, f"calls @{callee}, which is no stage function")
        calls.setdefault(callee, []).append(op)
    return Rank(function, calls)


def call_again(call: ir.Operation, operands: Sequence[ir.Value], types: Sequence[ir.Type]) -> ir.Operation:
    """Return a call of the same function in the same place with other operands and results; the old one stays."""
    return ir.Operation.create(
        "func.call",
        results=types,
        operands=operands,
        attributes={name: call.attributes[name] for name in call.attributes},
        loc=call.location,
        ip=ir.InsertionPoint(call),
    )
