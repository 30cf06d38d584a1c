"""The gathers of hp-fsdp: where each starts, where it is waited for, and what it feeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from ...dialect.signature import body_of
from ..build import Builder, Site
from ..phases import BACKWARD, Phases, earlier
from .parameter_chains import ParameterUses, all_uses, feed, uses_by_phase
from .parameter_plan import ParameterPlan
from .uneven import trim
from .units import ROOT


@dataclass
class Gather:
    """One gather of one parameter: `use` is the first op that needs it, `full` the gathered value once it is made."""

    plan: ParameterPlan
    shard: ir.Value
    phase: str
    use: ir.Operation
    start: ir.Operation | None = None
    full: ir.Value | None = None


def insert_gathers(
    builder: Builder,
    plans: Sequence[ParameterPlan],
    values: Mapping[int, ir.Value],
    phases: Phases,
    axes: Sequence[str],
    reshard_after_forward: bool,
) -> None:
    """Turn each sharded parameter into its shard and feed its uses with gathered values.

    Args:
        builder: of the function.
        plans: all parameters; those that stay whole are passed over.
        values: argument number to the value that stands for the parameter: the argument or its cast at the entry.
        phases: of the function.
        axes: the axes that split parameters.
        reshard_after_forward: whether the backward gathers anew.
    """
    fed: list[tuple[ir.Value, ParameterUses, Gather | None, Gather | None]] = []
    for plan in plans:
        if not plan.sharded:
            continue
        value = values[plan.info.index]
        uses = uses_by_phase(value, phases) if reshard_after_forward else all_uses(value)
        first = second = None
        if uses.first_forward is not None:
            first = Gather(plan, value, phases.of(uses.first_forward), uses.first_forward)
        if uses.first_backward is not None:
            second = Gather(plan, value, BACKWARD, uses.first_backward)
        fed.append((value, uses, first, second))
    _make_local(builder, [plan for plan in plans if plan.sharded], values)
    gathers = [gather for _, _, *pair in fed for gather in pair if gather is not None]
    _start(builder, gathers, axes)
    for gather in gathers:
        _wait(builder, gather, axes)
    for value, uses, first, second in fed:
        feed(uses, value, first.full if first else None, second.full if second else None)


def _make_local(builder: Builder, plans: Sequence[ParameterPlan], values: Mapping[int, ir.Value]) -> None:
    arguments = body_of(builder.function).arguments
    with builder.function.context:
        for plan in plans:
            argument, value, local = arguments[plan.info.index], values[plan.info.index], plan.local.type
            argument.set_type(local.to_mlir())
            if value != argument:
                value.set_type(local.with_dtype(plan.compute_dtype).to_mlir())


def _start(builder: Builder, gathers: Sequence[Gather], axes: Sequence[str]) -> None:
    # A unit's gathers start together, before whatever of it is used first; root parameters each on their own: the root
    # unit is not one stretch of the step (an embedding and a head, say).
    first: dict[tuple[str, str], ir.Operation | None] = {}
    for gather in gathers:
        key = (gather.phase, gather.plan.unit)
        first[key] = earlier(first.get(key), gather.use)
    for gather in gathers:
        unit = gather.plan.unit
        together = gather.use if unit == ROOT else first[gather.phase, unit]
        site = Site.before(together or gather.use, gather.plan.marks(gather.phase))
        gather.start = builder.all_gather(site, gather.shard, axes)


def _wait(builder: Builder, gather: Gather, axes: Sequence[str]) -> None:
    plan = gather.plan
    site = Site.before(gather.use, plan.marks(gather.phase))
    gathered = builder.wait(site, gather.start)
    counts = builder.mesh.sizes(axes)
    gather.full = trim(builder, site.marked(plan.place(gather.phase)), gathered, plan.rows, counts)
