"""hp-assign-stages: on which pipeline stage each op of a step runs and each piece of state lives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch_mlir import ir

from ...collection import collection_paused
from ...dialect.attributes import i64_attr
from ...dialect.diagnostics import error_at
from ...dialect.levels import require_level, require_mesh
from ...dialect.signature import STATE_ROLES, Signature, function_name, read_signature, step_functions, write_signature
from ...errors import PassError, nearest
from ...mesh import Mesh
from ..base import ModulePass
from .place_ops import write_placement
from .placement import Placement, place
from .stage_costs import forward_costs, module_costs
from .stage_cuts import Cut, cut, cut_ops
from .stage_modules import StageModules, module_names, parse_lists
from .stage_report import first_behind, report, say_behind
from .step_graph import StepGraph

AXIS = "hp.pipeline_axis"
COUNT = "hp.stage_count"


@dataclass(frozen=True)
class HpAssignStages(ModulePass):
    """Say on which pipeline stage each op runs and which stages hold each parameter and buffer.

    A stage is a stretch of the model. Its ops get `hp.stage`, its state lists it in `hp.stages`; nothing is computed
    elsewhere yet.

    1. Modules are declared per stage, by `stages` or `plan`; what is below a module is declared with it, unless a list
       names it. Without lists they are dealt: the costliest module with at least as many numbered entries as stages
       (a `ModuleList` or `Sequential`) is cut into consecutive stretches, the costliest of which costs least, by
       floating-point operations and then by parameters. No entry is left out and no stage is empty. Modules that run
       before the entries go to the first stage, those after them to the last. Where no module has that many entries,
       the root's children are dealt, the costliest replaced by its own children until there are enough; where there
       never are, the ops of the forward, in their order.
    2. A forward op runs on the stage that declares the innermost module of its `hp.module`; else on that of a parameter
       it uses, through views and gathers; else on the latest stage of its operands; else on the earliest of its users;
       else on the last. It runs no earlier than its operands: an op of a module that is called again further on moves
       there, and the module's parameters have several owners. Where a stage would get no op by this, as an early op
       uses a parameter of a later module (an embedding tied to the head), parameters that several ops of the forward
       use decide nothing, and have several owners.
    3. A backward op runs where the forward ran its `hp.module`, of several such stages on one that has the forward's
       values it takes. What makes a parameter's gradient runs on a stage that holds it. It runs no later than the
       backward ops it is made of; what is made of the forward alone runs where it is needed.
    4. Constants, lists and scalars made of scalars have no stage. What any stage can make for itself is copied to each
       stage that uses it: views and casts of arguments, gathers of parameters, and ops that depend on no argument, such
       as a causal mask.
    5. State lives on the stages that use it, state that nothing uses where its module is declared, else on the first.
       A buffer that the step updates lives where it is updated, and its old value goes to later stages. The sum of the
       gradients that several stages have of one parameter, and its reduction, has no stage: each owner sums and reduces
       its own part.
    6. Afterwards a forward op's operands from the forward are of the same stage or an earlier one, and a backward op's
       operands from the backward are of the same stage or a later one.

    Remarks say how the model was cut, what rule 2 decided without a declared module and which ops moved; warnings name
    modules that no list declares and inputs that nobody uses.

    Requires: level "joint" or "spmd"; a mesh. After hp-fsdp, where there is one; before hp-bucket-collectives.
    Leaves: the level it found. Numbers are kept bitwise: only copies of ops are made.
    Does not handle: a stage that would run nothing; a buffer that a stage uses before the one that updates it; a number
        or a list that would go from stage to stage; buckets whose members are of several stages. These are refused
        before anything is changed.

    Options:
        axis: mesh axis of the pipeline (default `pp`).
        stages: how many stages, at least as many as the axis has ranks (default: as many); or the modules of each stage
            as ``[embed,layers.0],[layers.1,head]``, by name or by pattern.
        plan: a plan file, whose section on the pipeline says axis and stages in place of the other options.

    Example: ``hp-assign-stages`` on a mesh ``pp:2`` turns

    ```mlir
    %0 = torch.aten.mm %x, %up {hp.module = "up", hp.phase = "forward"} : ...
    %1 = torch.aten.tanh %0 {hp.phase = "forward"} : ...
    %2 = torch.aten.mm %1, %down {hp.module = "down", hp.phase = "forward"} : ...
    ```

    into

    ```mlir
    %0 = torch.aten.mm %x, %up {hp.module = "up", hp.phase = "forward", hp.stage = 0 : i64} : ...
    %1 = torch.aten.tanh %0 {hp.phase = "forward", hp.stage = 0 : i64} : ...
    %2 = torch.aten.mm %1, %down {hp.module = "down", hp.phase = "forward", hp.stage = 1 : i64} : ...
    ```
    """

    name: ClassVar[str] = "hp-assign-stages"
    requires: ClassVar[tuple[str, ...]] = ("joint", "spmd")

    axis: str = "pp"
    stages: tuple[str, ...] = ()
    plan: str = ""

    def __post_init__(self) -> None:
        if self.plan and (self.stages or self.axis != "pp"):
            raise PassError("option 'plan' excludes 'axis' and 'stages': the plan says both")
        if not self._counted():
            parse_lists(self.stages)

    def _counted(self) -> bool:
        return len(self.stages) == 1 and self.stages[0].strip().lstrip("-").isdigit()

    @collection_paused()
    def run(self, module: ir.Operation) -> None:  # noqa: D102
        require_level(module, self.name, self.requires)
        if COUNT in module.attributes:
            raise error_at(module, f"{self.name}: the stages of this module are assigned already", named=False)
        mesh_name, mesh = require_mesh(module, self.name)
        axis, lists, count = self._asked(mesh)
        self._check_axis(module, axis, mesh)
        functions = list(step_functions(module))
        if len(functions) != 1:
            raise error_at(module, f"{self.name}: expected one step function, got: {len(functions)}", named=False)
        function = functions[0]
        signature = read_signature(function, mesh)
        graph = StepGraph(function, signature)

        made: Cut | None = None
        if lists:
            modules = self._declared(module, graph, signature, lists)
        else:
            made = self._cut(module, graph, signature, count or mesh.axis_size(axis))
            modules = made.modules
        self._check_count(module, axis, mesh, modules)
        placement = place(graph, signature, modules, len(modules.lists))
        self._check(module, graph, signature, modules, placement)
        report(graph, signature, modules, made, placement)

        write_placement(graph, placement, len(modules.lists))
        arguments = tuple(
            replace(info, stages=owners) if info.role in STATE_ROLES else info
            for info, owners in zip(signature.arguments, placement.owners, strict=True)
        )
        write_signature(function, replace(signature, arguments=arguments), mesh_name, mesh)
        with module.context:
            module.attributes[AXIS] = ir.StringAttr.get(axis)
            module.attributes[COUNT] = i64_attr(len(modules.lists))

    def _asked(self, mesh: Mesh) -> tuple[str, tuple[tuple[str, ...], ...], int]:
        """Return axis, lists of modules if there are any, and the number of stages, 0 for that of the axis."""
        if not self.plan:
            if self._counted():
                return self.axis, (), self._count()
            return self.axis, parse_lists(self.stages), 0
        from ...plan import Plan  # pydantic is slow to import
        from ...plan_passes import stage_count

        asked = Plan.load(self.plan).pipelining
        if asked is None:
            raise PassError(f"{self.plan}: the plan has no section 'pipeline'")
        if asked.stages == "auto":
            ranks = mesh.axis_size(asked.axis) if asked.axis in mesh.axis_names else 0
            return asked.axis, (), stage_count(asked, ranks)
        return asked.axis, tuple((item,) if isinstance(item, str) else item for item in asked.stages), 0

    def _count(self) -> int:
        count = int(self.stages[0])
        if count < 1:
            raise PassError(f"option 'stages' expects a number of stages, at least 1, got: {count}")
        return count

    def _check_axis(self, module: ir.Operation, axis: str, mesh: Mesh) -> None:
        if axis not in mesh.axis_names:
            hint = nearest(axis, mesh.axis_names)
            raise error_at(module, f"{self.name}: mesh {mesh} has no axis '{axis}'{hint}", named=False)

    def _check_count(self, module: ir.Operation, axis: str, mesh: Mesh, modules: StageModules) -> None:
        ranks, count = mesh.axis_size(axis), len(modules.lists)
        if count < ranks:
            raise error_at(
                module,
                f"{self.name}: expected at least {ranks} stages, one per rank of axis '{axis}', got: {count}",
                named=False,
            )

    def _declared(
        self, module: ir.Operation, graph: StepGraph, signature: Signature, lists: tuple[tuple[str, ...], ...]
    ) -> StageModules:
        states = [name for info in signature.arguments if info.role in STATE_ROLES for name in info.names]
        known = module_names((node.module for node in graph.nodes), states)
        try:
            return StageModules.of_patterns(lists, known)
        except PassError as error:
            raise error_at(module, f"{self.name}: {error}", named=False) from None

    def _cut(self, module: ir.Operation, graph: StepGraph, signature: Signature, count: int) -> Cut:
        try:
            made = cut(module_costs(graph, signature), count)
            return made if made is not None else cut_ops(forward_costs(graph), count)
        except PassError as error:
            raise error_at(module, f"{self.name}: {error}", named=False) from None

    def _check(
        self,
        module: ir.Operation,
        graph: StepGraph,
        signature: Signature,
        modules: StageModules,
        placement: Placement,
    ) -> None:
        for stage in placement.silent:
            names = ", ".join(modules.lists[stage])
            first = first_behind(graph, modules, placement, stage)
            notes = [] if first is None else [(graph.nodes[first].op, say_behind(placement, first, stage))]
            raise error_at(
                module,
                f"{self.name}: stage {stage} would run nothing of the forward of @{function_name(graph.function)}: "
                f"nothing of its modules ({names}), or only behind a later stage",
                notes=notes,
                named=False,
            )
        for torn in placement.torn:
            name = signature.arguments[torn.argument].name
            raise error_at(
                graph.nodes[torn.op].op,
                f"uses buffer '{name}' on stage {torn.stage}, but the later stage {torn.updated} updates it; declare "
                "both modules on one stage",
            )
        graph.check_crossings(placement.stages, placement.copies)
