"""hp-schedule-pipeline: one function per pipeline rank, which calls the stages in the order of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ...dialect.attributes import i64_attr, ints_attr
from ...dialect.levels import require_level, set_level
from ...errors import PassError
from ..base import ModulePass
from .calls import check_order, evaluation_calls, training_calls
from .messages import plan_messages
from .rank_program import RankPlan, build_rank_function
from .rank_signature import RankArguments, check_buffers, gradients_of, rank_arguments
from .schedules import Schedule, make_schedule, read_table, validate
from .staged import StagedModule, read_staged
from .totals import StepShape, Told

_MOST_MICROBATCHES = 2**16  # Each is written out.


@dataclass(frozen=True)
class HpSchedulePipeline(ModulePass):
    """Write one function per pipeline rank that calls the stages in the order of a schedule.

    Each rank runs the stages that the schedule places on its position of the pipeline axis. Its function is one
    straight line: which task on which microbatch, what is sent and received when, and how long a value lives can be
    read off it.

    1. `@rank<i>` (`hp.kind = "train"`) has the calls of position i's actions, in order; `@evaluate<i>` only the
       forwards. An action of which a stage has no function (a frozen stage's backward) is passed over. A whole backward
       of a split stage is its two parts, one behind the other.
    2. Arguments are the state, the inputs and the sizes of the rank's stages, each once: of inputs a data rank's whole
       batch, of sizes all there are. A call is given its part of each input (`hp.microbatch`).
    3. A value that another rank takes is sent right behind the call that makes it: one `hp.send` per call and peer, one
       `hp.recv` of the same types at the other end. Values between stages of one rank are passed as they are.
    4. A receive starts one call before the one that needs it, or earlier where a message before it on its channel is
       due earlier: both ends have the same order. It is waited for right before that call. As sends do not block and
       each channel is first in, first out, a schedule that can run at all cannot deadlock.
    5. Messages with a size that is not static have a `header`.
    6. Loss, weight and gradients are added up in the order in which they come (`hp.accumulate`), the first being the
       sum. With a plain loss sums are divided by the number of microbatches, the loss is averaged over the data axes.
       Where a stage returns a weight, loss and weight are summed over them, and loss and gradients are divided by it.
    7. Loss and weight reach the other positions by one `hp.broadcast` at the end of the step.
    8. A parameter of stages on several positions: each has the sum of all its owners' parts (`hp.all_reduce` over the
       pipeline axis, with `coordinates`; zeros from an owner without a part). Parts on one position are added there.
    9. New buffers of one microbatch's forward are the buffers of the next one's; the last are returned. A backward is
       given what its forward was given.
    10. In an evaluation the extra outputs of all microbatches and data ranks are put together, on the positions that
       make them.

    Requires: level "staged".
    Leaves: level "program". The result is that of the microbatches' loop in one process, up to the order in which the
        parts of a gradient are added.
    Does not handle: a buffer that one stage changes and another one uses. It is refused.

    Options:
        microbatches: parts of each data rank's batch. Must be given.
        schedule: gpipe, 1f1b, interleaved, zb-h1, zb-v or dualpipe-v (default 1f1b: as fast as gpipe, with the
            activations of fewer microbatches alive).
        table: a file with the actions of each rank, in place of a schedule by name; default none.

    Example: ``hp-schedule-pipeline{microbatches=2}`` on a mesh ``pp:2`` with two stages makes, of rank 0,

    ```mlir
    func.func @rank0(%w: ..., %x: !torch.vtensor<[12,4],f32> {...}) -> ... attributes {hp.coordinate = 0, ...} {
      %x0 = "hp.microbatch"(%x) {count = 2, dim = 0, index = 0} : ...
      %h0 = call @stage0_forward(%w, %x0) {hp.microbatch = 0} : ...
      "hp.send"(%h0) {axis = "pp", label = "f0.0 mb 0", peer = 1} : ...
      %b0 = "hp.recv"() {axis = "pp", label = "b1.0 mb 0", peer = 1} : ...
      %x1 = "hp.microbatch"(%x) {count = 2, dim = 0, index = 1} : ...
      %h1 = call @stage0_forward(%w, %x1) {hp.microbatch = 1} : ...
      "hp.send"(%h1) {axis = "pp", label = "f0.0 mb 1", peer = 1} : ...
      %b1 = "hp.recv"() {axis = "pp", label = "b1.0 mb 1", peer = 1} : ...
      %d0 = "hp.wait"(%b0) {label = "b1.0 mb 0"} : ...
      %g0 = call @stage0_backward(%x0, %d0, %h0) {hp.microbatch = 0} : ...
      ...
    ```
    """

    name: ClassVar[str] = "hp-schedule-pipeline"
    requires: ClassVar[tuple[str, ...]] = ("staged",)
    leaves: ClassVar[str] = "program"

    microbatches: int
    schedule: str = "1f1b"
    table: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.microbatches <= _MOST_MICROBATCHES:
            raise PassError(f"option 'microbatches' expects 1 to {_MOST_MICROBATCHES}, got: {self.microbatches}")

    def run(self, module: ir.Operation) -> None:  # noqa: D102
        require_level(module, self.name, self.requires)
        staged = read_staged(module, self.name)
        schedule = self._schedule(staged)
        plans = self._plans(staged, schedule)
        block = module.regions[0].blocks[0]
        for plan in plans:
            build_rank_function(staged, plan, block)
        module.attributes["hp.schedule"] = ir.StringAttr.get(schedule.name)
        module.attributes["hp.microbatches"] = i64_attr(self.microbatches)
        module.attributes["hp.placement"] = ints_attr(schedule.placement)
        set_level(module, self.leaves)

    def _schedule(self, staged: StagedModule) -> Schedule:
        if self.table:
            return read_table(self.table, ranks=staged.ranks, stages=staged.stage_count, microbatches=self.microbatches)
        schedule = make_schedule(self.schedule, staged.ranks, staged.stage_count, self.microbatches)
        validate(schedule, self.microbatches)
        return schedule

    def _plans(self, staged: StagedModule, schedule: Schedule) -> list[RankPlan]:
        """Return all that the functions are made of; what is wrong with the module is found here, before it changes."""
        check_buffers(staged)
        arguments = [
            rank_arguments(staged, [s for s, at in enumerate(schedule.placement) if at == position], self.microbatches)
            for position in range(staged.ranks)
        ]
        shape = self._shape(staged, schedule, arguments)
        training = training_calls(staged, schedule)
        check_order(staged, training, schedule.name)
        plans = []
        for kind, calls in (("train", training), ("evaluate", evaluation_calls(staged, schedule))):
            traffic = plan_messages(staged, calls)
            plans += [
                RankPlan(kind, position, arguments[position], own, traffic, shape) for position, own in enumerate(calls)
            ]
        return plans

    def _shape(self, staged: StagedModule, schedule: Schedule, arguments: Sequence[RankArguments]) -> StepShape:
        told = []
        for role in ("loss", "weight"):
            found = staged.result(role)
            if found is not None:
                function, info = found
                told.append(Told(info, schedule.placement[function.stage]))
        return StepShape(
            mesh_name=staged.mesh_name,
            axis=staged.axis,
            ranks=staged.ranks,
            data_axes=staged.data_axes,
            microbatches=self.microbatches,
            rows=staged.rows,
            told=tuple(told),
            gradients=tuple(gradients_of(staged, arguments)),
        )
