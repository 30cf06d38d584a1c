"""On which stage each op of a step runs: the rules of hp-assign-stages, carried out on numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch_mlir import ir

from ...dialect.signature import STATE_ROLES, Signature, ValueInfo
from .stage_modules import StageModules
from .step_graph import Kind, Node, StepGraph

FOLLOWING = frozenset({"hp.wait", "torch.prim.ListUnpack", "torch.aten.__getitem__.t", "torch.prim.TupleIndex"})
"""Ops that take apart what only the op before them gives: a future, a list."""


@dataclass(frozen=True)
class Torn:
    """An op that uses a buffer which a later stage updates: the numbers of argument and op, and both stages."""

    argument: int
    op: int
    stage: int
    updated: int


@dataclass
class Placement:
    """Where everything is.

    Attributes:
        stages: per op, its stage; None where it has none, or several.
        copies: number of each loose op to the stages that use it, in order.
        shared: number of each op that sums and reduces what several stages give to one parameter's gradient, to the
            latest owner of the parameter.
        owners: per argument, the stages that hold it, in order; empty for what is no state.
        returned: per result, the stage that is to return it where a loose op gives it; else None.
        fallback: number of each op that no declared module decides to what did.
        moved: number of each op that is on another stage than the one that declares its module.
        silent: stages that the forward never runs.
        torn: ops of the forward that use a buffer on a stage before the one that updates it.
    """

    stages: list[int | None]
    copies: dict[int, tuple[int, ...]] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)
    owners: list[tuple[int, ...]] = field(default_factory=list)
    returned: list[int | None] = field(default_factory=list)
    fallback: dict[int, str] = field(default_factory=dict)
    moved: list[int] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    torn: list[Torn] = field(default_factory=list)


def place(graph: StepGraph, signature: Signature, modules: StageModules, count: int) -> Placement:
    """Decide the stage of every op and the owners of all state.

    An op that uses a later module's parameter early, such as an embedding tied to the head, takes all behind it to that
    module's stage. Where this leaves a stage without ops, parameters that several ops use decide nothing.
    """
    placement = _Placing(graph, signature, modules, count).run()
    if placement.silent:
        spread = _Placing(graph, signature, modules, count, spread=True).run()
        if not spread.silent:
            return spread
    return placement


class _Placing:
    def __init__(
        self, graph: StepGraph, signature: Signature, modules: StageModules, count: int, *, spread: bool = False
    ):
        self._graph = graph
        self._nodes = graph.nodes
        self._spread = spread
        self._signature = signature
        self._modules = modules
        self._last = count - 1
        self._count = count
        self._stages: list[int | None] = [None] * len(graph.nodes)
        self._placement = Placement(self._stages)
        self._declared = [self._declared_stages(info) for info in signature.arguments]
        self._deciding = self._declared
        self._held: dict[int, set[int]] = {}
        self._module_stages: dict[str, set[int]] = {}
        self._owners: list[set[int]] = [set() for _ in signature.arguments]
        self._gradients = _Gradients(graph, signature)
        self._shared: set[int] = set()

    def _declared_stages(self, info: ValueInfo) -> list[int]:
        if info.role not in STATE_ROLES:
            return []
        return sorted({stage for name in info.names if (stage := self._modules.stage_of(name)) is not None})

    def run(self) -> Placement:
        fixed = [number for number, node in enumerate(self._nodes) if node.kind is Kind.FIXED]
        forward = [number for number in fixed if not self._nodes[number].backward]
        if self._spread:
            uses = Counter(root for number in forward for root in self._roots(number))
            self._deciding = [[] if uses[index] > 1 else found for index, found in enumerate(self._declared)]
        backward = [number for number in fixed if self._nodes[number].backward]
        self._forward(forward)
        self._hold(forward)
        self._find_owners(forward)
        self._backward(backward)
        self._find_owners(backward)
        self._own_gradients()
        self._own_buffers()
        self._placement.shared = {
            number: max(self._owners[self._gradients.of[number]]) for number in sorted(self._shared)
        }
        self._copy_loose()
        ran = {self._stages[number] for number in forward}
        self._placement.silent = [stage for stage in range(self._count) if stage not in ran]
        self._placement.owners = [
            tuple(sorted(owners) or self._home(info)) if info.role in STATE_ROLES else ()
            for info, owners in zip(self._signature.arguments, self._owners, strict=True)
        ]
        return self._placement

    # The forward.

    def _forward(self, numbers: Sequence[int]) -> None:
        open_ = []
        for number in numbers:
            node = self._nodes[number]
            limit = max(self._placed(node.sources, backward=False), default=-1)
            if limit >= 0 and node.op.name in FOLLOWING:
                self._stages[number] = limit
                continue
            wanted = self._modules.stage_of_op(number, node.module)
            if wanted is None:
                wanted = self._parameter_stage(number, limit)
                reason = "that of a parameter it uses"
                if wanted is None and limit >= 0:
                    wanted, reason = limit, "the latest of its operands'"
                if wanted is None:
                    open_.append(number)
                    continue
                self._placement.fallback[number] = reason
            elif wanted < limit:
                self._placement.moved.append(number)
            self._stages[number] = max(wanted, limit)
        for number in reversed(open_):
            users = self._placed(self._nodes[number].users, backward=False)
            earliest = min(users, default=None)
            self._placement.fallback[number] = "the last" if earliest is None else "the earliest of its users'"
            self._stages[number] = self._last if earliest is None else earliest

    def _placed(self, numbers: Iterable[int], *, backward: bool) -> list[int]:
        """Return the stages of those ops of a phase that have one."""
        return [
            stage
            for number in numbers
            if self._nodes[number].backward == backward and (stage := self._stages[number]) is not None
        ]

    def _roots(self, number: int) -> set[int]:
        """Return the arguments that an op uses, through views and gathers too."""
        node = self._nodes[number]
        found = set(node.arguments)
        for source in node.sources:
            found |= self._nodes[source].roots
        return found

    def _parameter_stage(self, number: int, limit: int) -> int | None:
        declared = sorted(
            {
                stage
                for root in self._roots(number)
                if self._signature.arguments[root].role == "param"
                for stage in self._deciding[root]
            }
        )
        return next((stage for stage in declared if stage >= limit), declared[-1]) if declared else None

    def _hold(self, numbers: Sequence[int]) -> None:
        """Note which stages have each value of the forward, and where each module's ops ran."""
        for number, node in enumerate(self._nodes):
            if node.kind is Kind.LOOSE and not node.backward and not node.roots:
                users = self._placed(node.users, backward=False)
                if users:
                    self._held[number] = set(users)
        for number in numbers:
            node, stage = self._nodes[number], self._stages[number]
            assert stage is not None
            self._held[number] = {stage, *self._placed(node.users, backward=False)}
            if node.module:
                self._module_stages.setdefault(node.module, set()).add(stage)

    def _find_owners(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            stage = self._stages[number]
            if stage is not None:
                for root in self._roots(number):
                    self._owners[root].add(stage)

    # The backward.

    def _backward(self, numbers: Sequence[int]) -> None:
        lazy = self._lazy(numbers)
        for number in numbers:
            if "hp.recomputed" not in self._nodes[number].op.attributes:
                self._stages[number] = self._backward_stage(number, lazy)
        for number in sorted(lazy, reverse=True):
            users = self._placed(self._nodes[number].users, backward=True)
            stage = self._stages[number]
            if stage is not None:
                self._stages[number] = max([stage, *users])
            elif number not in self._shared:
                self._stages[number] = max(users, default=self._last)

    def _lazy(self, numbers: Sequence[int]) -> set[int]:
        """Return the ops that are made of the forward alone: nothing keeps them from running where they are needed."""
        lazy: set[int] = set()
        for number in numbers:
            node = self._nodes[number]
            sources = ((source, self._nodes[source]) for source in node.sources)
            made_of = [source for source, made in sources if made.backward and made.kind is not Kind.LIST]
            recomputed = "hp.recomputed" in node.op.attributes
            if all(source in lazy or (recomputed and self._nodes[source].kind is Kind.LOOSE) for source in made_of):
                lazy.add(number)
        return lazy

    def _backward_stage(self, number: int, lazy: set[int]) -> int | None:
        node = self._nodes[number]
        firm = node.sources if number in lazy else [source for source in node.sources if source not in lazy]
        made_of = self._placed(firm, backward=True)
        limit = min(made_of, default=self._last)
        parameter = self._gradients.of.get(number)
        several = len(set(made_of)) > 1 or not self._shared.isdisjoint(node.sources)
        if several and parameter is not None and self._gradients.is_link(number):
            self._shared.add(number)
            return None
        wanted = limit if node.op.name in FOLLOWING and made_of else self._mirrored(number, limit)
        owners = self._owners[parameter] if parameter is not None else set()
        if owners and wanted not in owners:
            wanted = max((stage for stage in owners if stage <= limit), default=wanted)
        return wanted

    def _mirrored(self, number: int, limit: int) -> int:
        """Return the stage of the forward op that this one is the backward of, as far as that is legal."""
        node = self._nodes[number]
        candidates = self._module_stages.get(node.module)
        if candidates is None:
            declared = self._modules.stage_of(node.module) if node.module else None
            candidates = set(range(self._count)) if declared is None else {declared}
        held = [self._held[source] for source in node.sources if source in self._held]
        held += [owners for root in self._roots(number) if (owners := self._owners[root])]
        near = candidates.intersection(*held)
        for stages in (near, candidates if node.module else set()):
            legal = [stage for stage in stages if stage <= limit]
            if legal:
                return max(legal)
        latest = max((max(stages) for stages in held), default=limit)
        return min(limit, latest)

    def _own_gradients(self) -> None:
        """Make each stage that gives a part of a parameter's gradient one of its owners."""
        for number in self._shared:
            self._owners[self._gradients.of[number]].update(
                self._placed(self._nodes[number].sources, backward=True),
            )
        by_name = {name: info.index for info in self._signature.with_role("param") for name in info.names}
        for info, origin in zip(self._signature.results, self._graph.returned, strict=True):
            if info.role == "grad" and origin is not None and origin >= 0 and info.name in by_name:
                stage = self._stages[origin]
                if stage is not None:
                    self._owners[by_name[info.name]].add(stage)

    def _own_buffers(self) -> None:
        """Make the stage that updates a buffer its only owner."""
        by_name = {name: info.index for info in self._signature.with_role("buffer") for name in info.names}
        for info, origin in zip(self._signature.results, self._graph.returned, strict=True):
            index = by_name.get(info.name) if info.role == "buffer" else None
            if index is None or origin is None or origin < 0 or (stage := self._stages[origin]) is None:
                continue
            for reader in self._graph.readers[index]:
                used = self._stages[reader]
                if used is not None and used < stage and not self._nodes[reader].backward:
                    self._placement.torn.append(Torn(index, reader, used, stage))
            self._owners[index] = {stage}

    # What every stage makes itself.

    def _copy_loose(self) -> None:
        demands: dict[int, set[int]] = {}
        placement = self._placement
        results = self._signature.results
        placement.returned = [None] * len(results)
        for info, origin in zip(results, self._graph.returned, strict=True):
            if origin is not None and origin >= 0 and self._nodes[origin].kind is Kind.LOOSE:
                stage = self._returning(info, origin)
                placement.returned[info.index] = stage
                demands.setdefault(origin, set()).add(stage)
        for number in range(len(self._nodes) - 1, -1, -1):
            node = self._nodes[number]
            if node.kind is Kind.FIXED:
                wanted = {self._used_on(number)}
            elif node.kind in (Kind.LOOSE, Kind.LIST):
                wanted = demands.get(number) or {self._idle(node)}
                placement.copies[number] = tuple(sorted(wanted))
                for argument in node.arguments if node.kind is Kind.LOOSE else ():
                    self._owners[argument] |= wanted
            else:
                continue
            for source in node.sources:
                if self._nodes[source].kind in (Kind.LOOSE, Kind.LIST):
                    demands.setdefault(source, set()).update(wanted)

    def _used_on(self, number: int) -> int:
        """Return the stage of an op, or that which a sum of several stages' gradients takes loose values from."""
        stage = self._stages[number]
        return self._placement.shared[number] if stage is None else stage

    def _idle(self, node: Node) -> int:
        """Return the stage of a loose op that nothing uses."""
        if not node.roots:
            return self._last
        root = min(node.roots)
        return min(self._owners[root] or self._home(self._signature.arguments[root]))

    def _returning(self, info: ValueInfo, origin: int) -> int:
        """Return the stage that gives back a result that any could make."""
        if info.role in ("grad", "buffer"):
            for argument in self._signature.with_role("param" if info.role == "grad" else "buffer"):
                if set(argument.names) & set(info.names):
                    return max(self._owners[argument.index] or self._home(argument))
        roots = self._nodes[origin].roots
        return max((max(self._owners[root], default=self._last) for root in roots), default=self._last)

    def _home(self, info: ValueInfo) -> tuple[int, ...]:
        """Return the stage of state that nothing uses."""
        return (self._declared[info.index][0],) if self._declared[info.index] else (0,)


class _Gradients:
    """What only serves the gradient of one parameter: the ops that sum and reduce it, and those that make its parts.

    Attributes:
        of: number of such an op to the number of the parameter's argument.
    """

    def __init__(self, graph: StepGraph, signature: Signature):
        self.of: dict[int, int] = {}
        self._graph = graph
        by_name = {name: info.index for info in signature.with_role("param") for name in info.names}
        returned: dict[int, list[int | None]] = {}
        for info, origin in zip(signature.results, graph.returned, strict=True):
            if origin is not None and origin >= 0:
                returned.setdefault(origin, []).append(by_name.get(info.name) if info.role == "grad" else None)
        for number in range(len(graph.nodes) - 1, -1, -1):
            node = graph.nodes[number]
            if node.kind is not Kind.FIXED or not node.backward:
                continue
            uses = returned.get(number, [])
            uses = [*uses, *(self.of.get(user) if self.is_link(user) else None for user in node.users)]
            # A sum can be taken apart into what each stage has of it only where nobody else needs it whole.
            if len(uses) == 1 and uses[0] is not None:
                self.of[number] = uses[0]

    def is_link(self, number: int) -> bool:
        """Return whether an op gives the sum of gradients for the sum of what it is given: it passes on, or adds two.

        hp-split-stages takes such ops apart.
        """
        return self._graph.passes_on(number) or self._is_sum(number)

    def _is_sum(self, number: int) -> bool:
        op = self._graph.nodes[number].op
        if op.name != "torch.aten.add.Tensor" or not _is_one(op.operands[2]):
            return False
        return bool(op.operands[0].type == op.operands[1].type == op.results[0].type)


def _is_one(value: ir.Value) -> bool:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "torch.constant.int":
        return False
    return bool(ir.IntegerAttr(owner.operation.attributes["value"]).value == 1)
