"""Which ops of checkpointed regions the backward computes again, and which of their values it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_mlir import ir

from ...dialect.diagnostics import error_at
from ...dialect.signature import body_of, return_of
from ..phases import BACKWARD, Phases
from ..views import is_link
from .regions import RECOMPUTED, Candidate, Candidates, Kind, saved_results


@dataclass(frozen=True)
class BackwardUse:
    """The use of a candidate's value, operand number `operand`, by an op of the backward."""

    op: ir.Operation
    operand: int
    value: ir.Value


@dataclass
class Decision:
    """What is to be done.

    Attributes:
        uses: uses in the backward of values that may be computed again, in order.
        cloned: numbers of the candidates to clone.
        kept: values that stay alive for the backward; those of a cloned op among them are not used from the clone.
        unknown: candidates that the backward needs and that stay because nothing is known of them.
    """

    uses: list[BackwardUse] = field(default_factory=list)
    cloned: set[int] = field(default_factory=set)
    kept: set[ir.Value] = field(default_factory=set)
    unknown: list[Candidate] = field(default_factory=list)


def decide(function: ir.Operation, candidates: Candidates, phases: Phases) -> Decision:
    """Decide what the backward computes again.

    A value is kept if something holds it anyhow: the function returns it, an op outside of its region saves it for the
    backward, a region that is computed again takes it as input, or a view of it is kept. What else the backward needs
    of a region is computed again, from what that takes. One sweep in reverse order decides: all users of a value stand
    behind it.

    Args:
        function: a `func.func` with one block.
        candidates: of the function.
        phases: of the function.

    Raises:
        IRError: a bucket would have to be gathered again.
    """
    decision = Decision()
    _Sweep(candidates, decision, _read_uses(function, candidates, phases, decision)).run()
    return decision


def _read_uses(function: ir.Operation, candidates: Candidates, phases: Phases, decision: Decision) -> set[ir.Value]:
    """Fill in the uses of the backward and what is kept from the start; return what the backward itself uses."""
    for candidate in candidates.found:
        decision.kept.update(saved_results(candidate.op))
    returned = return_of(function)
    decision.kept.update(
        operand
        for number, operand in enumerate(returned.operands)
        if operand in candidates.made and number not in _outputs(function)
    )
    for view in body_of(function).operations:
        op = view.operation
        if phases.of(op) != BACKWARD:
            continue
        for number, operand in enumerate(op.operands):
            if operand not in candidates.made:
                continue
            if RECOMPUTED in op.attributes:
                decision.kept.add(operand)  # what an earlier run took as a region's input
            else:
                decision.uses.append(BackwardUse(op, number, operand))
    return {use.value for use in decision.uses}


def _outputs(function: ir.Operation) -> set[int]:
    """Return numbers of results that a training step does not return: it is asked for them when it only evaluates."""
    if "res_attrs" not in function.attributes:
        return set()
    output = ir.StringAttr.get("output", function.context)
    roles = [ir.DictAttr(item) for item in ir.ArrayAttr(function.attributes["res_attrs"])]
    return {number for number, role in enumerate(roles) if "hp.role" in role and role["hp.role"] == output}


class _Sweep:
    """One walk over the candidates, last first.

    Args:
        candidates: of the function.
        decision: is filled in.
        used: values that ops of the backward use.
    """

    def __init__(self, candidates: Candidates, decision: Decision, used: set[ir.Value]):
        self._candidates = candidates
        self._decision = decision
        self._used = used
        self._needed = set(used)

    def run(self) -> None:
        """Decide on every candidate."""
        visits = {
            Kind.REPEAT: self._repeat,
            Kind.GATHER: self._gather,
            Kind.VIEW: self._view,
            Kind.KEEP: self._keep,
        }
        for number in range(len(self._candidates.found) - 1, -1, -1):
            candidate = self._candidates.found[number]
            visits[candidate.kind](number, candidate, list(candidate.op.results))

    def _repeat(self, number: int, candidate: Candidate, results: Sequence[ir.Value]) -> None:
        if candidate.is_view and self._is_kept(results):
            self._keep_operands(candidate)
        if not self._is_needed(results):
            return
        self._decision.cloned.add(number)
        # A backward that reads a view of a gathered parameter has that parameter already, and need not gather it.
        holds_gathered = is_link(candidate.op) and not self._used.isdisjoint(results)
        for operand, maker in self._operands(candidate):
            if maker.kind is Kind.GATHER and holds_gathered:
                self._decision.kept.add(operand)
            elif maker.region is None or maker.region == candidate.region:
                self._needed.add(operand)
            else:
                self._decision.kept.add(operand)

    def _gather(self, number: int, candidate: Candidate, results: Sequence[ir.Value]) -> None:
        if self._is_kept(results) or not self._used.isdisjoint(results):
            self._keep_operands(candidate)
            self._decision.kept.update(results)
        elif self._is_needed(results):
            if "hp.bucket" in candidate.op.attributes:
                raise error_at(
                    candidate.op, "is a bucket that would have to be gathered again; run hp-recompute before bucketing"
                )
            self._decision.cloned.add(number)
            self._needed.update(operand for operand, _ in self._operands(candidate))

    def _view(self, _: int, candidate: Candidate, results: Sequence[ir.Value]) -> None:
        if self._is_kept(results) or self._is_needed(results):
            self._decision.kept.update(results)
            self._keep_operands(candidate)

    def _keep(self, _: int, candidate: Candidate, results: Sequence[ir.Value]) -> None:
        if candidate.op.name == "torch.operator" and self._is_needed(results):
            self._decision.unknown.append(candidate)
        self._decision.kept.update(results)

    def _is_kept(self, results: Sequence[ir.Value]) -> bool:
        return not self._decision.kept.isdisjoint(results)

    def _is_needed(self, results: Sequence[ir.Value]) -> bool:
        return any(result in self._needed and result not in self._decision.kept for result in results)

    def _operands(self, candidate: Candidate) -> list[tuple[ir.Value, Candidate]]:
        pairs = [(operand, self._candidates.of(operand)) for operand in candidate.op.operands]
        return [(operand, maker) for operand, maker in pairs if maker is not None]

    def _keep_operands(self, candidate: Candidate) -> None:
        self._decision.kept.update(operand for operand, _ in self._operands(candidate))
