"""Rules of level "program": V20 to V26, and those of stages.

V20 is in `rank_functions`, V21 and V22 in `channels`, V23 in `deadlock`, V24 in `coverage`, V25 in `rank_execution`,
V26 in `totals` and `rank_results`. Stage functions are looked at once, rank functions once per op, however many
microbatches there are. What rests on a rule that is broken is not looked at.
"""

from __future__ import annotations

from torch_mlir import ir

from .channels import check_traffic
from .coverage import check_coverage
from .deadlock import report_deadlock
from .findings import Findings
from .gradient_flow import GradientFlow
from .live_bytes import remark_peaks
from .rank_execution import Execution
from .rank_functions import KINDS, Pipeline, RankFunction, read_pipeline
from .rank_results import RankResults
from .reductions import Analysed, ReductionProof
from .staged import check_stage_functions, stage_flows, sweep_stages


def check_program(module: ir.Operation, findings: Findings) -> None:
    """Check the rules of level "program"."""
    pipeline = read_pipeline(module, findings)
    ranks = [rank.signature for kind in KINDS for rank in pipeline.ranks[kind]]
    check_stage_functions(module, pipeline.stages, findings, ranks)
    for kind in KINDS:
        if not findings:
            _run(pipeline, kind, findings)
    if not findings:
        _check_reductions(pipeline, findings)
    if not findings:
        remark_peaks(pipeline)


def _run(pipeline: Pipeline, kind: str, findings: Findings) -> None:
    ranks, stages = pipeline.ranks[kind], pipeline.stages
    traffic = check_traffic(ranks, stages.mesh, stages.axis, findings)
    if findings:
        return
    execution = Execution(pipeline, kind, traffic, findings)
    execution.run()
    if execution.blocked:
        report_deadlock(execution.blocked, ranks, traffic, findings)
        return
    check_coverage(pipeline, kind, execution.calls, findings)
    if findings:
        return
    results = RankResults(pipeline, execution.expected, findings)
    for rank, known in zip(ranks, execution.results, strict=True):
        results.check(rank, known)


def _check_reductions(pipeline: Pipeline, findings: Findings) -> None:
    """Check V9 to V13 on what ranks return, as on one function; the stages' own results are only parts of that."""
    stages = pipeline.stages
    flows = stage_flows(stages)
    swept = sweep_stages(stages, flows)
    ranks: list[tuple[RankFunction, Analysed]] = [
        (rank, (rank.op, rank.signature, GradientFlow(rank.op, rank.signature, flows)))
        for kind in KINDS
        for rank in pipeline.ranks[kind]
    ]
    proof = ReductionProof(flows, [*swept, *(analysed for _, analysed in ranks)], stages.mesh, findings)
    proof.check_uses()
    for rank, analysed in ranks:
        held = {stage for stage, position in enumerate(pipeline.placement) if position == rank.coordinate}
        own = {
            name
            for function in stages.functions
            if function.stage in held
            for info in function.signature.results
            if info.role in ("grad", "partial", "loss", "weight")
            for name in info.names
        }
        proof.check(*analysed, only=own)
        proof.check_loss(*analysed, only=own)
