"""hp-recompute: what a checkpointed region computed is computed again for the backward instead of being kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ...dialect.attributes import i64_attr
from ...dialect.diagnostics import remark
from ...dialect.hp import COMMUNICATION
from ...dialect.levels import require_level
from ...dialect.signature import body_of, step_functions
from ...errors import PassError, nearest
from ..base import ModulePass
from ..phases import BACKWARD, Phases
from .decision import Decision, decide
from .kept_bytes import kept_bytes
from .regions import RECOMPUTE, RECOMPUTED, SAVED, Candidates, Kind

POLICIES = ("tagged",)


@dataclass(frozen=True)
class HpRecompute(ModulePass):
    """Compute again in the backward what checkpointed regions computed, instead of keeping it.

    A region is what one call of `torch.utils.checkpoint` ran: the forward's ops with one number as `hp.recompute`
    (Chen et al., 2016). What a region takes stays alive until the backward, what it makes does not.

    1. Where the backward uses a value that a region made, the ops that make it are cloned right before the first such
       use, as far back as the region goes, and as far as the backward has not cloned them yet. A clone has
       `hp.phase = "backward"` and `hp.recomputed`, the region's number, in place of `hp.recompute`. It reads
       what its op reads: arguments, what ops outside of the region made, other regions' results.
    2. A value that is alive in the backward anyhow is used as it is: one that the function returns (outputs excepted,
       which a training step does not return), that an op outside of the region saves (`hp.saved`, as capture found
       it), that another region's clones take, or of which a view outside of the region is used.
    3. Random draws are cloned with their `stream`, so they draw the same. New buffers that a clone makes (a batch
       norm's statistics) are not used: what the forward made is returned, once.
    4. Numbers, literals and custom operators are not cloned, their results stay; a remark names each custom operator
       that the backward needs something of.
    5. Communication within a region is repeated like any other op, a start and its wait together. So are the gathers
       of parameters that cloned ops read, with what hp-fsdp put behind them, and get `hp.phase = "backward"`; unless
       the backward has that full parameter from the forward (`reshard-after-forward=false`). Gathers equal to the
       backward's own are left for hp-simplify to merge.
    6. A remark on the function counts regions, cloned ops and the bytes of the forward's values that the backward
       uses, before and after (arguments do not count, dynamic sizes count as 1).

    Running it again changes nothing. hp-simplify and MLIR's `cse` merge no clone with the forward's op: their
    attributes differ.

    Requires: level "joint", "annotated" or "spmd". Best before hp-fsdp, which then gathers for the clones as for any
        use in the backward; before hp-bucket-collectives.
    Leaves: the level it found. Numbers are kept bitwise: the same ops on the same operands.
    Does not handle: in a region, torch's own random operators (all draws of captured steps are `hp.uniform` and
        `hp.normal`), mutating ops, calls, ops of other dialects and messages between ranks; parameters gathered in
        buckets that clones would read. These are refused before anything is changed.

    Options:
        policy: what is computed again; `tagged` (the default, the only one): what `hp.recompute` marks.

    Example: a region whose result goes into the backward of its own tanh,

    ```mlir
    %0 = torch.aten.mm %x, %w {hp.phase = "forward", hp.recompute = 0 : i64} : ...
    %1 = torch.aten.tanh %0 {hp.phase = "forward", hp.recompute = 0 : i64} : ...
    ...
    %2 = torch.aten.tanh_backward %grad, %1 {hp.phase = "backward"} : ...
    ```

    becomes

    ```mlir
    %0 = torch.aten.mm %x, %w {hp.phase = "forward", hp.recompute = 0 : i64} : ...
    %1 = torch.aten.tanh %0 {hp.phase = "forward", hp.recompute = 0 : i64} : ...
    ...
    %2 = torch.aten.mm %x, %w {hp.phase = "backward", hp.recomputed = 0 : i64} : ...
    %3 = torch.aten.tanh %2 {hp.phase = "backward", hp.recomputed = 0 : i64} : ...
    %4 = torch.aten.tanh_backward %grad, %3 {hp.phase = "backward"} : ...
    ```
    """

    name: ClassVar[str] = "hp-recompute"
    requires: ClassVar[tuple[str, ...]] = ("joint", "annotated", "spmd")

    policy: str = "tagged"

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            hint = nearest(self.policy, POLICIES) or f", expected '{POLICIES[0]}'"
            raise PassError(f"option 'policy' names no policy: '{self.policy}'{hint}")

    def run(self, module: ir.Operation) -> None:  # noqa: D102
        require_level(module, self.name, self.requires)
        decided = []
        for function in step_functions(module):
            if not _has_regions(function):
                continue
            phases = Phases(function)
            candidates = Candidates(function, phases)
            decided.append((function, phases, candidates, decide(function, candidates, phases)))
        for function, phases, candidates, decision in decided:
            before = kept_bytes(function, phases)
            _Cloning(candidates, decision).run()
            after = kept_bytes(function, phases)
            _report(function, candidates, decision, before, after)


class _Cloning:
    """Makes the clones and feeds the backward with them."""

    def __init__(self, candidates: Candidates, decision: Decision):
        self._candidates = candidates
        self._decision = decision
        self._copies: dict[ir.Value, ir.Value] = {}
        self._done: set[int] = set()

    def run(self) -> None:
        """Clone what each use needs right before it, unless an earlier use had it cloned."""
        for use in self._decision.uses:
            number = self._candidates.made[use.value]
            if number not in self._decision.cloned or use.value in self._decision.kept:
                continue
            for needed in self._missing(number):
                self._clone(needed, use.op)
            use.op.operands[use.operand] = self._copies[use.value]

    def _missing(self, number: int) -> Sequence[int]:
        """Return what is not cloned yet of a candidate and all that it needs, in order."""
        missing, pending = [], [number]
        while pending:
            each = pending.pop()
            if each in self._done:
                continue
            self._done.add(each)
            missing.append(each)
            for operand in self._candidates.found[each].op.operands:
                maker = self._candidates.made.get(operand)
                if maker in self._decision.cloned and operand not in self._decision.kept and maker is not None:
                    pending.append(maker)
        return sorted(missing)

    def _clone(self, number: int, before: ir.Operation) -> None:
        candidate = self._candidates.found[number]
        op = candidate.op
        copy = op.clone(ip=ir.InsertionPoint(before)).operation
        for position, operand in enumerate(op.operands):
            if operand in self._copies and operand not in self._decision.kept:
                copy.operands[position] = self._copies[operand]
        attributes = copy.attributes
        for name in (RECOMPUTE, SAVED):
            if name in attributes:
                del attributes[name]
        attributes["hp.phase"] = ir.StringAttr.get(BACKWARD, op.context)
        # A clone of communication may be merged with an equal one of the backward.
        if candidate.kind is Kind.REPEAT and candidate.region is not None and op.name not in COMMUNICATION:
            with op.context:
                attributes[RECOMPUTED] = i64_attr(candidate.region)
        self._copies.update(zip(op.results, copy.results, strict=True))


def _has_regions(function: ir.Operation) -> bool:
    return any(RECOMPUTE in view.operation.attributes for view in body_of(function).operations)


def _report(function: ir.Operation, candidates: Candidates, decision: Decision, before: int, after: int) -> None:
    for candidate in decision.unknown:
        remark(
            candidate.op,
            f"is in checkpointed region {candidate.region}: nothing is known of this operator, so it is not computed "
            "again and its results are kept",
        )
    regions = {candidate.region for candidate in candidates.found if candidate.region is not None}
    remark(
        function,
        f"checkpointed regions: {len(regions)}; ops computed again: {len(decision.cloned)}; "
        f"bytes kept for the backward: {before} before, {after} after",
    )
