"""Values that go from one stage function to another: the fewest bytes, each from the function that makes it.

What is sent or saved is either a value or views and casts of it, whichever is less; the rest is made again on the other
side. Values travel

- from a forward to the forwards of later stages, straight;
- from a forward to its own stage's backward: saved;
- from a forward to an earlier stage's backward: through its own stage's backward;
- from a forward to a later stage's backward: to that stage's forward, and passed again to its backward;
- from a backward to those of earlier stages, straight;
- what only a later function of a stage needs comes to the stage's first function of the phase, which receives it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ...dialect.diagnostics import error_at
from ..stage_function import FORWARD
from .needs import Needs
from .split_graph import Kind, Node, SplitGraph
from .tasks import Task, Tasks


@dataclass
class Crossing:
    """A value that a function returns for others, which take it in the order of `takers`."""

    value: int
    maker: Task
    takers: list[Task] = field(default_factory=list)
    name: str = ""

    @property
    def is_sent(self) -> bool:
        """Whether another stage takes it."""
        return any(taker.stage != self.maker.stage for taker in self.takers)


class Crossings:
    """All values that cross.

    Args:
        graph: classified.
        tasks: of its fixed ops.
        needs: of these.

    Attributes:
        made: by function, the values it returns for others.
        taken: by function, the values it takes from others.
        links: by function, the views and casts it makes.

    Raises:
        IRError: what would have to cross is no tensor.
    """

    def __init__(self, graph: SplitGraph, tasks: Tasks, needs: Needs):
        self.made: dict[Task, dict[int, Crossing]] = defaultdict(dict)
        self.taken: dict[Task, dict[int, Crossing]] = defaultdict(dict)
        self.links: dict[Task, set[Node]] = defaultdict(set)
        self._graph = graph
        self._tasks = tasks
        self._needs = needs
        trees = self._trees()
        self._receives = self._receiving(trees)
        for root, tree in trees.items():
            _Routes(self, graph, tasks, needs, root, tree, self._receives).find()
        self._name()

    def _trees(self) -> dict[int, list[int]]:
        """Return each value that may cross, with all views and casts of it in order."""
        graph = self._graph
        trees: dict[int, list[int]] = {index: [index] for index in self._needs.holders}
        for node in graph.nodes:
            if node.kind is Kind.FIXED:
                trees.update((result, [result]) for result in node.results if result >= 0)
            elif node.kind is Kind.LINK:
                for result in node.results:
                    trees[graph.roots[result]].append(result)
        return trees

    def _receiving(self, trees: dict[int, list[int]]) -> set[int]:
        """Return the stages with an op in the backward that other stages wait for, or a value to pass on in it."""
        tasks, needs = self._tasks, self._needs
        own = [*map(tasks.of, self._graph.fixed()), *[placed.task for placed in needs.results]]
        stages = {task.stage for task in own if task == tasks.backward(task.stage)}
        for root, tree in trees.items():
            for value in tree:
                for task in needs.of[value] or ():
                    if task.kind != FORWARD and not needs.is_at(root, task):
                        home = needs.home(root, task.stage)
                        if home.kind == FORWARD and home.stage > task.stage:
                            stages.add(home.stage)
        return stages

    def _name(self) -> None:
        for task, made in self.made.items():
            ordered = sorted(made.values(), key=lambda crossing: self.position(crossing.value))
            self.made[task] = {crossing.value: crossing for crossing in ordered}
            for number, crossing in enumerate(ordered):
                crossing.name = f"{task.prefix}{number}"

    def position(self, value: int) -> tuple[int, int]:
        """Return where a value stands in program order: arguments first."""
        maker = self._graph.makers[value]
        return (-1 if maker is None else maker.number, value)

    def cross(self, value: int, maker: Task, takers: Iterable[Task]) -> None:
        """Let a value cross to further functions."""
        made = self.made[maker]
        if value not in made:
            made[value] = Crossing(value, maker)
        crossing = made[value]
        for taker in takers:
            if taker not in crossing.takers:
                crossing.takers.append(taker)
                self.taken[taker][value] = crossing
        self._check_type(crossing)

    def _check_type(self, crossing: Crossing) -> None:
        if self._graph.bytes_of(crossing.value) < float("inf"):
            return
        node = self._graph.makers[crossing.value]
        taker = crossing.takers[0]
        type_ = self._graph.values[crossing.value].type
        message = f"gives what is no tensor of known rank and dtype, {type_}, and @{taker.function} needs it"
        raise error_at(self._graph.function if node is None else node.op, message)


class _Routes:
    """Finds the ways of one value, and of views and casts of it, to all functions that need them."""

    def __init__(
        self,
        crossings: Crossings,
        graph: SplitGraph,
        tasks: Tasks,
        needs: Needs,
        root: int,
        tree: Sequence[int],
        receives: set[int],
    ):
        self._crossings = crossings
        self._graph = graph
        self._tasks = tasks
        self._needs = needs
        self._root = root
        self._tree = tree
        self._receives = receives
        self._wanted: dict[Task, set[int]] = {}

    def find(self) -> None:
        """Find them all."""
        for value in self._tree:
            for task in self._needs.of[value] or ():
                self._wanted.setdefault(task, set()).add(value)
        foreign = [task for task in self._wanted if not self._needs.is_at(self._root, task)]
        if foreign:
            for stage in sorted({task.stage for task in foreign}):
                self._to_stage(stage, {task for task in foreign if task.stage == stage})
            self._to_home(foreign)
        if len(self._tree) > 1:
            for task, values in self._wanted.items():
                self._make_links(task, values)

    def _want(self, task: Task, value: int) -> None:
        self._wanted.setdefault(task, set()).add(value)

    def _values(self, *tasks: Task) -> set[int]:
        return set().union(*[self._wanted.get(task, ()) for task in tasks])

    def _to_stage(self, stage: int, tasks: set[Task]) -> None:
        """Bring a value to a stage that is not its home."""
        home = self._needs.home(self._root, stage)
        if home.stage == stage:
            return
        backward, weight, forward = self._tasks.backward(stage), self._tasks.weight(stage), self._tasks.forward(stage)
        if home.kind == FORWARD and home.stage < stage:
            arrived = set(self._cut(self._tree, self._values(forward, backward, weight)).values())
            for value in arrived:
                self._crossings.cross(value, home, [forward])
                self._want(home, value)
            self._save(self._under(arrived), arrived, home, forward)
            return
        source = self._tasks.backward(home.stage)
        cut = self._cut(self._tree, self._values(backward, weight))
        for value in set(cut.values()):
            self._want(source, value)
        if stage in self._receives:
            arrived = set(cut.values())
            for value in arrived:
                self._crossings.cross(value, source, [backward])
            if weight != backward and weight in tasks:
                within = self._cut(self._under(arrived), self._values(weight), self._links_of(backward))
                for value in set(within.values()):
                    self._hand_on(value, arrived, source, backward, [weight])
        else:
            for value in set(cut.values()):
                self._crossings.cross(value, source, [weight])

    def _hand_on(self, value: int, arrived: set[int], source: Task, at: Task, takers: list[Task]) -> None:
        """Give later functions of a stage a value: what came to the stage is passed again, else it is saved."""
        if value in arrived:
            self._crossings.cross(value, source, takers)
        else:
            self._crossings.cross(value, at, takers)
            self._want(at, value)

    def _save(self, tree: Sequence[int], arrived: set[int], source: Task, forward: Task) -> None:
        """Give a stage's backward what its forward has."""
        later = [self._tasks.backward(forward.stage)]
        if self._tasks.split_backward:
            later.append(self._tasks.weight(forward.stage))
        cut = self._cut(tree, self._values(*later), self._links_of(forward))
        for value in set(cut.values()):
            takers = [task for task in later if any(cut[wanted] == value for wanted in self._wanted.get(task, ()))]
            self._hand_on(value, arrived, source, forward, takers)

    def _to_home(self, foreign: list[Task]) -> None:
        """Bring a value to the later functions of the stage that makes it; what is passed on counts as needed there."""
        if self._graph.makers[self._root] is None and self._root not in self._needs.changing:
            return
        home = self._needs.home(self._root, 0)
        if home.kind == FORWARD:
            self._save(self._tree, set(), home, home)
            return
        weight = self._tasks.weight(home.stage)
        if weight != home and weight in foreign:
            for value in set(self._cut(self._tree, self._values(weight), self._links_of(home)).values()):
                self._crossings.cross(value, home, [weight])
                self._want(home, value)

    def _under(self, tops: set[int]) -> list[int]:
        """Return the part of the tree at and below some of its values."""
        found, known = [], set(tops)
        for value in self._tree:
            if value in known or self._graph.parents.get(value) in known:
                known.add(value)
                found.append(value)
        return found

    def _links_of(self, task: Task) -> set[int]:
        """Return the views and casts that a function makes for itself."""
        found: set[int] = set()
        for value in self._wanted.get(task, ()):
            while value in self._graph.parents and value not in found:
                found.add(value)
                value = self._graph.parents[value]
        return found

    def _cut(self, tree: Sequence[int], wanted: set[int], made: Collection[int] = ()) -> dict[int, int]:
        """Return for each wanted value what crosses for it: itself, or what it is a view or cast of.

        The fewest bytes that cover all of them. Of as many the value itself crosses and not its views, but for one of
        those in `made`, which are there anyway: it need not be made again.
        """
        within = set(tree)
        below: dict[int, float] = {}
        only: dict[int, int] = {}  # what crosses for all that is below a value, -1 for several
        chosen: set[int] = set()
        for value in reversed(tree):
            whole = self._graph.bytes_of(value)
            if value not in wanted and value not in below:
                continue
            if value in wanted or below[value] > whole or (below[value] == whole and only[value] not in made):
                chosen.add(value)
                cost, crosses = whole, value
            else:
                cost, crosses = below[value], only[value]
            parent = self._graph.parents.get(value, -1)
            if parent in within:
                only[parent] = -1 if parent in below else crosses
                below[parent] = below.get(parent, 0) + cost
        covered: dict[int, int] = {}
        for value in tree:
            parent = self._graph.parents.get(value, -1)
            if parent in covered:
                covered[value] = covered[parent]
            elif value in chosen:
                covered[value] = value
        return {value: covered[value] for value in wanted if value in covered}

    def _make_links(self, task: Task, values: set[int]) -> None:
        """Note the views and casts that a function makes: those between what it has and what it needs."""
        taken = self._crossings.taken.get(task, {})
        links = self._crossings.links[task]
        for value in values:
            while value not in taken and value in self._graph.parents:
                node = self._graph.makers[value]
                assert node is not None
                if node in links:
                    break
                links.add(node)
                value = self._graph.parents[value]
