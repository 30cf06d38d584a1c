"""What rank functions return: rule V26 at its end, and what of V24 is about calls.

The rules are in `totals` and `coverage`; here they meet what each rank hands out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_mlir import ir

from ...dialect.signature import ValueInfo
from .findings import Findings
from .microbatch_values import Known, Origin, Total, lowest
from .rank_functions import Pipeline, RankFunction
from .signature_rules import called, check_loss, check_names, check_owner

Parts = Mapping[tuple[str, str], tuple[tuple[int, int], ...]]
"""By role and name, the parts of the whole sum."""


class RankResults:
    """Checks what rank functions return.

    Args:
        pipeline: the module.
        expected: the parts of each whole sum.
        findings: gets what is wrong.
    """

    def __init__(self, pipeline: Pipeline, expected: Parts, findings: Findings):
        self._pipeline = pipeline
        self._expected = expected
        self._findings = findings
        self._weighted = ("weight", "weight") in expected
        self._updated: dict[str, int] = {}
        for function in pipeline.stages.functions:
            for info in function.signature.results_with_role("buffer"):
                self._updated[info.name] = function.stage

    def check(self, rank: RankFunction, results: Sequence[Known | None]) -> None:
        """Check one rank function, whose results are known to be `results`."""
        check_names(rank.op, rank.signature, self._findings)
        check_loss(rank.op, rank.signature, self._findings)
        if self._weighted and not rank.signature.results_with_role("weight"):
            self._findings.add(rank.op, f"@{rank.name} returns no weight, which the loss is divided by")
        parameters = {name: info for info in rank.signature.with_role("param") for name in info.names}
        buffers = {name: info for info in rank.signature.with_role("buffer") for name in info.names}
        totals: list[tuple[ValueInfo, Total]] = []
        have: set[str] = set()
        for info, known in zip(rank.signature.results, results, strict=True):
            if info.role == "grad":
                check_owner(rank.op, info, ("a gradient", "parameter"), parameters, self._findings)
                if info.name in have:
                    where = called(rank.op, "result", info)
                    self._findings.add(rank.op, f"{where}: parameter '{info.name}' has another gradient")
            elif info.role == "buffer":
                check_owner(rank.op, info, ("a new value", "buffer"), buffers, self._findings)
                self._check_buffer(rank, info, known)
            have.update(info.names)
            if info.role in ("loss", "weight", "grad"):
                total = self._check_total(rank, info, known)
                if total is not None:
                    totals.append((info, total))
        self._check_divisors(rank, totals)
        if rank.kind == "train":
            self._check_missing(rank, have)

    def _check_total(self, rank: RankFunction, info: ValueInfo, known: Known | None) -> Total | None:
        """Return the sum that a result is, if it is the whole one."""
        where = called(rank.op, "result", info)
        what = f"the gradient of '{info.name}'" if info.role == "grad" else f"the {info.role}"
        expected = self._expected.get((info.role, info.name))
        if not isinstance(known, Total) or known.role != info.role or info.name not in known.names:
            got = "something else" if known is None else str(known)
            self._add(rank, info, f"{where}: expected {what} of the whole step, got: {got}")
            return None
        if expected is None or known.parts == expected:
            return known
        have = dict(known.parts)
        for stage, full in expected:
            left = full & ~have.get(stage, 0)
            if left == full:
                self._add(rank, info, f"{where}: {what} lacks the part of stage {stage}, which has one too")
                return None
            if left:
                self._add(rank, info, f"{where}: {what} lacks microbatch {lowest(left)} of stage {stage}")
                return None
        return None

    def _check_divisors(self, rank: RankFunction, totals: Sequence[tuple[ValueInfo, Total]]) -> None:
        mean = "microbatches" if self._pipeline.microbatches > 1 else ""
        allowed = ("weight", "") if self._weighted else (mean,)
        losses = [total.divisor for info, total in totals if info.role == "loss"]
        if losses and losses[0] in allowed:
            allowed = (losses[0],)
        for info, total in totals:
            if info.role == "weight":
                if total.divisor:
                    self._add(rank, info, f"{called(rank.op, 'result', info)}: the weight is divided")
            elif total.divisor not in allowed:
                where = called(rank.op, "result", info)
                self._add(
                    rank, info, f"{where}: {total} is {_divided(total.divisor)}, expected it {_divided(allowed[0])}"
                )

    def _check_buffer(self, rank: RankFunction, info: ValueInfo, known: Known | None) -> None:
        expected = Origin("buffer", info.name, self._pipeline.microbatches)
        if known != expected:
            where = called(rank.op, "result", info)
            got = "something else" if known is None else str(known)
            self._add(rank, info, f"{where}: expected {expected}, got: {got}")

    def _check_missing(self, rank: RankFunction, have: set[str]) -> None:
        for info in rank.signature.with_role("param"):
            if info.trainable and ("grad", info.name) in self._expected and info.name not in have:
                self._findings.add(rank.op, f"@{rank.name} holds '{info.name}' but returns no gradient of it")
        for info in rank.signature.with_role("buffer"):
            stage = self._updated.get(info.name)
            if stage is not None and info.name not in have:
                self._findings.add(rank.op, f"@{rank.name} returns no new value of buffer '{info.name}'")

    def _add(self, rank: RankFunction, info: ValueInfo, message: str) -> None:
        """Note a broken rule at the op that makes a result."""
        owner = rank.end.operands[info.index].owner
        at = rank.end if isinstance(owner, ir.Block) else owner.operation
        notes = [] if at is rank.end else [(rank.end, f"returned here as result {info.index}")]
        self._findings.add(at, message, notes=notes)


def _divided(divisor: str) -> str:
    spelled = {"": "not divided", "microbatches": "divided by hp.microbatches", "weight": "divided by the weight"}
    return spelled[divisor]
