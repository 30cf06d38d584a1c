"""What hp-assign-stages says of its decisions: remarks and warnings."""

from __future__ import annotations

from torch_mlir import ir

from ...dialect.diagnostics import collecting, remark
from ...dialect.signature import Signature, body_of
from .placement import Placement
from .stage_cuts import Cut
from .stage_modules import StageModules
from .step_graph import Kind, StepGraph


def report(
    graph: StepGraph, signature: Signature, modules: StageModules, made: Cut | None, placement: Placement
) -> None:
    """Make the remarks and warnings of a placement, at the ops that they are about."""
    if not collecting():
        return
    if made is not None:
        _say_cut(graph.function, made)
    else:
        _warn_undeclared(graph, modules)
    _warn_unused_inputs(graph.function, signature)
    _say_fallbacks(graph, placement)
    _say_moved(graph, placement)
    for info, owners in zip(signature.arguments, placement.owners, strict=True):
        if info.trainable and len(owners) > 1:
            remark(
                graph.function, f"parameter '{info.name}' is held by stages {_listed(owners)}, which sum its gradient"
            )


def first_behind(graph: StepGraph, modules: StageModules, placement: Placement, stage: int) -> int | None:
    """Return the number of the op that takes the first op of a silent stage's modules to a later stage, if one does."""
    nodes, stages = graph.nodes, placement.stages
    moved = (number for number in placement.moved if modules.stage_of_op(number, nodes[number].module) == stage)
    found = next(moved, None)
    while found is not None:
        source = next(
            (one for one in nodes[found].sources if (placed := stages[one]) is not None and placed > stage), None
        )
        if source is None:
            break
        found = source
    return found


def say_behind(placement: Placement, number: int, stage: int) -> str:
    """Say what the op found by `first_behind` does to a silent stage."""
    why = placement.fallback.get(number)
    reason = f", {why}" if why else ""
    return f"runs on stage {placement.stages[number]}{reason}; what stage {stage} declares only runs behind it"


def _listed(stages: tuple[int, ...]) -> str:
    return ", ".join(map(str, stages))


def _say_cut(function: ir.Operation, made: Cut) -> None:
    what = "modules" if made.container is None else f"entries of '{made.container}'"
    if made.modules.starts:
        what = "ops, as it runs fewer modules than that"
    counts = ", ".join(map(str, made.pieces))
    shares = ", ".join(f"{100 * share:.3g} %" for share in made.shares)
    remark(function, f"cut into {len(made.pieces)} stages of {counts} {what}; shares of the cost: {shares}")


def _warn_undeclared(graph: StepGraph, modules: StageModules) -> None:
    said = {""}
    for node in graph.nodes:
        name = node.module
        if node.kind is not Kind.FIXED or node.backward or name in said:
            continue
        said.add(name)
        if modules.stage_of(name) is None:
            remark(node.op, f"is of module '{name}', which no stage declares", severity="warning")


def _warn_unused_inputs(function: ir.Operation, signature: Signature) -> None:
    for info, argument in zip(signature.arguments, body_of(function).arguments, strict=True):
        if info.role == "input" and next(iter(argument.uses), None) is None:
            remark(function, f"input '{info.name}' is used by nobody and goes to no stage", severity="warning")


def _say_fallbacks(graph: StepGraph, placement: Placement) -> None:
    # Ops in a row that were decided alike are one remark: a residual stream has many.
    run: list[int] = []
    last: tuple[str, int | None] | None = None
    for number, reason in sorted(placement.fallback.items()):
        key = (reason, placement.stages[number])
        if key != last and run:
            _say_run(graph, placement, run)
            run = []
        last = key
        run.append(number)
    if run:
        _say_run(graph, placement, run)


def _say_run(graph: StepGraph, placement: Placement, run: list[int]) -> None:
    others = "" if len(run) == 1 else f" (and {len(run) - 1} more of no declared module behind it)"
    reason, stage = placement.fallback[run[0]], placement.stages[run[0]]
    remark(graph.nodes[run[0]].op, f"is of no declared module: it runs on stage {stage}, {reason}{others}")


def _say_moved(graph: StepGraph, placement: Placement) -> None:
    said: set[tuple[str, int | None]] = set()
    for number in placement.moved:
        key = (graph.nodes[number].module, placement.stages[number])
        if key not in said:
            said.add(key)
            remark(
                graph.nodes[number].op,
                f"of module '{key[0]}' runs on stage {key[1]}, behind the stage that declares it: what it takes is "
                "made there",
            )
