"""The passes that a plan's sections ask for, as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .errors import PlanError
from .ir_passes.pipeline.schedules import ALGORITHMS, ScheduleError, make_schedule, read_table
from .plan_sections import BucketsPlan, FsdpPlan, OverlapPlan, PipelinePlan


def fsdp_pass(fsdp: FsdpPlan, axes: Sequence[str], replicate_axes: Sequence[str]) -> str:
    """Return the pass that splits parameters over `axes` and holds equal copies along `replicate_axes`."""
    options = [f"axes={','.join(axes)}"]
    lists = (("replicate-axes", replicate_axes), ("units", fsdp.units), ("ignore", fsdp.ignore))
    options += [f"{name}={_quoted_list(values)}" for name, values in lists if values]
    if not fsdp.reshard_after_forward:
        options.append("reshard-after-forward=false")
    if fsdp.param_dtype is not None:
        options.append(f"param-dtype={fsdp.param_dtype}")
    if fsdp.reduce_dtype is not None:
        options.append(f"reduce-dtype={fsdp.reduce_dtype}")
    return f"hp-fsdp{{{' '.join(options)}}}"


def bucket_passes(buckets: BucketsPlan) -> list[str]:
    """Return the passes that fuse collectives."""
    if buckets.by == "size":
        options = f"by=size cap-mb={buckets.cap_mb:.12g}"
    elif buckets.by == "module":
        options = "by=module"
    else:
        options = f"by={_groups(buckets.by)}"
    return [f"hp-bucket-collectives{{{options}}}", f"hp-expand-buckets{{layout={buckets.layout}}}"]


def overlap_pass(overlap: OverlapPlan, folder: Path) -> str:
    """Return the pass that orders collectives; files that a plan in `folder` names lie there."""
    options = []
    if overlap.prefetch != 1:
        options.append(f"prefetch={overlap.prefetch}")
    if overlap.memory_limit_mb:
        options.append(f"memory-limit-mb={overlap.memory_limit_mb:.12g}")
    if overlap.costs:
        options.append(f"costs={_quoted(str(folder / overlap.costs))}")
    return "hp-overlap-collectives" + (f"{{{' '.join(options)}}}" if options else "")


def stage_count(pipeline: PipelinePlan, ranks: int) -> int:
    """Return how many stages there are on a pipeline axis of so many ranks."""
    if pipeline.stages != "auto":
        return len(pipeline.stages)
    per_rank = pipeline.stages_per_rank
    if per_rank is None:
        one_each = pipeline.table or ALGORITHMS[pipeline.schedule].shape == "one"
        per_rank = 1 if one_each else 2
    return per_rank * ranks


def schedule_problem(pipeline: PipelinePlan, ranks: int) -> str:
    """Return why a schedule does not go with its number of stages; empty where it does."""
    if pipeline.table:
        return ""
    try:
        make_schedule(pipeline.schedule, ranks, stage_count(pipeline, ranks), 1)
    except ScheduleError as error:
        return str(error)
    return ""


def split_passes(pipeline: PipelinePlan, ranks: int, microbatches: int, folder: Path) -> list[str]:
    """Return the passes that make functions of stages.

    Raises:
        PlanError: the table of a schedule of one's own cannot be read, or is none for so many stages.
    """
    options = [] if pipeline.axis == "pp" else [f"axis={_quoted(pipeline.axis)}"]
    count = stage_count(pipeline, ranks)
    if pipeline.stages != "auto":
        options.append(f"stages={_groups(pipeline.stages)}")
    elif count != ranks:
        options.append(f"stages={count}")
    in_two_parts = ALGORITHMS[pipeline.schedule].split_backward
    if pipeline.table:
        try:
            table = read_table(folder / pipeline.table, ranks=ranks, stages=count, microbatches=microbatches)
        except ScheduleError as error:
            raise PlanError(f"pipeline.table: {error}") from None
        in_two_parts = table.split_backward
    assign = "hp-assign-stages" + (f"{{{' '.join(options)}}}" if options else "")
    return [assign, "hp-split-stages{split-backward}" if in_two_parts else "hp-split-stages"]


def schedule_passes(pipeline: PipelinePlan, microbatches: int, folder: Path) -> list[str]:
    """Return the passes that write the ranks' functions; files that a plan in `folder` names lie there."""
    order = f"table={_quoted(str(folder / pipeline.table))}" if pipeline.table else f"schedule={pipeline.schedule}"
    passes = [f"hp-schedule-pipeline{{{order} microbatches={microbatches}}}"]
    if pipeline.hoist_gathers:
        passes.append("hp-hoist-gathers")
    if pipeline.sink_reductions:
        passes.append("hp-sink-reductions")
    return passes


def _groups(groups: Sequence[str | Sequence[str]]) -> str:
    lists = [(group,) if isinstance(group, str) else group for group in groups]
    return ",".join(f"[{_quoted_list(group)}]" for group in lists)


def _quoted(value: str) -> str:
    from .ir_passes.pipeline_text import quote  # imports MLIR, which a plan as such does without

    return quote(value)


def _quoted_list(values: Sequence[str]) -> str:
    from .ir_passes.pipeline_text import quote_list

    return quote_list(values)
