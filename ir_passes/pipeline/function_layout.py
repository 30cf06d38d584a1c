"""Making the stage functions: ops are moved where one function has them, cloned where several do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_mlir import ir

from ...dialect.attributes import i64_attr
from ...dialect.signature import STATE_ROLES, body_of, refresh_function_type
from ..phases import BACKWARD as BACKWARD_PHASE
from ..phases import FORWARD as FORWARD_PHASE
from ..stage_function import FORWARD
from .crossings import Crossing, Crossings
from .needs import Needs, Placed
from .split_graph import STAGE, Kind, Node, SplitGraph, has_effect
from .tasks import Task, Tasks

_ARGUMENT_ORDER = (*STATE_ROLES, "input", "size")
_RESULT_ORDER = ("buffer", "loss", "weight", "output", "grad")
# They say what the whole step's forward and backward are to do, which is done.
_DONE = ("hp.recompute", "hp.saved")


@dataclass
class FunctionLayout:
    """One function, before it is made.

    Attributes:
        task: what it does.
        nodes: its ops in order.
        arguments: numbers of the step's arguments that it is given.
        taken: what it takes from other functions.
        made: what it returns for other functions.
        results: what it returns as the step does.
    """

    task: Task
    nodes: list[Node] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    taken: list[Crossing] = field(default_factory=list)
    made: list[Crossing] = field(default_factory=list)
    results: list[Placed] = field(default_factory=list)

    @property
    def does_something(self) -> bool:
        """Whether it returns or receives anything, or has an op that does more than its results."""
        return bool(self.taken or self.made or self.results) or any(has_effect(node.op) for node in self.nodes)


def lay_out(graph: SplitGraph, tasks: Tasks, needs: Needs, crossings: Crossings) -> list[FunctionLayout]:
    """Decide on everything in every function; backwards that would do nothing are left out."""
    functions = {task: FunctionLayout(task) for task in tasks.in_order()}
    places = _places(graph, tasks, needs, crossings)
    for node, placed in zip(graph.nodes, places.nodes, strict=True):
        for task in placed:
            functions[task].nodes.append(node)
    for index, users in sorted(places.arguments.items()):
        for task in users:
            functions[task].arguments.append(index)
    for task, function in functions.items():
        function.made = list(crossings.made.get(task, {}).values())
        taken = crossings.taken.get(task, {})
        function.taken = [taken[value] for value in sorted(taken, key=crossings.position)]
        function.results = sorted(
            [placed for placed in needs.results if placed.task == task],
            key=lambda placed: _RESULT_ORDER.index(placed.returned.info.role),
        )
    kept = {task for task, function in functions.items() if task.kind == FORWARD or function.does_something}
    _give_unused(graph, tasks, needs, functions, kept)
    return [function for task, function in functions.items() if task in kept]


def _give_unused(
    graph: SplitGraph, tasks: Tasks, needs: Needs, functions: dict[Task, FunctionLayout], kept: set[Task]
) -> None:
    """Give what no function uses to the forward of the stage that holds it; inputs and sizes to the first."""
    used = {(index, task.stage) for task in kept for index in functions[task].arguments}
    for info in graph.signature.arguments:
        if info.role in STATE_ROLES:
            # Of a buffer that the step changes, others would have an old copy.
            stages = (needs.changing[info.index],) if info.index in needs.changing else info.stages
            takers = [tasks.forward(stage) for stage in stages if (info.index, stage) not in used]
        else:
            given = any((info.index, stage) in used for stage in range(tasks.stage_count))
            takers = [] if given else [tasks.forward(0)]
        for taker in takers:
            functions[taker].arguments.append(info.index)


@dataclass
class _Places:
    nodes: list[list[Task]]
    arguments: dict[int, list[Task]]


def _places(graph: SplitGraph, tasks: Tasks, needs: Needs, crossings: Crossings) -> _Places:
    """Return the functions of every op, and those that use each argument of the step."""
    order = {task: number for number, task in enumerate(tasks.in_order())}
    makers, roots = graph.makers, graph.roots
    free: dict[Node, set[Task]] = defaultdict(set)
    arguments: dict[int, set[Task]] = defaultdict(set)
    links: dict[Node, list[Task]] = defaultdict(list)
    for task, made in crossings.links.items():
        for node in made:
            links[node].append(task)

    def use(value: int, users: set[Task]) -> None:
        maker = makers[value]
        if maker is None:
            given = users if roots[value] < 0 else {task for task in users if needs.is_at(value, task)}
            if given:
                arguments[value] |= given
        elif maker.kind in (Kind.FREE, Kind.CARRIED):
            free[maker] |= users

    for placed in needs.results:
        use(placed.returned.value, {placed.task})
    for task, crossing in [(task, each) for task, made in crossings.made.items() for each in made.values()]:
        use(crossing.value, {task})
    found: list[list[Task]] = []
    for node in reversed(graph.nodes):
        if node.kind is Kind.FIXED:
            users = {tasks.of(node)}
        elif node.kind is Kind.LINK:
            users = set(links.get(node, ()))
        else:
            users = free.get(node, set())
        if users:
            for operand in node.operands:
                use(operand, users)
        found.append(sorted(users, key=order.__getitem__) if len(users) > 1 else list(users))
    return _Places(found[::-1], {index: sorted(users, key=order.__getitem__) for index, users in arguments.items()})


class Emission:
    """Writes functions beside the step function, which is left without its ops and is the caller's to erase."""

    def __init__(self, graph: SplitGraph):
        self._graph = graph
        self._function = graph.function
        self._context = graph.function.context
        self._moved: set[int] = set()
        self._dictionaries = {
            key: [ir.DictAttr(item) for item in ir.ArrayAttr(self._function.attributes[key])]
            if key in self._function.attributes
            else []
            for key in ("arg_attrs", "res_attrs")
        }

    def write(self, function: FunctionLayout) -> ir.Operation:
        """Write one function; return it."""
        graph = self._graph
        arguments = sorted(function.arguments, key=self._argument_key)
        taken = sorted(function.taken, key=lambda crossing: crossing.maker.stage == function.task.stage)
        made = sorted(function.made, key=lambda crossing: not crossing.is_sent)
        values = [*arguments, *[crossing.value for crossing in taken]]
        originals = [graph.values[value] for value in values]
        with self._context, self._function.location:
            op = self._declare(function, originals)
            block = body_of(op)
            known = dict(zip(values, block.arguments, strict=True))
            emitted = _Body(graph, block, known, function.task, self._moved)
            for node in function.nodes:
                emitted.append(node)
            returned = [*[crossing.value for crossing in made], *[each.returned.value for each in function.results]]
            ir.Operation.create(
                "func.return", operands=[known[value] for value in returned], ip=ir.InsertionPoint(block)
            )
            op.attributes["arg_attrs"] = ir.ArrayAttr.get(
                [
                    *[self._dictionaries["arg_attrs"][index] for index in arguments],
                    *[_crossing_attribute(each, _argument_role(each, function.task)) for each in taken],
                ]
            )
            op.attributes["res_attrs"] = ir.ArrayAttr.get(
                [
                    *[_crossing_attribute(each, "outgoing" if each.is_sent else "saved") for each in made],
                    *[self._dictionaries["res_attrs"][each.returned.info.index] for each in function.results],
                ]
            )
            refresh_function_type(op)
        return op

    def _declare(self, function: FunctionLayout, originals: Sequence[ir.Value]) -> ir.Operation:
        types = [value.type for value in originals]
        op = ir.Operation.create(
            "func.func",
            regions=1,
            attributes={
                "sym_name": ir.StringAttr.get(function.task.function),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
                STAGE: i64_attr(function.task.stage),
                "hp.task": ir.StringAttr.get(function.task.kind),
            },
            ip=ir.InsertionPoint(self._function),
        )
        ir.Block.create_at_start(op.regions[0], types, [value.location for value in originals])
        return op

    def _argument_key(self, index: int) -> tuple[int, int]:
        return _ARGUMENT_ORDER.index(self._graph.signature.arguments[index].role), index


def _argument_role(crossing: Crossing, task: Task) -> str:
    return "saved" if crossing.maker.stage == task.stage else "incoming"


def _crossing_attribute(crossing: Crossing, role: str) -> ir.DictAttr:
    return ir.DictAttr.get({"hp.name": ir.StringAttr.get(crossing.name), "hp.role": ir.StringAttr.get(role)})


class _Body:
    """Fills the block of one function; `known` are its values by number."""

    def __init__(self, graph: SplitGraph, block: ir.Block, known: dict[int, ir.Value], task: Task, moved: set[int]):
        self._graph = graph
        self._block = block
        self._known = known
        self._task = task
        self._moved = moved
        self._phase = FORWARD_PHASE if task.kind == FORWARD else BACKWARD_PHASE

    def append(self, node: Node) -> None:
        """Put an op at the end: itself where it was in no function before and is of this one's kind, else a clone."""
        op = node.op
        own = node.stage in (None, self._task.stage) and node.backward == (self._task.kind != FORWARD)
        if node.mask is not None:
            op = self._part(node, node.mask)
        elif node.number in self._moved or not own:
            op = op.clone(ip=ir.InsertionPoint(self._block)).operation
            self._mark(op, node)
        else:
            self._moved.add(node.number)
            self._block.append(op)
            if node.copied:
                op.attributes[STAGE] = i64_attr(self._task.stage)
        operands = op.operands
        for position, value in enumerate(node.operands):
            mapped = self._known[value]
            if operands[position] != mapped:
                operands[position] = mapped
        for number, result in zip(node.results, op.results, strict=True):
            if number >= 0:
                self._known.setdefault(number, result)

    def _mark(self, op: ir.Operation, node: Node) -> None:
        """Say of a clone where it is now."""
        attributes = op.attributes
        if STAGE in attributes or node.stage is not None:
            attributes[STAGE] = i64_attr(self._task.stage)
        if "hp.phase" in attributes and node.backward != (self._task.kind != FORWARD):
            attributes["hp.phase"] = ir.StringAttr.get(self._phase)
            for name in _DONE:
                if name in attributes:
                    del attributes[name]

    def _part(self, node: Node, mask: Sequence[bool]) -> ir.Operation:
        """Make half of a fused backward op: the results that it is not asked for are none, as in a captured step."""
        op, point = node.op, ir.InsertionPoint(self._block)
        none, boolean, listed = (ir.Type.parse(f"!torch.{name}") for name in ("none", "bool", "list<bool>"))
        bools = {
            value: ir.Operation.create(
                "torch.constant.bool", [boolean], attributes={"value": ir.BoolAttr.get(value)}, ip=point
            ).results[0]
            for value in sorted(set(mask))
        }
        items = [bools[value] for value in mask]
        asked = ir.Operation.create("torch.prim.ListConstruct", [listed], items, ip=point).results[0]
        types = [result.type if value else none for result, value in zip(op.results, mask, strict=True)]
        attributes = {name: op.attributes[name] for name in op.attributes}
        operands = [self._known[value] for value in node.operands]
        return ir.Operation.create(op.name, types, [*operands, asked], attributes, loc=op.location, ip=point)
