"""Where a bucket can start and be waited for, found in an order of the ops in which nothing has moved yet.

The rules are those of hp-bucket-collectives. Buckets are put in place one after the other; each sees the ops where the
ones before it have put them, so that any number of them fit together.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...dialect.variadic import RUNS
from ..views import holds_tensors
from .collectives import Collective, FunctionOps
from .order import Order


@dataclass(frozen=True)
class Misfit:
    """Why a collective cannot join a bucket, and the op that is in the way."""

    text: str
    op: int


@dataclass
class Group:
    """Collectives that can become one, in the order in which they start.

    Attributes:
        members: so far.
        ready: the op that makes the latest input that is not there at the first start; None where all are.
        links: ops behind the first start that the inputs are made by and that may move.
        first_use: the first op that needs a result of the first `uses_known` members.
        uses_known: number of members whose uses were looked for.
        types: of the members.
    """

    members: list[Collective]
    ready: int | None = None
    links: set[int] = field(default_factory=set)
    first_use: int | None = None
    uses_known: int = 0
    types: set[object] = field(default_factory=set)


@dataclass(frozen=True)
class Placed:
    """A bucket in its place: where its members' starts become one stands the op `start`, likewise the op `wait`."""

    members: tuple[Collective, ...]
    start: int
    wait: int


class Placer:
    """Puts buckets into an order of a function's ops.

    Args:
        ops: of the function.

    Attributes:
        order: of the ops once all that was placed has moved; of a bucket's starts and waits one each stands in it.
        moved: ops that may stand elsewhere than in the function.
    """

    def __init__(self, ops: FunctionOps):
        self._ops = ops
        self.order = Order(ops.count)
        self.moved: set[int] = set()
        self._stands_for: dict[int, int] = {}  # starts and waits of buckets: the one that stands in the order
        self._first_uses: dict[int, int | None] = {}  # by start; good until the next bucket is placed

    def label(self, number: int) -> int:
        """Return where an op stands now: before all ops with higher labels."""
        return self.order.labels[self._stands_for.get(number, number)]

    def by_start(self, collectives: Iterable[Collective]) -> list[Collective]:
        """Return collectives in the order in which they start now."""
        return sorted(collectives, key=lambda collective: (self.label(collective.start), collective.start))

    def open(self, collective: Collective) -> Group:
        """Return a group of one."""
        return Group([collective], types={collective.types})

    def join(self, group: Group, collective: Collective) -> Misfit | None:
        """Add a collective that starts behind the members of a group, or say why that cannot be."""
        if collective.types not in group.types and len(group.types) == RUNS:
            return Misfit(f"the bucket has tensors of {RUNS} types, the most that one op takes", collective.start)
        roots, links = self._inputs(collective, self.label(group.members[0].start))
        for member in group.members:
            if self._stands_for.get(member.wait, member.wait) in roots:
                return Misfit(f"its input is made of what '{member.parameters[0]}' gives", member.start)
        ready = max((root for root in (group.ready, *roots) if root is not None), key=self.label, default=None)
        if ready is not None:  # otherwise it starts where its first member did, before any use
            self._look_for_uses(group)
            use = self._earlier(group.first_use, self._first_use(collective))
            if use is not None and self.label(use) <= self.label(ready):
                return Misfit("a result is used before the last input is there", use)
        group.ready = ready
        group.links |= links
        group.members.append(collective)
        group.types.add(collective.types)
        return None

    def _look_for_uses(self, group: Group) -> None:
        for member in group.members[group.uses_known :]:
            group.first_use = self._earlier(group.first_use, self._first_use(member))
        group.uses_known = len(group.members)

    def _earlier(self, one: int | None, other: int | None) -> int | None:
        if one is None or other is None:
            return other if one is None else one
        return min(one, other, key=self.label)

    def _inputs(self, collective: Collective, earliest: int) -> tuple[set[int], set[int]]:
        """Return what makes an input and stands behind the label `earliest`: ops that stay, and links before them."""
        roots: set[int] = set()
        links: set[int] = set()
        pending = list(self._ops.makers(collective.start))
        while pending:
            number = pending.pop()
            if self.label(number) <= earliest or number in links:
                continue
            if self._ops.is_link(number):
                links.add(number)
                pending += self._ops.makers(number)
            else:
                roots.add(self._stands_for.get(number, number))
        return roots, links

    def _first_use(self, collective: Collective) -> int | None:
        """Return the first op that needs a result and is no link."""
        if collective.start not in self._first_uses:
            first: int | None = None
            for number in self._uses([collective])[1]:
                first = self._earlier(first, number)
            self._first_uses[collective.start] = first
        return self._first_uses[collective.start]

    def _uses(self, members: Sequence[Collective]) -> tuple[set[int], set[int]]:
        """Return the links that results go through, and the ops that use results or those."""
        links: set[int] = set()
        users: set[int] = set()
        pending = [user for member in members for user in self._ops.users(member.wait)]
        while pending:
            number = pending.pop()
            if number in links:
                continue
            if self._ops.is_link(number):
                links.add(number)
                pending += self._ops.users(number)
            else:
                users.add(number)
        return links, users

    def place(self, group: Group) -> Placed:
        """Put a group of two or more in its place."""
        start = group.members[0].start
        if group.ready is None:
            for number in sorted(group.links, key=self.label):
                self._move_before(number, start)
        else:
            before = self._own_links(group, self.label(group.ready))
            behind = [number for number in group.links if self.label(number) > self.label(group.ready)]
            anchor = group.ready
            for number in [*sorted({*before, *behind}, key=self.label), start]:
                self._move_after(number, anchor)
                anchor = number
        self._become_one(start, [member.start for member in group.members])
        wait = min((member.wait for member in group.members), key=self.label)
        if self.label(wait) < self.label(start):
            self._wait_later(group, start, wait)
        self._become_one(wait, [member.wait for member in group.members])
        self._first_uses.clear()
        return Placed(tuple(group.members), start, wait)

    def _own_links(self, group: Group, place: int) -> set[int]:
        """Return the links before a place that make inputs and nothing else that stands before it."""
        own: set[int] = {member.start for member in group.members}
        heap: list[tuple[int, int]] = []

        def add_makers(of: int) -> None:
            for maker in self._ops.makers(of):
                if self.label(maker) < place:
                    heapq.heappush(heap, (-self.label(maker), maker))

        for member in group.members:
            add_makers(member.start)
        for number in group.links:
            if self.label(number) > place:
                own.add(number)
                add_makers(number)
        found: set[int] = set()
        while heap:  # the last first, so that all users of an op were looked at before it
            _, number = heapq.heappop(heap)
            if number in own or not self._ops.is_link(number) or not self._makes_tensors(number):
                continue
            if all(user in own or self.label(user) > place for user in self._ops.users(number)):
                own.add(number)
                found.add(number)
                add_makers(number)
        return found

    def _makes_tensors(self, number: int) -> bool:
        return any(holds_tensors(result.type) for result in self._ops.op(number).results)

    def _wait_later(self, group: Group, start: int, wait: int) -> None:
        """Move the wait behind the start, right before the first use; links that stood before move behind it."""
        links, _ = self._uses(group.members)
        self._look_for_uses(group)
        use = group.first_use
        delayed = [number for number in links if use is None or self.label(number) < self.label(use)]
        delayed.sort(key=self.label)
        if use is None:
            self._move_after(wait, start)
        else:
            self._move_before(wait, use)
        anchor = wait
        for number in delayed:
            self._move_after(number, anchor)
            anchor = number

    def _move_before(self, number: int, anchor: int) -> None:
        self.order.move_before(number, self._stands_for.get(anchor, anchor))
        self.moved.add(number)

    def _move_after(self, number: int, anchor: int) -> None:
        self.order.move_after(number, self._stands_for.get(anchor, anchor))
        self.moved.add(number)

    def _become_one(self, number: int, others: Sequence[int]) -> None:
        for other in others:
            if other != number:
                self.order.remove(other)
                self._stands_for[other] = number
