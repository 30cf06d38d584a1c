"""The automatic cut: the model's layers dealt to stages in the order they run in, at about the same cost each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import PassError
from .partition import partition
from .stage_modules import StageModules

_MOST_PIECES = 1024
"""Bound on what is dealt one by one: the time of a partition grows with the square."""


@dataclass
class ModuleNode:
    """A module, with what is below it.

    Attributes:
        name: from the root module, whose name is empty.
        flops: operations of its ops, forward and backward.
        elements: of its parameters.
        first: number of the first op of its forward; None where it has none.
        last: number of the last.
        children: name's last component to module.
    """

    name: str
    flops: int = 0
    elements: int = 0
    first: int | None = None
    last: int = -1
    children: dict[str, ModuleNode] = field(default_factory=dict)
    _paths: dict[str, list[ModuleNode]] = field(default_factory=dict, repr=False)

    def path(self, name: str) -> list[ModuleNode]:
        """Return the modules from this, the root, down to the one of a name, made where they are new."""
        found, node = [self], self
        for component in name.split(".") if name else ():
            if component not in node.children:
                below = f"{node.name}.{component}" if node.name else component
                node.children[component] = ModuleNode(below)
            node = node.children[component]
            found.append(node)
        return found

    def add_op(self, name: str, flops: int, forward: int | None) -> None:
        """Count an op of module `name`; `forward` is its number if it is of the forward."""
        path = self._paths.get(name)
        if path is None:  # ops of a module are many
            path = self._paths[name] = self.path(name)
        for node in path:
            node.flops += flops
            if forward is not None:
                node.first = forward if node.first is None else node.first
                node.last = forward

    def add_parameter(self, name: str, elements: int) -> None:
        """Count a parameter by its own name."""
        for node in self.path(name.rpartition(".")[0]):
            node.elements += elements

    def running(self) -> list[ModuleNode]:
        """Return the modules right below it that the forward runs, in the order in which it comes to them."""
        return sorted((node for node in self.children.values() if node.first is not None), key=_first)


@dataclass(frozen=True)
class Cut:
    """Stages of the automatic cut.

    Attributes:
        modules: that each stage declares.
        container: name of the module whose entries were dealt; None where it were modules of any kind, or ops.
        pieces: how many were dealt to each stage.
        shares: of the counted cost, per stage, 0 to 1.
    """

    modules: StageModules
    container: str | None
    pieces: tuple[int, ...]
    shares: tuple[float, ...]


def cut(root: ModuleNode, stages: int) -> Cut | None:
    """Deal the modules below `root` to stages; None where there are fewer modules than stages."""
    container = _container(root, stages)
    if container is None:
        pieces = _pieces(root, stages)
        return None if len(pieces) < stages else _dealt(pieces, stages, None, [], [])
    before, after = _around(root, container)
    return _dealt(_layers(container), stages, container, before, after)


def cut_ops(costs: Sequence[tuple[int, int]], stages: int) -> Cut:
    """Deal the ops of the forward to stages, in their order.

    Args:
        costs: number and operations of each.
        stages: how many.

    Raises:
        PassError: there are fewer ops than stages.
    """
    if len(costs) < stages:
        raise PassError(f"cannot cut the model into {stages} stages: its forward has {len(costs)} ops")
    scale = 1 + len(costs)
    # Of very many, runs are dealt.
    runs = range(0, len(costs), max(1, len(costs) // max(stages, _MOST_PIECES)))
    pieces = [costs[begin : begin + runs.step] for begin in runs]
    # Operations first; the number of ops decides where they are equal.
    loads = [sum(flops * scale + 1 for _, flops in piece) for piece in pieces]
    begins = partition(loads, stages)
    spans = list(zip(begins, [*begins[1:], len(pieces)], strict=True))
    return Cut(
        StageModules(((),) * stages, (0, *(pieces[begin][0][0] for begin in begins[1:]))),
        None,
        tuple(sum(map(len, pieces[begin:end])) for begin, end in spans),
        tuple(sum(loads[begin:end]) / sum(loads) for begin, end in spans),
    )


def _first(node: ModuleNode) -> int:
    return -1 if node.first is None else node.first


def _layers(container: ModuleNode) -> list[ModuleNode]:
    return [node for node in container.running() if node.name.rpartition(".")[2].isdigit()]


def _container(root: ModuleNode, stages: int) -> ModuleNode | None:
    """Return the costliest module with at least as many numbered entries as stages; the outermost of equal ones."""
    best: ModuleNode | None = None
    open_ = [root]
    for node in open_:  # grows on the way: outer modules first
        open_ += node.children.values()
        if len(_layers(node)) >= stages:
            cost = (node.flops, node.elements)
            if best is None or cost > (best.flops, best.elements):
                best = node
    return best


def _around(root: ModuleNode, container: ModuleNode) -> tuple[list[ModuleNode], list[ModuleNode]]:
    """Return the modules that run before a container and those after it; what runs among its layers is neither."""
    before, after = [], []
    path = root.path(container.name)
    layers = _layers(container)
    inside = {node.name for node in (*path[1:], *layers)}
    begin = min(map(_first, layers))
    for node in (child for parent in path for child in parent.running()):
        if node.name in inside:
            continue
        if _first(node) < begin:
            before.append(node)
        elif _first(node) > container.last:
            after.append(node)
    return before, after


def _pieces(root: ModuleNode, stages: int) -> list[ModuleNode]:
    """Return the root's children, the costliest replaced by its own until there are as many as stages, if ever."""
    pieces = root.running()
    while len(pieces) < stages:
        inner = [node for node in pieces if node.running()]
        if not inner:
            break
        costliest = max(inner, key=lambda node: (node.flops, node.elements))
        pieces.remove(costliest)
        pieces = sorted([*pieces, *costliest.running()], key=_first)
    return pieces


def _dealt(
    pieces: Sequence[ModuleNode],
    stages: int,
    container: ModuleNode | None,
    before: Sequence[ModuleNode],
    after: Sequence[ModuleNode],
) -> Cut:
    everything = [*before, *pieces, *after]
    # Operations first; parameters decide where they are equal.
    scale = 1 + sum(node.elements for node in everything)

    def cost(nodes: Sequence[ModuleNode]) -> int:
        return sum(node.flops * scale + node.elements for node in nodes)

    starts = partition([cost([node]) for node in pieces], stages, cost(before), cost(after))
    members = [list(pieces[begin:end]) for begin, end in zip(starts, [*starts[1:], len(pieces)], strict=True)]
    counts = tuple(map(len, members))
    members[0] = [*before, *members[0]]
    members[-1] = [*members[-1], *after]
    total = max(1, cost(everything))
    return Cut(
        StageModules(tuple(tuple(node.name for node in nodes) for nodes in members)),
        None if container is None else container.name,
        counts,
        tuple(cost(nodes) / total for nodes in members),
    )
