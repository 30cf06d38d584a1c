"""The reductions of hp-fsdp: where each gradient's starts and where it is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cmp_to_key

from torch_mlir import ir

from ...dialect.signature import return_of
from ...dialect.types import FLOAT_DTYPES
from ..build import Builder, Site, type_of
from ..phases import BACKWARD, Phases
from .parameter_plan import DataAxes, GradientPlan
from .uneven import pad
from .units import ROOT


def _compare(one: ir.Operation, other: ir.Operation) -> int:
    return -1 if one.is_before_in_block(other) else int(one != other)


_BY_POSITION = cmp_to_key(_compare)


@dataclass
class Reduction:
    """One gradient on its way.

    Attributes:
        gradient: which.
        start: its latest collective.
        remaining: axes to reduce over after that.
        done: whether the reduced gradient is returned.
    """

    gradient: GradientPlan
    start: ir.Operation
    remaining: tuple[str, ...]
    done: bool = False


class GradientReductions:
    """Reduces the gradients that a function returns, exactly once over each data axis.

    The reductions of a unit start together, right behind the op that makes the last of its gradients, so that they can
    travel together. A started collective keeps its whole input alive, so its wait must follow soon; but not at once, or
    nothing overlaps. Units are put in the order in which their last
    reductions start: the waits of one stand behind the last start of the next, those of the last before the return.
    The all-reduce over the axes that hold equal shards starts where its reduce-scatter is waited for, and its own wait
    stands one unit further on.

    Args:
        builder: of the function.
        phases: of the function.
        axes: the data axes.
        reduce: "avg" or "sum".
        reduce_dtype: dtype to reduce in; empty for the gradient's own.
    """

    def __init__(self, builder: Builder, phases: Phases, axes: DataAxes, reduce: str, reduce_dtype: str):
        self._builder = builder
        self._phases = phases
        self._axes = axes
        self._reduce = reduce
        self._dtype = reduce_dtype
        self._return = return_of(builder.function)

    def insert(self, gradients: Sequence[GradientPlan]) -> None:
        """Reduce the gradients and return the reduced ones."""
        members: dict[tuple[str, int], list[GradientPlan]] = {}
        for gradient in gradients:
            plan = gradient.parameter
            unit = (plan.unit, plan.info.index if plan.unit == ROOT else 0)  # root parameters are a unit each
            members.setdefault(unit, []).append(gradient)
        units = {unit: self._start(group) for unit, group in members.items()}
        last = {unit: max((item.start for item in items), key=_BY_POSITION) for unit, items in units.items()}
        ordered = sorted(units, key=lambda unit: _BY_POSITION(last[unit]))
        sites = [Site.after(last[unit]) for unit in ordered[1:]]
        end = Site.before(self._return)
        for number in range(len(ordered) + 1):
            site = sites[number] if number < len(sites) else end
            if number > 0:  # what the unit before started where it was waited for first
                for reduction in units[ordered[number - 1]]:
                    self._wait(reduction, site)
            if number < len(ordered):
                for reduction in units[ordered[number]]:
                    self._wait(reduction, site)

    def _start(self, gradients: Sequence[GradientPlan]) -> list[Reduction]:
        """Start the reductions of a unit behind its last gradient; what they reduce is made ready before the first."""
        values = [self._return.operands[gradient.result] for gradient in gradients]
        site = self._site(values)
        ready = [self._ready(gradient, value, site) for gradient, value in zip(gradients, values, strict=True)]
        reductions = []
        for gradient, value in zip(gradients, ready, strict=True):
            plan = gradient.parameter
            marked = site.marked(plan.marks(BACKWARD))
            if plan.sharded:
                start = self._builder.reduce_scatter(marked, value, self._axes.shard, self._reduce)
                reductions.append(Reduction(gradient, start, self._axes.replicate))
            else:
                start = self._builder.all_reduce(marked, value, self._axes.all, self._reduce)
                reductions.append(Reduction(gradient, start, ()))
        return reductions

    def _ready(self, gradient: GradientPlan, value: ir.Value, site: Site) -> ir.Value:
        """Return a gradient in the dtype and the rows that are reduced."""
        builder, plan = self._builder, gradient.parameter
        place = site.marked(plan.place(BACKWARD))
        if self._dtype and type_of(value).dtype in FLOAT_DTYPES:
            value = builder.cast(place, value, self._dtype)
        if plan.sharded:
            value = pad(builder, place, value, plan.rows, builder.mesh.sizes(self._axes.shard))
        return value

    def _site(self, values: Sequence[ir.Value]) -> Site:
        owners = [value.owner for value in values]
        # A gradient that is an argument, a constant or made by the forward is reduced with the backward's last.
        if any(isinstance(owner, ir.Block) or self._phases.of(owner.operation) != BACKWARD for owner in owners):
            return Site.before(self._return)
        return Site.after(max((owner.operation for owner in owners), key=_BY_POSITION))

    def _wait(self, reduction: Reduction, site: Site) -> None:
        builder, plan = self._builder, reduction.gradient.parameter
        if reduction.done:
            return
        site = Site(site.point, reduction.start.location, plan.marks(BACKWARD))
        value = builder.wait(site, reduction.start)
        if reduction.remaining:
            reduction.start = builder.all_reduce(site, value, reduction.remaining, self._reduce)
            reduction.remaining = ()
            return
        value = builder.cast(site.marked(plan.place(BACKWARD)), value, plan.info.type.dtype)
        self._return.operands[reduction.gradient.result] = value
        reduction.done = True
