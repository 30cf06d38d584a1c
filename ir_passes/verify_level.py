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

    1. V1: the module has one function, ``@joint``, of one block.
    2. V2, levels "joint" and "annotated": no communication, no `hp.shard_slice`.
    3. V3, levels "joint" and "annotated": types are global: no `hp.full_shape`, at "joint" no `hp.sharding`; at
       "annotated" each `hp.sharding` names the module's mesh and its axes.
    4. V4: names of state, of inputs and of outputs are unique; only parameters are trainable.
    5. V5: one loss, floating, of shape [] or [1]; at most one weight, of shape [] or [1].
    6. V6: each trainable parameter that the loss depends on has exactly one gradient, with all its names, its type and
       (but at "annotated") its sharding; frozen and unused parameters have none.
    7. V7: new buffers match their buffers in the same way.
    8. V8, level "spmd": every `hp.sharding` names the module's mesh, and types are local: those of the largest shard.
    9. V9, level "spmd": no op computes with a parameter's shard over a data axis without gathering it.
    10. V10, level "spmd": every gradient is reduced exactly once over each data axis. This is proved by a dataflow
        over the function: not at all, twice, and a sum of reduced and unreduced values are told apart.
    11. V11, level "spmd": no gradient is reduced over an axis that splits no argument.
    12. V12, level "spmd": gradients and loss are reduced by "avg" with a plain loss, by "sum" where the function
        returns a weight.
    13. V13, level "spmd": over the data axes a gradient is split as its parameter is.
    14. V14: every dim that changes has a name (`hp.dim_names`), and these names and those in `hp.guards` are sizes.

    The data axes are those that split the batch dims of the inputs; where no input is split, those over which any
    gradient is reduced. Axes of size 1 are passed over.

    Requires: level "joint", "annotated" or "spmd".
    Leaves: the module as it is.
    Does not handle: levels "staged" and "program", which are refused: nothing of them is verified yet. Partial sums
        over axes that are no data axes. Inputs' shapes against each other.

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
