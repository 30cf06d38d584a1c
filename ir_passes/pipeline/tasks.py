"""Which stage function each op of a step belongs to."""

from __future__ import annotations

from typing import NamedTuple

from ..stage_function import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, value_prefix
from ..views import operator_name
from .split_graph import Kind, Node, SplitGraph, has_effect

# Fused backward operators that compute the gradients their last operand asks for.
_MASKED = frozenset(
    {
        "aten.convolution_backward",
        "aten.native_batch_norm_backward",
        "aten.native_group_norm_backward",
        "aten.native_layer_norm_backward",
    }
)


class Task(NamedTuple):
    """What one function of one stage does; `kind` is ``hp.task``."""

    kind: str
    stage: int

    @property
    def function(self) -> str:
        """The name of the function, without the `@`."""
        return f"stage{self.stage}_{self.kind}"

    @property
    def prefix(self) -> str:
        """What the names of values that it makes begin with."""
        return value_prefix(self.kind, self.stage)


class Tasks:
    """The functions of a module's stages.

    Args:
        stage_count: stages of the module.
        split_backward: whether the gradients of parameters have a function of their own.
    """

    def __init__(self, stage_count: int, split_backward: bool):
        self.stage_count = stage_count
        self.split_backward = split_backward
        stages = range(stage_count)
        self._forward = [Task(FORWARD, stage) for stage in stages]
        self._backward = [Task(BACKWARD_INPUT if split_backward else BACKWARD, stage) for stage in stages]
        self._weight = [Task(BACKWARD_WEIGHT if split_backward else BACKWARD, stage) for stage in stages]
        self._of: dict[Node, Task] = {}

    def forward(self, stage: int) -> Task:
        """Return a stage's forward."""
        return self._forward[stage]

    def backward(self, stage: int) -> Task:
        """Return the part of a stage's backward that other stages wait for: all of it unless it is split."""
        return self._backward[stage]

    def weight(self, stage: int) -> Task:
        """Return the part of a stage's backward that nobody waits for: all of it unless it is split."""
        return self._weight[stage]

    def in_order(self) -> list[Task]:
        """Return all of them in an order that they can run in."""
        tasks = [self.forward(stage) for stage in range(self.stage_count)]
        for stage in reversed(range(self.stage_count)):
            tasks.append(self.backward(stage))
            if self.split_backward:
                tasks.append(self.weight(stage))
        return tasks

    def of(self, node: Node) -> Task:
        """Return the function of a fixed op."""
        return self._of[node]

    def assign(self, graph: SplitGraph) -> None:
        """Decide on the function of every fixed op; fused backward ops are split where both parts need them."""
        if self.split_backward:
            weights = _WeightGradients(graph)
            weights.find()
            graph.finish_copies()
        for node in graph.fixed():
            assert node.stage is not None
            if not node.backward:
                self._of[node] = self.forward(node.stage)
            elif self.split_backward and node in weights.found:
                self._of[node] = self.weight(node.stage)
            else:
                self._of[node] = self.backward(node.stage)


class _WeightGradients:
    """Finds the backward ops that only gradients of their own stage's parameters need.

    One sweep, last op first. Stages are bits: of who needs a value at all, and of who needs it for what another stage
    waits for (or for another result than a gradient).
    """

    def __init__(self, graph: SplitGraph):
        self.found: set[Node] = set()
        self._graph = graph
        self._needed = [0] * len(graph.values)
        self._early = [0] * len(graph.values)

    def find(self) -> None:
        """Fill in `found`."""
        for returned in self._graph.returned:
            if returned.stage is not None:
                self._needed[returned.value] |= 1 << returned.stage
            else:
                self._early[returned.value] = -1
        for node in reversed(list(self._graph.nodes)):
            if node.kind is not Kind.FIXED:
                needed, early = 0, 0
                for result in node.results:
                    needed |= self._needed[result]
                    early |= self._early[result]
                self._mark(node, needed, early)
            elif node.backward and node.stage is not None:
                self._visit(node, 1 << node.stage)

    def _mark(self, node: Node, needed: int, early: int) -> None:
        for operand in node.operands:
            self._needed[operand] |= needed
            self._early[operand] |= early

    def _visit(self, node: Node, stage: int) -> None:
        waits = [bool(self._early[result] & stage or self._needed[result] & ~stage) for result in node.results]
        if has_effect(node.op) or (any(waits) and operator_name(node.op) not in _MASKED):
            self._mark(node, stage, stage)
        elif not any(waits):
            self.found.add(node)
            self._mark(node, stage, 0)
        else:
            self._split(node, stage, waits)

    def _split(self, node: Node, stage: int, waits: list[bool]) -> None:
        mask = self._mask_of(node)
        later = [bool(self._needed[result]) and not wait for result, wait in zip(node.results, waits, strict=True)]
        if mask is None or not any(later):
            self._mark(node, stage, stage)
            return
        second = self._graph.split(
            node,
            [asked and not moves for asked, moves in zip(mask, later, strict=True)],
            [asked and moves for asked, moves in zip(mask, later, strict=True)],
        )
        self.found.add(second)
        self._mark(second, stage, 0)
        self._mark(node, stage, stage)

    def _mask_of(self, node: Node) -> list[bool] | None:
        """Return which gradients a fused operator is asked for; None where that is no list of constants."""
        maker = self._graph.makers[node.operands[-1]]
        if maker is None or maker.op.name != "torch.prim.ListConstruct" or len(maker.operands) != len(node.results):
            return None
        mask = []
        for operand in maker.operands:
            item = self._graph.makers[operand]
            if item is None or item.op.name != "torch.constant.bool":
                return None
            mask.append(bool(item.op.attributes["value"].value))
        return mask
