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

    A reduction starts right behind the op that makes the gradient. A started collective keeps its whole input alive, so
    its wait must follow soon; but not at once, or nothing overlaps. Units are put in the order in which their last
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
        self._sites: dict[ir.Value, Site] = {}  # by the first result of the op that they stand behind

    def insert(self, gradients: Sequence[GradientPlan]) -> None:
        """Reduce the gradients and return the reduced ones."""
        units: dict[tuple[str, int], list[Reduction]] = {}
        for gradient in gradients:
            plan = gradient.parameter
            unit = (plan.unit, plan.info.index if plan.unit == ROOT else 0)  # root parameters are a unit each
            units.setdefault(unit, []).append(self._start(gradient))
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

    def _start(self, gradient: GradientPlan) -> Reduction:
        builder, plan = self._builder, gradient.parameter
        value = self._return.operands[gradient.result]
        site = self._site(value)
        place = site.marked(plan.place(BACKWARD))
        type_ = type_of(value)
        if self._dtype and type_.dtype in FLOAT_DTYPES:
            value = builder.cast(place, value, self._dtype)
        site = site.marked(plan.marks(BACKWARD))
        if not plan.sharded:
            start = builder.all_reduce(site, value, self._axes.all, self._reduce)
            return Reduction(gradient, start, ())
        value = pad(builder, place, value, plan.rows, builder.mesh.sizes(self._axes.shard))
        start = builder.reduce_scatter(site, value, self._axes.shard, self._reduce)
        return Reduction(gradient, start, self._axes.replicate)

    def _site(self, value: ir.Value) -> Site:
        # A gradient that is an argument, a constant or made by the forward is reduced with the backward's last.
        owner = value.owner
        if isinstance(owner, ir.Block) or self._phases.of(owner) != BACKWARD:
            return Site.before(self._return)
        first = owner.results[0]
        if first not in self._sites:  # one insertion point: what is added there later stands later
            self._sites[first] = Site.after(owner.operation)
        return self._sites[first]

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
