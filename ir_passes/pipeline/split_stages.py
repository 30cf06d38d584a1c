"""hp-split-stages: the step function as functions of its stages, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ...dialect.diagnostics import collecting, error_at, remark
from ...dialect.levels import require_level, require_mesh, set_level
from ...dialect.signature import STATE_ROLES, Signature, function_name, read_signature, step_functions
from ...errors import nearest
from ...mesh import Mesh
from ..base import ModulePass
from ..stage_function import FORWARD
from .crossings import Crossings
from .function_layout import Emission, FunctionLayout, lay_out
from .needs import Needs
from .shared_parameters import copy_gathers, split_gradients
from .split_graph import SplitGraph
from .tasks import Tasks

# What says something of the whole step, not of one function.
_OF_THE_STEP = ("hp.output_tree", "hp.guards", "hp.static_inputs")


@dataclass(frozen=True)
class HpSplitStages(ModulePass):
    """Split the step into a forward and a backward function for each stage.

    1. An op with `hp.stage = k` goes to `@stage<k>_forward` or, by its phase, to `@stage<k>_backward`. Ops that nobody
       needs are left out, and so is a backward that would do nothing; every stage has a forward.
    2. What one function makes and another needs crosses, straight from maker to user: it is a result "outgoing" where
       another stage takes it, "saved" where only a later function of its own stage does, and an argument "incoming" or
       "saved". `hp.name` is the same at both ends and unique: "f0.1" is value 1 of stage 0's forward, in program order.
    3. A forward value that the backward of another stage needs goes through that stage's forward if it comes later,
       and through its own stage's backward if it comes earlier.
    4. Constants, numbers, lists, tensors made of constants alone, draws (`hp.uniform`, `hp.normal`) with the masks that
       compare them, and views and casts do not cross where what they are made from is there: they are made again. Of a
       value and its views and casts that is sent or saved which has the fewest bytes, never both; of as many, what the
       function that saves it makes for itself.
    5. Parameters, buffers, constants, inputs and sizes are arguments of every function that uses them. State is only
       where `hp.stages` says; elsewhere it crosses as any value. The old value of a buffer that the step changes is
       the forward's of the stage that changes it, from where it crosses.
    6. A gather without a stage, of a parameter that several stages hold, is made on each, in its own phase. The
       gradient of such a parameter is taken apart: seen through views, casts, padding, scaling and reductions it is a
       sum, and each stage returns the terms that are made on it. A stage without one returns none.
    7. With `split-backward` the backward is two functions: `_backward_weight` has what only gradients of its stage's
       parameters need, their reductions included, `_backward_input` the rest. No op is in both, but those of rule 4 and
       a fused operator with an output mask (convolution, batch, group and layer norm), which each asks for its own.
    8. Unused state is given to the forward of its stages, unused inputs and sizes to the first.
    9. `hp.output_tree`, `hp.guards` and `hp.static_inputs` move to the module. A remark on each forward says what is
       kept for the backward and what is sent.

    Requires: level "joint" or "spmd", with stages assigned; a mesh.
    Leaves: level "staged". Numbers are kept bitwise, but where a gradient is a sum over several stages.
    Does not handle: ops that change an operand; control flow; values that cross and are no tensors (a future, a list).
        A forward that uses a value of a later stage, a backward that uses one of an earlier stage's. They are refused
        before anything is changed.

    Options:
        split-backward: make two functions of each backward (default false), which schedules without bubbles need.

    Example: the step of two stages

    ```mlir
    func.func @joint(%w0, %w1, %x, %y) {
      %0 = torch.aten.mm %x, %w0 {hp.phase = "forward", hp.stage = 0 : i64} : ...
      %1 = torch.aten.mm %0, %w1 {hp.phase = "forward", hp.stage = 1 : i64} : ...
      ...
    ```

    becomes

    ```mlir
    func.func @stage0_forward(%w0, %x) -> (!torch.vtensor<[6,8],f32> {hp.name = "f0.0", hp.role = "outgoing"})
    func.func @stage1_forward(%w1, %y, %arg2: !torch.vtensor<[6,8],f32> {hp.name = "f0.0", hp.role = "incoming"}) -> ...
    func.func @stage1_backward(...) -> ...
    func.func @stage0_backward(...) -> ...
    ```
    """

    name: ClassVar[str] = "hp-split-stages"
    requires: ClassVar[tuple[str, ...]] = ("joint", "spmd")
    leaves: ClassVar[str] = "staged"

    split_backward: bool = False

    def run(self, module: ir.Operation) -> None:  # noqa: D102
        require_level(module, self.name, self.requires)
        _, mesh = require_mesh(module, self.name)
        stage_count = self._stage_count(module, mesh)
        functions = list(step_functions(module))
        if len(functions) != 1:
            raise error_at(module, f"{self.name}: expected one step function, got: {len(functions)}", named=False)
        function = functions[0]
        signature = read_signature(function, mesh)
        _check_state(function, signature, stage_count)
        graph = SplitGraph(function, signature, stage_count)
        copy_gathers(graph)
        split_gradients(graph)
        graph.drop_dead()
        graph.classify()
        tasks = Tasks(stage_count, self.split_backward)
        tasks.assign(graph)
        needs = Needs(graph, tasks)
        laid_out = lay_out(graph, tasks, needs, Crossings(graph, tasks, needs))

        emission = Emission(graph)
        for stage_function in laid_out:
            made = emission.write(stage_function)
            if collecting() and stage_function.task.kind == FORWARD:
                _report(made, stage_function, laid_out, graph)
        for name in _OF_THE_STEP:
            if name in function.attributes:
                module.attributes[name] = function.attributes[name]
        function.erase()
        set_level(module, self.leaves)

    def _stage_count(self, module: ir.Operation, mesh: Mesh) -> int:
        """Return the number of stages, which hp-assign-stages has noted.

        Raises:
            IRError: there is none, or the pipeline's axis is none of the mesh.
        """
        attributes = module.attributes
        count, axis = attributes.get("hp.stage_count"), attributes.get("hp.pipeline_axis")
        if not isinstance(count, ir.IntegerAttr) or count.value < 1 or not isinstance(axis, ir.StringAttr):
            raise error_at(module, f"{self.name}: the module has no stages; run hp-assign-stages first", named=False)
        if axis.value not in mesh.axis_names:
            hint = nearest(axis.value, mesh.axis_names)
            raise error_at(module, f"{self.name}: mesh {mesh} has no axis '{axis.value}'{hint}", named=False)
        return int(count.value)


def _check_state(function: ir.Operation, signature: Signature, stage_count: int) -> None:
    for info in signature.arguments:
        if info.role in STATE_ROLES and (not info.stages or info.stages[-1] >= stage_count):
            raise error_at(
                function,
                f"argument {info.index} of @{function_name(function)} ('{info.name}'): expected hp.stages to name "
                f"stages from 0 to {stage_count - 1}, got: {list(info.stages) or 'none'}",
            )


def _report(made: ir.Operation, forward: FunctionLayout, functions: list[FunctionLayout], graph: SplitGraph) -> None:
    """Say what a stage's forward sends, and what is kept of the forward for the stage's backward."""
    stage = forward.task.stage
    kept = {
        crossing.name: crossing.value
        for function in functions
        if function.task.stage == stage and function.task.kind != FORWARD
        for crossing in function.taken
        if crossing.maker.kind == FORWARD
    }
    sent = [crossing.value for crossing in forward.made if crossing.is_sent]
    remark(
        made,
        f"stage {stage} keeps {_counted(graph, list(kept.values()))} for its backward and sends "
        f"{_counted(graph, sent)} to later stages",
    )


def _counted(graph: SplitGraph, values: list[int]) -> str:
    plural = "" if len(values) == 1 else "s"
    return f"{len(values)} value{plural} ({sum(int(graph.bytes_of(value)) for value in values)} bytes)"
