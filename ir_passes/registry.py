"""Every pass of hpir by name. A pass's module is imported when the pass is used, so that `hp-opt` starts fast."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from ..errors import nearest
from .base import AnyPass

PASSES: dict[str, str] = {
    "hp-set-mesh": "sharding.set_mesh:HpSetMesh",
    "hp-simplify": "cleanup.simplify:HpSimplify",
    "hp-recompute": "recompute.recompute:HpRecompute",
    "hp-fsdp": "sharding.fsdp:HpFsdp",
    "hp-assign-stages": "pipeline.assign_stages:HpAssignStages",
    "hp-split-stages": "pipeline.split_stages:HpSplitStages",
    "hp-bucket-collectives": "bucketing.bucket_collectives:HpBucketCollectives",
    "hp-overlap-collectives": "overlap.overlap_collectives:HpOverlapCollectives",
    "hp-expand-buckets": "bucketing.expand_buckets:HpExpandBuckets",
    "hp-schedule-pipeline": "pipeline.schedule_pipeline:HpSchedulePipeline",
    "hp-hoist-gathers": "pipeline.hoist_gathers:HpHoistGathers",
    "hp-sink-reductions": "pipeline.sink_reductions:HpSinkReductions",
    "hp-verify-level": "verify_level:HpVerifyLevel",
    "hp-plan": "plan_pipeline:HpPlan",
}
"""Name to ``module:class``, the module relative to `ir_passes`; in the order of the road."""

MLIR_PASSES: tuple[str, ...] = (
    "canonicalize",
    "cse",
    "inline",
    "print-op-stats",
    "remove-dead-values",
    "sccp",
    "strip-debuginfo",
    "symbol-dce",
    "symbol-privatize",
    "topological-sort",
    "torch-decompose-complex-ops",
    "torch-fuse-quantized-ops",
    "torch-recompose-complex-ops",
    "torch-scalarize-shapes",
    "view-op-graph",
)
"""MLIR's and torch-mlir's passes that mean something here: what messages and ``--list-passes`` name. Others run too."""


def is_registered(name: str) -> bool:
    """Tell whether hpir has a pass of this name; nothing is imported."""
    return name in PASSES


def load_pass(name: str) -> type[AnyPass]:
    """Import and return the class of a registered pass."""
    module, _, class_name = PASSES[name].partition(":")
    cls: type[AnyPass] = getattr(importlib.import_module(f".{module}", __package__), class_name)
    return cls


def load_all() -> dict[str, type[AnyPass]]:
    """Import every pass; name to class, in the order of the registry."""
    return {name: load_pass(name) for name in PASSES}


def summary(cls: type[AnyPass]) -> str:
    """Return the first line of a pass's docstring."""
    return (cls.__doc__ or "").strip().partition("\n")[0]


def suggest(name: str, *, also: Iterable[str] = ()) -> str:
    """Return ``", did you mean 'hp-fsdp'?"`` for the known pass names nearest to `name`, or an empty string."""
    return nearest(name, (*PASSES, *MLIR_PASSES, *also))
