"""State, loss and gradients over all stage functions: rules V4 to V7 and V14 of a step in pieces, and V18.

- V5, V6, V7: the stages together have one loss; a parameter that it depends on has a gradient from at least one of its
  stages, and from none two; a buffer has at most one new value.
- V18: a parameter, buffer or constant is the same wherever it is taken, and is taken by the stages in its `hp.stages`
  only. A buffer that the step updates is of one stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch_mlir import ir

from ...dialect.signature import CROSSING_ROLES, STATE_ROLES, Signature, ValueInfo
from ..stage_function import StageFunction
from .findings import Findings, place_in_model
from .joint import check_mesh_names
from .signature_rules import (
    called,
    check_dims,
    check_guards,
    check_loss_types,
    check_names,
    check_owner,
    depends_on,
)
from .spmd import check_local_types
from .stage_functions import Stages


@dataclass(frozen=True)
class State:
    """A parameter, buffer or constant, where it is first taken, and by which stages."""

    function: StageFunction
    info: ValueInfo


def check_stage_state(
    module: ir.Operation, stages: Stages, findings: Findings, ranks: Sequence[Signature] = ()
) -> None:
    """Check the rules on state, loss and gradients of the stage functions of a module.

    Args:
        module: at level "staged" or "program".
        stages: its stage functions.
        findings: gets what is wrong.
        ranks: the signatures of rank functions, which may hold parameters that stages are only given gathered.
    """
    sizes = [info.name for function in stages.functions for info in function.signature.with_role("size")]
    check_guards(module, sizes, findings)
    for function in stages.functions:
        check_names(function.op, function.signature, findings)
        check_loss_types(function.op, function.signature, findings)
        check_dims(function.op, function.signature, sizes, findings)
        check_mesh_names(function.op, function.signature, (stages.mesh_name, stages.mesh), findings)  # V8
        check_local_types(function.op, function.signature, stages.mesh, findings)  # V8
    _check_losses(module, stages, findings)
    state = _state(stages, findings)
    held = [info for signature in ranks for info in signature.with_role("param")]
    parameters = {name: info for info in held for name in info.names}
    parameters.update((name, item.info) for name, item in state.items() if item.info.role == "param")
    _check_gradients(stages, parameters, findings)
    _check_buffers(stages, state, findings)


def _check_losses(module: ir.Operation, stages: Stages, findings: Findings) -> None:
    for role, least in (("loss", 1), ("weight", 0)):
        makers = [function for function in stages.functions if function.signature.results_with_role(role)]
        count = sum(len(function.signature.results_with_role(role)) for function in makers)
        if count < least:  # V5
            findings.add(module, "expected one result with role 'loss' in all stage functions, got: none", named=False)
        if count > 1:  # V5
            findings.add(
                makers[-1].op,
                f"@{makers[-1].name} returns a {role}, expected one in all stage functions",
                notes=[(makers[0].op, f"@{makers[0].name} returns one")],
            )


def _state(stages: Stages, findings: Findings) -> dict[str, State]:
    """Return the state by each of its names."""
    state: dict[str, State] = {}
    for function in stages.functions:
        for info in function.signature.arguments:
            if info.role not in STATE_ROLES:
                continue
            where = called(function.op, "argument", info)
            if info.stages and function.stage not in info.stages:  # V18
                findings.add(function.op, f"{where} is of stages {list(info.stages)}, taken by stage {function.stage}")
            first = state.setdefault(info.name, State(function, info))
            if replace(info, index=first.info.index) != first.info:  # V18
                findings.add(
                    function.op,
                    f"{where} is not the same as in @{first.function.name}: expected role, names, type and sharding "
                    "to agree",
                    notes=[(first.function.op, f"argument {first.info.index} here")],
                )
            for name in info.names:
                state.setdefault(name, first)
    return state


def _check_gradients(stages: Stages, parameters: Mapping[str, ValueInfo], findings: Findings) -> None:
    have: dict[tuple[str, int], tuple[StageFunction, ValueInfo]] = {}
    for function in stages.functions:
        for gradient in function.signature.results_with_role("grad"):
            check_owner(function.op, gradient, ("a gradient", "parameter"), parameters, findings)
            _check_gradient(function, gradient, gradient.name, parameters, have, findings)
        for partial in function.signature.results_with_role("partial"):
            # The names of one parameter, or of several whose gradients it is.
            owners = [parameters[name].name if name in parameters else name for name in partial.names]
            for name in dict.fromkeys(owners):
                _check_gradient(function, partial, name, parameters, have, findings)
    reduced = {name for name, _ in have}
    needed = _loss_depends_on(stages)
    for name, (function, user) in needed.items():
        info = parameters.get(name)
        if info is not None and info.trainable and info.name not in reduced:  # V6
            findings.add(
                function.op,
                f"parameter '{name}' is trainable and the loss depends on it, but no stage function returns a "
                "gradient of it",
                notes=[(user, f"'{name}' is used here{place_in_model(user)}")],
            )


def _check_gradient(
    function: StageFunction,
    gradient: ValueInfo,
    name: str,
    parameters: Mapping[str, ValueInfo],
    have: dict[tuple[str, int], tuple[StageFunction, ValueInfo]],
    findings: Findings,
) -> None:
    """Check that a stage has one gradient of a parameter, and may have it; `have` notes the first by stage."""
    where = called(function.op, "result", gradient)
    first, known = have.setdefault((name, function.stage), (function, gradient))
    if known is not gradient:  # V6
        findings.add(
            function.op,
            f"{where}: stage {function.stage} has another gradient of '{name}'",
            notes=[(first.op, f"returned by @{first.name}")],
        )
    parameter = parameters.get(name)
    if parameter is None:
        return
    if not parameter.trainable:  # V6
        findings.add(function.op, f"{where}: parameter '{name}' is frozen, expected no gradient")
    if parameter.stages and function.stage not in parameter.stages:  # V18
        findings.add(
            function.op,
            f"{where}: parameter '{name}' is of stages {list(parameter.stages)}, stage {function.stage} has a "
            "gradient of it",
        )


def _loss_depends_on(stages: Stages) -> dict[str, tuple[StageFunction, ir.Operation]]:
    """Return the names of the parameters that the loss depends on, each with the last user before the loss."""
    crossing: set[str] = set()
    found: dict[str, tuple[StageFunction, ir.Operation]] = {}
    for function in reversed([function for function in stages.functions if function.task == "forward"]):
        results = [info.index for info in function.signature.results if info.role == "loss" or info.name in crossing]
        if not results:
            continue
        for index, user in depends_on(function.op, results).items():
            info = function.signature.arguments[index]
            if info.role in CROSSING_ROLES:
                crossing.add(info.name)
            elif info.role in ("param", "gathered"):
                found.setdefault(info.name, (function, user))
    return found


def _check_buffers(stages: Stages, state: Mapping[str, State], findings: Findings) -> None:
    buffers = {name: item.info for name, item in state.items() if item.info.role == "buffer"}
    made: dict[str, StageFunction] = {}
    for function in stages.functions:
        for new in function.signature.results_with_role("buffer"):
            buffer = check_owner(function.op, new, ("a new value", "buffer"), buffers, findings)
            if buffer is None:
                continue
            first = made.setdefault(buffer.name, function)
            if first is not function:  # V7
                findings.add(
                    function.op,
                    f"{called(function.op, 'result', new)}: buffer '{buffer.name}' has another new value",
                    notes=[(first.op, f"returned by @{first.name}")],
                )
    for function in stages.functions:
        for info in function.signature.with_role("buffer"):
            maker = made.get(info.name)
            if maker is not None and maker.stage != function.stage:  # V18
                findings.add(
                    function.op,
                    f"{called(function.op, 'argument', info)} is updated by stage {maker.stage}, "
                    f"stage {function.stage} would have an old copy of it",
                    notes=[(maker.op, f"updated by @{maker.name}")],
                )
