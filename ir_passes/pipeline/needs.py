"""Which functions need which values, and which values are where without being sent or saved."""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir

from ...dialect.diagnostics import IRError, error_at
from ...dialect.signature import STATE_ROLES
from ..stage_function import FORWARD
from ..verification.findings import place_in_model
from .shared_parameters import nearest_owner
from .split_graph import Kind, Node, Returned, SplitGraph
from .tasks import Task, Tasks


@dataclass(frozen=True)
class Placed:
    """A value that a stage function returns as the step does."""

    returned: Returned
    task: Task


class Needs:
    """Who needs what, from one sweep over the step, last op first.

    Args:
        graph: classified.
        tasks: of its fixed ops.

    Attributes:
        of: per value that must be where it is used, the functions that use it. Views and casts of it do not count:
            they have needs of their own.
        results: what each function returns as the step does.
        holders: per argument that is state, the stages that are given it.
        changing: buffers that the step changes, with the stage that does: its forward alone has the old value.

    Raises:
        IRError: an op uses a value that is not there when its function runs.
    """

    def __init__(self, graph: SplitGraph, tasks: Tasks):
        self._graph = graph
        self._tasks = tasks
        self.of: list[set[Task] | None] = [None] * len(graph.values)
        self.holders = {info.index: info.stages for info in graph.signature.arguments if info.role in STATE_ROLES}
        self.changing: dict[int, int] = {}
        for returned in graph.returned:
            if returned.info.role == "buffer":
                self._note_change(returned)
        self.results = [Placed(returned, self._task_of(returned)) for returned in graph.returned]
        for placed in self.results:
            root = graph.roots[placed.returned.value]
            if root >= 0:
                self._check_returned(placed, root)
                self._add(placed.returned.value, {placed.task})
        for node in reversed(graph.nodes):
            self._visit(node)

    def home(self, root: int, stage: int) -> Task:
        """Return the function that gives a value to those of a stage: the one that makes it, or that is given it."""
        maker = self._graph.makers[root]
        if maker is not None:
            return self._tasks.of(maker)
        if root in self.changing:
            return self._tasks.forward(self.changing[root])
        return self._tasks.forward(nearest_owner(self.holders[root], stage))

    def is_at(self, root: int, task: Task) -> bool:
        """Return whether a function has a value of its own: it makes it, or is given it as state."""
        maker = self._graph.makers[root]
        if maker is not None:
            return self._tasks.of(maker) == task
        if root in self.changing:
            return task == (FORWARD, self.changing[root])
        return task.stage in self.holders[root]

    def _visit(self, node: Node) -> None:
        if node.kind is Kind.FIXED:
            users = {self._tasks.of(node)}
        elif node.kind is Kind.CARRIED:
            users = set().union(*[self.of[result] or () for result in node.results])
        else:
            return
        roots = self._graph.roots
        for operand in node.operands:
            if roots[operand] >= 0:
                for task in users:
                    self._check_order(node.op, task, roots[operand])
                self._add(operand, users)

    def _add(self, value: int, users: set[Task]) -> None:
        known = self.of[value]
        if known is None:
            self.of[value] = set(users)
        else:
            known |= users

    def _made_by(self, value: int) -> Task | None:
        """Return the function that makes a value, or what it is a view or cast of; None for what is not made."""
        root = self._graph.roots[value]
        maker = self._graph.makers[root] if root >= 0 else None
        return self._tasks.of(maker) if maker is not None and maker.kind is Kind.FIXED else None

    def _task_of(self, returned: Returned) -> Task:
        """Return the function that returns a value."""
        tasks, made = self._tasks, self._made_by(returned.value)
        if returned.stage is not None:
            if made is None or made.kind == FORWARD:
                return tasks.weight(returned.stage)
            # What comes from another stage comes to the part that receives.
            return made if made.stage == returned.stage else tasks.backward(returned.stage)
        if made is not None:
            return made
        if returned.info.role == "buffer":
            return tasks.forward(self.changing[self._buffer(returned)])
        root = self._graph.roots[returned.value]
        if root in self.changing:
            return tasks.forward(self.changing[root])
        return tasks.forward(self.holders[root][0] if root in self.holders else tasks.stage_count - 1)

    def _buffer(self, returned: Returned) -> int:
        name = returned.info.name
        for info in self._graph.signature.with_role("buffer"):
            if name in info.names:
                return info.index
        raise error_at(self._graph.function, f"returns a new value of buffer '{name}', which is no argument")

    def _note_change(self, returned: Returned) -> None:
        index, made = self._buffer(returned), self._made_by(returned.value)
        holders = self.holders[index]
        if made is not None and made.stage not in holders:
            maker = self._graph.makers[self._graph.roots[returned.value]]
            assert maker is not None
            raise error_at(
                maker.op,
                f"makes the new value of buffer '{returned.info.name}' on stage {made.stage}, which does not hold it "
                f"(hp.stages = {list(holders)})",
            )
        self.changing[index] = holders[0] if made is None else made.stage

    def _check_order(self, op: ir.Operation, task: Task, root: int) -> None:
        maker = self._graph.makers[root]
        if maker is None or maker.kind is not Kind.FIXED:
            if root in self.holders and task.kind == FORWARD and self.home(root, task.stage).stage > task.stage:
                info = self._graph.signature.arguments[root]
                does = "changes" if root in self.changing else "holds"
                raise _wrong_order(
                    op, f"is on stage {task.stage} and uses {info.role} '{info.name}', which a later stage {does}", None
                )
            return
        made = self._tasks.of(maker)
        if made == task:
            return
        if task.kind == FORWARD:
            if made.kind != FORWARD:
                raise _wrong_order(op, "is of the forward and uses a value of the backward", maker)
            if made.stage > task.stage:
                raise _wrong_order(
                    op, f"is on stage {task.stage} and uses a value of a later stage, {made.stage}", maker
                )
        elif made.kind != FORWARD and made.stage < task.stage:
            raise _wrong_order(
                op,
                f"is of the backward on stage {task.stage} and uses a value of the backward of an earlier stage, "
                f"{made.stage}, which runs later",
                maker,
            )

    def _check_returned(self, placed: Placed, root: int) -> None:
        maker = self._graph.makers[root]
        if maker is None or placed.returned.stage is None:
            return
        made = self._tasks.of(maker) if maker.kind is Kind.FIXED else placed.task
        if made.kind != FORWARD and made.stage < placed.task.stage:
            raise error_at(
                maker.op,
                f"makes the gradient of '{placed.returned.info.name}' on stage {made.stage}, but stage "
                f"{placed.task.stage} holds it, whose backward runs before",
            )


def _wrong_order(op: ir.Operation, message: str, maker: Node | None) -> IRError:
    notes = [(maker.op, f"made here{place_in_model(maker.op)}")] if maker is not None else []
    return error_at(op, message + place_in_model(op), notes=notes)
