"""Rules of level "staged": V15 to V19, and those of spmd functions for the functions of all stages together.

- V19: a stage function is a straight line of compute and of collectives over other axes than the pipeline's; it calls
  nothing, and sends and receives nothing.

V15 is in `stage_functions`, V16 and V17 in `crossing`, V18 in `stage_state`. The proof on gradient reductions (V9 to
V13) sweeps the functions in the order of their values: what crosses is what its maker has made it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch_mlir import ir

from ...dialect.attributes import read_strings
from ...dialect.diagnostics import error_at
from ...dialect.signature import Signature, body_of, function_name, step_functions
from .crossing import check_crossing
from .findings import Findings
from .gradient_flow import Flows, GradientFlow
from .reductions import Analysed, ReductionProof
from .stage_functions import Stages, is_stage_function, read_stages
from .stage_state import check_stage_state

_OF_RANKS = frozenset({"func.call", "hp.accumulate", "hp.microbatch", "hp.recv", "hp.send"})


def check_staged(module: ir.Operation, findings: Findings) -> None:
    """Check the rules of level "staged"."""
    for function in step_functions(module):
        if not is_stage_function(function):  # V15
            name = function_name(function)
            raise error_at(function, f"@{name} is of no stage: expected @stage<k>_<task> alone at level 'staged'")
    stages = read_stages(module, findings)
    check_stage_functions(module, stages, findings)
    flows = stage_flows(stages)
    analysed = sweep_stages(stages, flows)
    proof = ReductionProof(flows, analysed, stages.mesh, findings)
    proof.check_uses()
    for function, signature, flow in analysed:
        proof.check(function, signature, flow)


def check_stage_functions(
    module: ir.Operation, stages: Stages, findings: Findings, ranks: Sequence[Signature] = ()
) -> None:
    """Check the rules V16 to V19 and those on signatures, of a module at level "staged", or "program" with `ranks`."""
    check_crossing(stages, findings, program=bool(ranks))
    check_stage_state(module, stages, findings, ranks)
    for function in stages.functions:
        for op in _ops(body_of(function.op)):
            name = op.name
            if name in _OF_RANKS:  # V19
                findings.add(op, f"is not allowed in a stage function, @{function.name}")
            elif "axes" in op.attributes and stages.axis in (read_strings(op.attributes["axes"]) or ()):  # V19
                findings.add(
                    op, f"communicates over the pipeline axis '{stages.axis}' within a stage function, @{function.name}"
                )


def _ops(block: ir.Block) -> Iterator[ir.Operation]:
    for view in block.operations:
        op = view.operation
        yield op
        for region in op.regions:
            for inner in region.blocks:
                yield from _ops(inner)


def stage_flows(stages: Stages) -> Flows:
    """Return the flows of a module of stages, nothing swept yet."""
    data_axes: dict[str, None] = {}
    updated: set[str] = set()
    for function in stages.functions:
        data_axes.update(dict.fromkeys(function.signature.data_axes))
        updated.update(info.name for info in function.signature.results_with_role("buffer"))
    return Flows(stages.mesh, tuple(data_axes), updated, passed_over=(stages.axis,))


def sweep_stages(stages: Stages, flows: Flows) -> list[Analysed]:
    """Sweep the stage functions, each behind those it takes values of."""
    return [
        (function.op, function.signature, GradientFlow(function.op, function.signature, flows))
        for function in stages.functions
    ]
