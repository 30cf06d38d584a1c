"""Rule V24: what each rank calls.

- V24: each stage function is called once for each microbatch, by the rank of its stage (`hp.placement`) and no other; a
  backward behind its forward, and the gradients of parameters behind those of what the stage was given. To evaluate,
  forwards alone are called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..stage_function import StageFunction
from .findings import Findings
from .rank_execution import Call
from .rank_functions import Pipeline


def check_coverage(
    pipeline: Pipeline, kind: str, calls: Mapping[tuple[str, int], Sequence[Call]], findings: Findings
) -> None:
    """Check rule V24 on the calls of all ranks, by function and microbatch."""
    for stage in range(pipeline.stages.count):
        functions = list(pipeline.stages.of_stage(stage))
        for microbatch in range(pipeline.microbatches):
            last: tuple[StageFunction, Call] | None = None
            for function in functions:
                found = calls.get((function.name, microbatch), ())
                if kind == "evaluate" and function.task != "forward":
                    for wrong in found:
                        findings.add(wrong.op, f"@{function.name} is not called to evaluate")
                    continue
                call = _check_calls(pipeline, kind, function, microbatch, found, findings)
                if call is not None and last is not None and call.number < last[1].number:
                    findings.add(
                        call.op,
                        f"@{function.name} for microbatch {microbatch} is called before @{last[0].name}",
                        notes=[(last[1].op, f"@{last[0].name} is called here")],
                    )
                if call is not None:
                    last = function, call


def _check_calls(
    pipeline: Pipeline,
    kind: str,
    function: StageFunction,
    microbatch: int,
    calls: Sequence[Call],
    findings: Findings,
) -> Call | None:
    """Return the one call of a function for a microbatch, or None where there is not that one."""
    rank = pipeline.ranks[kind][pipeline.placement[function.stage]]
    what = f"@{function.name} for microbatch {microbatch}"
    for call in calls:
        if call.rank is not rank:
            findings.add(
                call.op, f"{what} is called by @{call.rank.name}, but hp.placement has its stage on @{rank.name}"
            )
            return None
    if not calls:
        findings.add(rank.op, f"@{rank.name} does not call {what}")
        return None
    if len(calls) > 1:
        findings.add(calls[1].op, f"{what} is called twice", notes=[(calls[0].op, "called first here")])
        return None
    return calls[0]
