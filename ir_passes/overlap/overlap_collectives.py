"""hp-overlap-collectives: communication starts early and is waited for late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch_mlir import ir

from ...collection import collection_paused
from ...dialect.diagnostics import collecting, error_at, remark
from ...dialect.levels import require_level, require_mesh
from ...dialect.signature import function_name, step_functions
from ...errors import PassError
from ...mesh import Mesh
from ...sizes import MIB, MOST_MIB
from ..base import ModulePass
from .collectives import Collective, find_collectives, name_of
from .memory_limit import LimitError, Step, place_starts, steps_of
from .op_line import OpLine
from .placement import Placement

if TYPE_CHECKING:
    from ...costs import Costs


@dataclass(frozen=True)
class HpOverlapCollectives(ModulePass):
    """Start communication early and wait for it late, so that computation runs beside it.

    Only collectives, their waits and what puts tensors into shape for them or behind them move; all else keeps its
    order. Nothing crosses an op that it depends on.

    1. A gather of parameters starts `prefetch` steps ahead of its use. A unit is a bucket (`hp.bucket`), or the
       collectives of one `hp.unit` and phase; a parameter of the root unit is one by itself. A unit is used first where
       any of its parameters is, and units that are first used by the same op are one step. The gathers of step k start
       right before what step k - `prefetch` is first used by, and the first `prefetch` steps' at the function's entry.
       Steps are counted through the whole function: the last unit's gathers for the backward start while it runs in the
       forward, and those of unit k - 1 while the backward of unit k runs.
    2. What puts shards into shape for a gather (casts, pads, views, packs) moves up with it where it stands in the way.
       At the function's entry it stays, and a start stands behind it.
    3. Any other collective starts as soon as its operands exist, and with it what puts them into shape. Collectives of
       one kind and unit that stand together stay together: they start when the operands of all of them exist.
    4. A wait moves down to right before the first op that needs a result. Views, casts and parts of results that stood
       before that op move behind the wait.
    5. A reduction whose results are only returned, as gradients are, is not waited for at the end of the function but
       behind the next place where such reductions start: a started reduction keeps its whole input alive. What reduces
       it further (`hp.all_reduce` over the axes that replicate) starts right behind that wait, and is waited for one
       such place further on. The last waits stand before the return.
    6. Of collectives that start at one place, the one whose result is needed first goes first (Jackson's rule), and of
       those needed by the same op the one that takes longest by the cost model. The order is one for all ranks, as they
       run one function.
    7. `memory-limit-mb` bounds the bytes of gathered parameters alive at once, each from its gather's start to the last
       use of the full parameter or a view of it. Where they would exceed it, a step's gathers start later: as soon as
       they fit, at the latest right before their use; a remark says so. A bucket lives as long as any of its members.
    8. No start moves up across an `hp.send`, nothing across an op that changes a tensor in place. A collective that is
       made of another's results in any other way than rule 5 keeps its place, and so does one whose result nothing
       uses. Waits for messages move as other waits do, `hp.send` and `hp.recv` stay.
    9. Remarks give each collective's time and how much of it is exposed, that is, spent in its wait, by the cost model:
       ops one after the other, communication beside them in the order it starts in.

    Requires: level "spmd" or "staged"; a mesh. Before or after `hp-bucket-collectives`, before or after
        `hp-expand-buckets`.
    Leaves: the level it found. Numbers are kept bitwise: every op has the operands that it had. Running it again
        changes nothing.
    Does not handle: what a transport holds besides while a gather is on its way, in `memory-limit-mb`.

    Options:
        prefetch: steps ahead (default 1: one unit's gathers run beside the computation of the one before).
        memory-limit-mb: MiB that gathered parameters may take; 0, the default, for no limit.
        costs: TOML file of rates, as ``hp-run --calibrate`` writes it; default built-in rates.

    Example: with ``prefetch=1``,

    ```mlir
    %0 = "hp.all_gather"(%a) {hp.unit = "layers.0", ...} : ...
    %1 = "hp.wait"(%0) : ...
    %2 = torch.aten.mm %x, %1 : ...
    %3 = "hp.all_gather"(%b) {hp.unit = "layers.1", ...} : ...
    %4 = "hp.wait"(%3) : ...
    %5 = torch.aten.mm %2, %4 : ...
    ```

    becomes

    ```mlir
    %0 = "hp.all_gather"(%a) {hp.unit = "layers.0", ...} : ...
    %1 = "hp.all_gather"(%b) {hp.unit = "layers.1", ...} : ...
    %2 = "hp.wait"(%0) : ...
    %3 = torch.aten.mm %x, %2 : ...
    %4 = "hp.wait"(%1) : ...
    %5 = torch.aten.mm %3, %4 : ...
    ```
    """

    name: ClassVar[str] = "hp-overlap-collectives"
    requires: ClassVar[tuple[str, ...]] = ("spmd", "staged")

    prefetch: int = 1
    memory_limit_mb: float = 0.0
    costs: str = ""

    def __post_init__(self) -> None:
        if self.prefetch < 0:
            raise PassError(f"option 'prefetch' expects at least 0, got: {self.prefetch}")
        if not 0 <= self.memory_limit_mb <= MOST_MIB:
            raise PassError(
                "option 'memory-limit-mb' expects a number of MiB, at most 1e9, or 0 for no limit, "
                f"got: {self.memory_limit_mb:g}"
            )

    @collection_paused()
    def run(self, module: ir.Operation) -> None:  # noqa: D102
        require_level(module, self.name, self.requires)
        _, mesh = require_mesh(module, self.name)
        costs = self._costs(module)
        planned = [_Plan(function, mesh, costs, self) for function in step_functions(module)]
        for plan in planned:
            plan.apply()

    def _costs(self, module: ir.Operation) -> Costs:
        from ...costs import Costs  # pydantic is slow to import

        return Costs.load(self.costs) if self.costs else Costs.built_in()


class _Plan:
    """A new order of one function's ops; made without changing it."""

    def __init__(self, function: ir.Operation, mesh: Mesh, costs: Costs, options: HpOverlapCollectives):
        self._function = function
        self._costs = costs
        self._line = OpLine(function)
        self._collectives, others = find_collectives(self._line, mesh)
        steps = steps_of([found for found in self._collectives if found.is_parameter])
        self._peak = self._place(steps, options)
        self._placement = Placement(self._line, self._collectives, others, steps, self._seconds)

    def _seconds(self, found: Collective) -> float:
        return self._costs.collective_seconds(found.kind, found.size, found.ranks, found.axes)

    def _place(self, steps: Sequence[Step], options: HpOverlapCollectives) -> int:
        limit = int(options.memory_limit_mb * MIB) if options.memory_limit_mb else None
        entry = self._line.entry()
        try:
            peak = place_starts(steps, options.prefetch, entry, limit)
        except LimitError as error:
            gather = error.step.gathers[0]
            raise error_at(
                gather.op,
                f"of {name_of(gather.op)}: gathered parameters need {error.needed} bytes at once where it is used, "
                f"{error.step.size} of them for its unit, even without prefetch; memory-limit-mb="
                f"{options.memory_limit_mb:g} allows {limit}",
            ) from None
        for number, step in enumerate(steps):
            wanted = steps[number - options.prefetch].use if number >= options.prefetch else min(entry, step.use)
            if step.start > wanted:
                remark(
                    step.gathers[0].op,
                    f"of {name_of(step.gathers[0].op)}: starts later than prefetch={options.prefetch} asks for, to "
                    f"stay below memory-limit-mb={options.memory_limit_mb:g}",
                )
        return peak

    def apply(self) -> None:
        """Move the ops and say how much communication is exposed."""
        if collecting():
            from . import exposure

            order = self._placement.numbers()
            measured = exposure.measure(self._line.ops, order, self._collectives, self._costs, self._seconds)
            exposure.report(self._function, function_name(self._function), self._collectives, measured, self._peak)
        self._placement.apply()
