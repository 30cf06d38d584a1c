"""hp-plan: the passes that a plan file asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import PipelinePass


@dataclass(frozen=True)
class HpPlan(PipelinePass):
    """Run the passes that a plan file asks for.

    1. The file is read and checked: unknown keys, axes and values are refused, the nearest valid spelling named.
    2. The pass is replaced by the pipeline of the plan, before anything runs; ``--dump-pass-pipeline`` shows it.

    Requires: level "joint".
    Leaves: what the last of its passes leaves.
    Does not handle: a plan with sections for which this version has no pass; it is refused.

    Options:
        file: the plan, a TOML file. Must be given.

    Example: with ``mesh = { dp = 2 }`` and ``fsdp = { axes = ["dp"] }`` in `plan.toml`, ``hp-plan{file=plan.toml}`` is

    ```
    hp-set-mesh{axes=dp:2},hp-simplify,hp-recompute,hp-fsdp{axes=dp},hp-simplify,hp-verify-level
    ```
    """

    name: ClassVar[str] = "hp-plan"

    file: str

    def expand(self) -> str:  # noqa: D102
        from ..plan import Plan  # pydantic is slow to import

        return Plan.load(self.file).pipeline()
