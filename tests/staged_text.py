"""Chains of equal stages as IR at level "staged": a task is as many matrix products as it takes units of time."""

from __future__ import annotations

import hpir
from hpir.costs import Costs
from hpir.dialect.context import make_context
from hpir.dialect.parsing import parse_module
from hpir.lowering.to_program import to_program
from hpir.runtime.program import Program

WIDTH = 64
_TENSOR = f"!torch.vtensor<[{WIDTH},{WIDTH}],f32>"
_SCALAR = "!torch.vtensor<[],f32>"

UNIT = Costs.of(
    {
        "device": "cpu",
        "compute": {"flops": {"float32": 2.0 * WIDTH**3}, "memory_bandwidth": 1e21, "op_overhead": 0.0},
        "links": {"latency": 0.0, "bandwidth": 1e21},
    }
)
"""A matrix product takes a second, all else nothing that counts."""


def _product(result: str, left: str, right: str) -> str:
    return f"    %{result} = torch.aten.mm %{left}, %{right} : {_TENSOR}, {_TENSOR} -> {_TENSOR}\n"


def _weight(stage: int) -> str:
    mark = f'{{hp.fqn = ["layers.{stage}"], hp.role = "param", hp.stages = array<i64: {stage}>, hp.trainable}}'
    return f"%w: {_TENSOR} {mark}"


def _given(stage: int) -> str:
    if stage == 0:
        return f'%h: {_TENSOR} {{hp.batch_dim = 0 : i64, hp.name = "x", hp.role = "input"}}'
    return f'%h: {_TENSOR} {{hp.name = "f{stage - 1}.0", hp.role = "incoming"}}'


def _gradient(stage: int, stages: int, maker: str) -> str:
    """The gradient of what a stage gives; the last one has what it saved for it."""
    if stage == stages - 1:
        return f'%d: {_TENSOR} {{hp.name = "f{stage}.0", hp.role = "saved"}}'
    return f'%d: {_TENSOR} {{hp.name = "{maker}{stage + 1}.0", hp.role = "incoming"}}'


def _function(stage: int, task: str, arguments: list[str], results: list[tuple[str, str]], body: str) -> str:
    """Results are (value, attributes)."""
    types = [_SCALAR if value == "loss" else _TENSOR for value, _ in results]
    marks = ", ".join(f"{type_} {{{mark}}}" for type_, (_, mark) in zip(types, results, strict=True))
    returned = ", ".join(f"%{value}" for value, _ in results)
    return (
        f"  func.func @stage{stage}_{task}({', '.join(arguments)}) -> ({marks})\n"
        f'      attributes {{hp.stage = {stage} : i64, hp.task = "{task}"}} {{\n'
        f"{body}    return {returned} : {', '.join(types)}\n  }}\n"
    )


def _stage(stage: int, stages: int, split: bool) -> str:
    last = stage == stages - 1
    outgoing = [("y", f'hp.name = "f{stage}.0", hp.role = "{"saved" if last else "outgoing"}"')]
    loss = (
        f"    %none = torch.constant.none\n    %loss = torch.aten.sum %y, %none : {_TENSOR}, !torch.none -> {_SCALAR}\n"
    )
    forward = _function(
        stage,
        "forward",
        [_weight(stage), _given(stage)],
        outgoing + ([("loss", 'hp.role = "loss"')] if last else []),
        _product("y", "h", "w") + (loss if last else ""),
    )
    maker = "i" if split else "b"
    gradient = ("g", f'hp.fqn = ["layers.{stage}"], hp.role = "grad"')
    given = _gradient(stage, stages, maker)
    back = [("b", f'hp.name = "{maker}{stage}.0", hp.role = "outgoing"')] if stage else []
    of_input, of_weight = _product("b", "d", "w"), _product("g", "h", "d")
    if not split:
        # The first stage has no gradient to give; a product in its place keeps all stages equal.
        of_first = _product("b", "d", "w") + _product("g", "h", "b")
        body = of_input + of_weight if stage else of_first
        return forward + _function(stage, "backward", [_weight(stage), _given(stage), given], [*back, gradient], body)
    if not stage:
        back = [("b", 'hp.name = "i0.0", hp.role = "saved"')]
    weight_given = [f'%b: {_TENSOR} {{hp.name = "i0.0", hp.role = "saved"}}'] if not stage else []
    return (
        forward
        + _function(stage, "backward_input", [_weight(stage), given], back, of_input)
        + _function(
            stage,
            "backward_weight",
            [_given(stage), *(weight_given or [given])],
            [gradient],
            of_weight if stage else _product("g", "h", "b"),
        )
    )


def staged_text(stages: int, mesh: dict[str, int], *, split: bool = False) -> str:
    """Return a module of equal stages: a forward of one unit, a backward of two, or of one and one."""
    names = ", ".join(f'"{name}"' for name in mesh)
    sizes = ", ".join(map(str, mesh.values()))
    return (
        f'module attributes {{hp.level = "staged", hp.pipeline_axis = "pp", hp.stage_count = {stages} : i64}} {{\n'
        f'  "hp.mesh"() {{axis_names = [{names}], axis_sizes = array<i64: {sizes}>, sym_name = "mesh"}} : () -> ()\n'
        + "".join(_stage(stage, stages, split) for stage in range(stages))
        + "}\n"
    )


def scheduled_program(
    schedule: str, ranks: int, microbatches: int, *, stages: int | None = None, split: bool = False
) -> Program:
    """Schedule a chain of equal stages and lower it.

    Args:
        schedule: name of an algorithm.
        ranks: positions of the pipeline axis.
        microbatches: of a step.
        stages: by default one per rank.
        split: backwards are in two parts.
    """
    module = parse_module(staged_text(stages or ranks, {"pp": ranks}, split=split), make_context())
    hpir.run_passes(module, f"hp-schedule-pipeline{{schedule={schedule} microbatches={microbatches}}}")
    return to_program(module)
