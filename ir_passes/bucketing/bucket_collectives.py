"""hp-bucket-collectives: collectives that may travel together become one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ...collection import collection_paused
from ...dialect.diagnostics import error_at, remark
from ...dialect.levels import require_level
from ...dialect.signature import step_functions
from ...errors import PassError, nearest
from ...sizes import MIB, MOST_MIB
from ..base import ModulePass
from .bucket_plan import load_plans, plans_to_json
from .collectives import Collective, FunctionOps, argument_attributes, parameter_names
from .planner import Placement, place_plan, plan_function
from .rewrite import apply, report
from .scopes import MODULE, SIZE, Groups, Proposal, by_groups, by_module, by_size


@dataclass(frozen=True)
class HpBucketCollectives(ModulePass):
    """Fuse collectives of parameters and gradients into buckets.

    A bucket is one collective of several operands and one `hp.wait` of several results: the same values, fewer
    launches. A plan is made first, as data, and then applied; a stored plan can be applied as well.

    1. Candidates are all-gathers, reduce-scatters and all-reduces of one tensor that `hp.fqn` names the parameter of,
       each waited for once. Two may share a bucket only if their kind, phase, axes and reduction are equal; for
       reductions their dtype too. Others, such as those of activations, stay, and so do buckets.
    2. `by=module`: one bucket per unit of hp-fsdp; parameters outside units form the bucket "root". `by=size`: buckets
       are filled in the order in which collectives start, up to `cap-mb`. `by=[a,b.*],[c]`: one bucket per group of
       module patterns; what no group claims stays. Collectives over other axes (of experts, say) get buckets of their
       own in each scope.
    3. A bucket starts where its earliest member started or, if an input is not there yet, right behind the op that
       makes the latest. What makes an input by views, casts and padding alone moves with it: up, where it stands behind
       that place; down, where nothing else needs it before.
    4. A bucket is waited for where the earliest of its waits stood or, where it starts behind that, right before the
       first use of any result; views and casts of results that stood before move behind the wait. Nothing else moves.
    5. Where no place is behind the latest input and before the first use, the bucket is split: in the order of their
       starts, each member joins if it can, else it opens the next bucket (`layers.0 (2)`). A collective whose result
       feeds another's input never shares its bucket.
    6. Members keep their own dims, and their padding where shards are uneven.
    7. `hp.bucket` names the bucket, `hp.fqn` has the first name of each member's parameter, `hp.module` is the common
       part of the modules. A remark at each bucket and one at the function say how many bytes and launches there are,
       another where a bucket was split.

    Requires: level "spmd" or "staged".
    Leaves: the level it found. Gathers and reduce-scatters give the same bits. An all-reduce may round differently,
        since where a backend cuts a message depends on its length.
    Does not handle: a function with an op that changes an operand: it stays as it is, with a remark. Control flow,
        which is refused.

    Options:
        by: `module` (the default: what is used together travels together), `size`, or groups of module patterns.
        cap-mb: most MiB of a bucket with `by=size`, whole tensors and padding counted (default 64). A larger tensor
            travels alone.
        plan: a file with a stored plan, applied in place of a new one. It is refused where the function is not the one
            it was made for.
        print-plan: print the plan as JSON on stderr, in place of the remarks.

    Example: ``hp-bucket-collectives`` turns

    ```mlir
    %0 = "hp.all_gather"(%up) {axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["l.up"], hp.unit = "l", ...} : ...
    %1 = "hp.all_gather"(%down) {axes = ["dp"], dims = array<i64: 0>, hp.fqn = ["l.down"], hp.unit = "l", ...} : ...
    %2 = "hp.wait"(%0) : ...
    %3 = torch.aten.mm %x, %2 : ...
    %4 = "hp.wait"(%1) : ...
    ```

    into

    ```mlir
    %0 = "hp.all_gather"(%up, %down) {dims = array<i64: 0, 0>, hp.bucket = "l", hp.fqn = ["l.up", "l.down"], ...} : ...
    %1:2 = "hp.wait"(%0) {hp.bucket = "l", ...} : ...
    %2 = torch.aten.mm %x, %1#0 : ...
    ```
    """

    name: ClassVar[str] = "hp-bucket-collectives"
    requires: ClassVar[tuple[str, ...]] = ("spmd", "staged")

    by: tuple[str, ...] = (MODULE,)
    cap_mb: float = 64.0
    plan: str = ""
    print_plan: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.cap_mb <= MOST_MIB:
            raise PassError(f"option 'cap-mb' expects a number of MiB above 0, at most 1e9, got: {self.cap_mb:g}")
        if not self.by:
            raise PassError("option 'by' expects 'module', 'size' or groups of module patterns, got nothing")
        if self.plan and self.by != (MODULE,):
            raise PassError("options 'by' and 'plan' exclude each other: a stored plan says what is fused")
        Groups.parse(self.by)

    @collection_paused()
    def run(self, module: ir.Operation) -> None:  # noqa: D102
        require_level(module, self.name, self.requires)
        functions = [FunctionOps(function) for function in step_functions(module)]
        placements = self._stored(module, functions) if self.plan else self._planned(module, functions)
        if self.print_plan:
            sys.stderr.write(plans_to_json([placement.plan for _, placement in placements]))
        for ops, placement in placements:
            starts = apply(ops, placement)
            if not self.print_plan:
                report(ops, placement, starts)

    def _planned(self, module: ir.Operation, functions: Sequence[FunctionOps]) -> list[tuple[FunctionOps, Placement]]:
        if self.by not in ((MODULE,), (SIZE,)):
            parameters = {
                names: None
                for ops in functions
                for attributes in argument_attributes(ops.function)
                if (names := parameter_names(attributes))
            }
            parameters.update(dict.fromkeys(each.parameters for ops in functions for each in ops.collectives))
            try:
                Groups.parse(self.by).check(list(parameters))
            except PassError as error:
                raise error_at(module, f"{self.name}: {error}", named=False) from None
        placements = []
        for ops in functions:
            if ops.mutates and ops.launches:
                remark(ops.function, "has an op that changes an operand: nothing is fused")
            placement = plan_function(ops, self._propose, kept=self.print_plan)
            for split in placement.splits:
                remark(
                    ops.op(split.collective.start),
                    f"'{split.collective.parameters[0]}' does not join bucket '{split.bucket}': {split.misfit.text}",
                )
            placements.append((ops, placement))
        return placements

    def _propose(self, collectives: Sequence[Collective]) -> list[Proposal]:
        if self.by == (MODULE,):
            return by_module(collectives)
        if self.by == (SIZE,):
            return by_size(collectives, self.cap_mb * MIB)
        return by_groups(collectives, Groups.parse(self.by))

    def _stored(self, module: ir.Operation, functions: Sequence[FunctionOps]) -> list[tuple[FunctionOps, Placement]]:
        by_name = {ops.name: ops for ops in functions}
        placements = []
        for plan in load_plans(self.plan):
            if plan.function not in by_name:
                hint = nearest(plan.function, by_name)
                raise error_at(
                    module,
                    f"{self.name}: the bucket plan is for @{plan.function}, which the module does not have{hint}",
                    named=False,
                )
            ops = by_name[plan.function]
            placements.append((ops, place_plan(ops, plan)))
        return placements
