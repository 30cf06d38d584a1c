"""hp-verify-level: check that a module keeps what its level promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ..dialect.levels import LEVELS, level_of
from ..errors import PassError, nearest
from .base import ModulePass
from .verification.findings import Findings
from .verification.joint import check_joint
from .verification.program import check_program
from .verification.spmd import check_spmd
from .verification.staged import check_staged


@dataclass(frozen=True)
class HpVerifyLevel(ModulePass):
    """Check that a module keeps what its level promises.

    Levels are contracts between passes. All broken rules are reported, each at the op or function that breaks it, with
    a note at the other op involved and the user's module where the op knows it.

    1. V1: before stages the module has one function, ``@joint``, of one block.
    2. V2, levels "joint" and "annotated": no communication, no `hp.shard_slice`.
    3. V3, levels "joint" and "annotated": types are global: no `hp.full_shape`, at "joint" no `hp.sharding`; at
       "annotated" each `hp.sharding` names the module's mesh and its axes.
    4. V4: names of state, of inputs and of outputs are unique; only parameters are trainable.
    5. V5: one loss, floating, of shape [] or [1]; at most one weight, of shape [] or [1].
    6. V6: each trainable parameter that the loss depends on has exactly one gradient, with all its names, its type and
       (but at "annotated") its sharding; frozen and unused parameters have none. With stages: at least one of its
       stages returns one, and none two.
    7. V7: new buffers match their buffers in the same way.
    8. V8, from level "spmd" on: every `hp.sharding` names the module's mesh, and types are local: those of the largest
       shard.
    9. V9, from level "spmd" on: no op computes with a parameter's shard over a data axis without gathering it,
       and a gather with an `hp.fqn` names the parameters whose shards it gathers.
    10. V10, from level "spmd" on: every gradient is reduced exactly once over each data axis. This is proved by a
        dataflow over the functions: not at all, twice, and a sum of reduced and unreduced values are told apart. At
        "program" it is the gradients that ranks return: stages or ranks reduce them. A reduction with an `hp.fqn` names
        the parameter whose gradient it reduces.
    11. V11, from level "spmd" on: no gradient is reduced over an axis that splits no argument.
    12. V12, from level "spmd" on: gradients and loss are reduced by "avg" with a plain loss, by "sum" where a function
        returns a weight.
    13. V13, from level "spmd" on: over the data axes a gradient is split as its parameter is.
    14. V14: every dim that changes has a name (`hp.dim_names`), and these names and those in `hp.guards` are sizes.
    15. V15, with stages: `hp.pipeline_axis` and `hp.stage_count` are stated; functions are named ``@stage<k>_<task>``,
        as their `hp.stage` and `hp.task` say; each stage has a forward, and its backward is one function or two.
    16. V16: roles fit what a function does: before stages nothing crosses; a forward takes nothing
        saved and returns no gradient, a backward returns no loss, weight or output.
    17. V17, with stages: each value that crosses has one maker, of the stage and task in its name, and is taken, with
        its type, by functions that run later. It is "outgoing" where another stage takes it, "incoming" where it comes
        from one, and "saved" otherwise.
    18. V18, with stages: state is the same wherever it is taken, and only the stages in its `hp.stages` have it. A
        buffer that the step updates is of one stage.
    19. V19, with stages: stage functions call nothing, send and receive nothing, and communicate over other axes than
        the pipeline's only.
    20. V20, level "program": `hp.schedule`, `hp.microbatches` and `hp.placement` are stated; each position of the
        pipeline axis has one ``@rank<i>`` and one ``@evaluate<i>``, with `hp.coordinate` and `hp.kind`.
    21. V21, level "program": on each channel the k-th send and the k-th receive have the same types and header, and
        there are as many of the one as of the other.
    22. V22, level "program": positions that take part in a collective over the pipeline axis reach the same ones in the
        same order.
    23. V23, level "program": no deadlock. All ranks' functions are run together on what is known of their values: a
        send goes on and completes when it is received, later ones of its channel behind it; a wait blocks until the
        other end has come to it. Ranks that wait for each other are told as a circle, with each one's op.
    24. V24, level "program": each stage function is called once per microbatch, on the rank of its stage, a backward
        behind its forward; to evaluate, forwards alone.
    25. V25, level "program": a call for a microbatch is given that microbatch's values, through whatever messages they
        came, its part of the inputs, and buffers that all microbatches before it have updated.
    26. V26, level "program": every rank returns the loss, reduced, and the gradients of all parameters it holds. Each
        adds every microbatch of every stage that has a part in it once, over owners too, and is divided once.

    The data axes are those that split the batch dims of the inputs; where no input is split, those over which any
    gradient is reduced. Axes of size 1 are passed over. Where a rule is broken, what rests on it is not looked at.

    At level "program" a remark per rank says the most bytes it holds at once and of how many microbatches (see
    `live_bytes`).

    Requires: any level.
    Leaves: the module as it is.
    Does not handle: partial sums over axes that are no data axes. Inputs' shapes against each other. What outputs are
        put together of. That rows of a microbatch are what its sizes say.

    Options:
        level: the level whose contract is checked; default the one the module states.

    Example: a gradient that is reduced by two passes gives

    ```
    step.mlir:9:8: error: 'hp.all_reduce' op gradient of 'w' is reduced twice over axis 'dp'
    step.mlir:7:8: note: first reduced here
    ```
    """

    name: ClassVar[str] = "hp-verify-level"

    level: str = ""

    def __post_init__(self) -> None:
        if self.level and self.level not in LEVELS:
            hint = nearest(self.level, LEVELS) or f", expected one of {', '.join(LEVELS)}"
            raise PassError(f"option 'level' names no level: '{self.level}'{hint}")

    def run(self, module: ir.Operation) -> None:  # noqa: D102
        level = self.level or level_of(module)
        findings = Findings()
        if level == "program":
            check_program(module, findings)
        elif level == "staged":
            check_staged(module, findings)
        elif level == "spmd":
            check_spmd(module, findings)
        else:
            check_joint(module, findings, annotated=level == "annotated")
        findings.raise_any()
