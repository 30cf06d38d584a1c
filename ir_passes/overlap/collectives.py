"""The collectives of a function, what their results are needed for, and which of them belong together."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch_mlir import ir

from ...dialect.attributes import future_types, read_ints, read_strings
from ...dialect.hp import COMMUNICATION
from ...dialect.types import tensor_type
from ...mesh import Mesh
from .op_line import OpLine, joined, shares_memory

_POINT_TO_POINT = ("hp.send", "hp.recv", "hp.wait")
_REDUCTIONS = ("hp.reduce_scatter", "hp.all_reduce")


@dataclass
class Wait:
    """An `hp.wait` and what follows its results.

    Attributes:
        number: of the op.
        followers: numbers of the views, casts and parts of its results, and of these, in order.
        uses: numbers of all other ops that use any of them.
        last: number of the last op that uses its results' memory.
        returned: whether its results are only returned, or reduced further and then returned.
    """

    number: int
    followers: list[int] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)
    last: int = 0
    returned: bool = False

    @property
    def first_use(self) -> int:
        """Number of the first op that needs its results."""
        return min(self.uses)


@dataclass
class Collective:
    """A collective whose future is waited for once.

    Attributes:
        number: of the op that starts it.
        op: that op.
        wait: its wait.
        kind: such as ``hp.all_gather``.
        phase: of the step.
        unit: what starts together with it: its bucket, its FSDP unit, or itself.
        size: bytes of the whole tensors: what a gather gives, what any other is given.
        axes: mesh axes it goes over.
        ranks: members of its group.
        is_parameter: it gathers parameters.
        after: the number behind the last op that makes its operands, waits and what puts them into shape left out.
        waits: numbers of waits that its operands are made of.
    """

    number: int
    op: ir.Operation
    wait: Wait
    kind: str
    phase: str
    unit: str
    size: int
    axes: tuple[str, ...]
    ranks: int
    is_parameter: bool
    after: int
    waits: frozenset[int]

    @property
    def key(self) -> tuple[str, str, str, tuple[str, ...]]:
        """What it has in common with those it starts together with."""
        return self.kind, self.phase, self.unit, self.axes

    @property
    def name(self) -> str:
        """What it is of, for messages: a bucket, a parameter, or its axes."""
        return name_of(self.op)


def name_of(op: ir.Operation) -> str:
    """Return what a collective is of, for messages: a bucket, parameters by name, or its axes, with its phase."""
    attributes = op.attributes
    names = read_strings(attributes["hp.fqn"]) if "hp.fqn" in attributes else None
    if bucket := _text(op, "hp.bucket"):
        text = f"bucket '{bucket}'"
    elif names:
        text = f"'{names[0]}'"
    else:
        text = f"{len(op.operands)} tensor{'s'[: len(op.operands) != 1]}"
    phase = _text(op, "hp.phase")
    return f"{text} ({phase})" if phase else text


def find_collectives(line: OpLine, mesh: Mesh) -> tuple[list[Collective], list[Wait]]:
    """Return the collectives that are waited for once, in order, and the waits of all else, such as receives."""
    collectives, others = [], []
    for number, op in enumerate(line.ops):
        if op.name not in COMMUNICATION or op.name in ("hp.wait", "hp.send"):
            continue
        waits = [at for at in line.uses(op.results[0]) if line.ops[at].name == "hp.wait"]
        if len(waits) != 1:
            continue
        wait = _find_uses(line, waits[0])
        if not wait.uses:
            continue  # dead: nothing says where it belongs
        if op.name in _POINT_TO_POINT:
            others.append(wait)
        else:
            collectives.append(_read(line, number, wait, mesh))
    _mark_returned(line, collectives)
    return collectives, others


def _find_uses(line: OpLine, number: int) -> Wait:
    wait = Wait(number, last=number)
    known: dict[ir.Value, int] = {}
    # Uses to look at, and whether each is of a value that may lie in the results' memory. In order: what a view is of
    # comes before it.
    pending: list[tuple[int, bool]] = []

    def add(op: ir.Operation, holds: bool) -> None:
        for result in op.results:
            known[result] = number
            for use in line.uses(result):
                heapq.heappush(pending, (use, holds))

    add(line.ops[number], True)
    while pending:
        use, holds = heapq.heappop(pending)
        while pending and pending[0][0] == use:
            holds |= heapq.heappop(pending)[1]
        if holds:
            wait.last = use
        if line.follows(use, known, number):
            wait.followers.append(use)
            op = line.ops[use]
            add(op, holds and shares_memory(op))
        else:
            wait.uses.append(use)
    if wait.uses:  # a copy is made where it is needed
        wait.last = max(wait.last, wait.first_use)
    return wait


def _read(line: OpLine, number: int, wait: Wait, mesh: Mesh) -> Collective:
    op = line.ops[number]
    attributes = op.attributes
    axes = read_strings(attributes["axes"]) or ()
    coordinates = read_ints(attributes["coordinates"]) if "coordinates" in attributes else None
    origin = joined([line.origin(operand) for operand in op.operands])
    gathers = op.name == "hp.all_gather"
    types = future_types(op.results[0].type) if gathers else [operand.type for operand in op.operands]
    return Collective(
        number=number,
        op=op,
        wait=wait,
        kind=op.name,
        phase=_text(op, "hp.phase"),
        unit=_unit(op, number),
        size=sum(type_.bytes for type_ in map(tensor_type, types) if type_ is not None),
        axes=axes,
        ranks=mesh.count(axes) if coordinates is None else len(coordinates),
        is_parameter=gathers and origin.parameter,
        after=origin.after,
        waits=origin.waits,
    )


def _unit(op: ir.Operation, number: int) -> str:
    if "hp.bucket" in op.attributes:
        return f"bucket {_text(op, 'hp.bucket')}"
    unit = _text(op, "hp.unit")
    # The root unit is not one stretch of the step: an embedding and a head, say.
    return f"unit {unit}" if unit else f"op {number}"


def _text(op: ir.Operation, key: str) -> str:
    attribute = op.attributes.get(key)
    return str(attribute.value) if isinstance(attribute, ir.StringAttr) else ""


def _mark_returned(line: OpLine, collectives: Sequence[Collective]) -> None:
    """Find out of which reductions the results are only returned, or reduced on and then returned."""
    end = len(line.ops) - 1
    by_start = {found.number: found for found in collectives}
    by_wait = {found.wait.number: found for found in collectives}
    for found in reversed(collectives):
        found.wait.returned = found.kind in _REDUCTIONS and all(
            use == end or (use in by_start and by_start[use].wait.returned) for use in found.wait.uses
        )
    # What is made of several results is reduced on only if each of them is for that alone.
    users: dict[int, list[Collective]] = {}
    for found in collectives:
        for number in found.waits:
            users.setdefault(number, []).append(found)
    spoiled = [number for found in collectives for number in found.waits if not _is_returned(by_wait, number)]
    seen = set(spoiled)
    while spoiled:
        number = spoiled.pop()
        related = set(by_wait[number].waits) if number in by_wait else set()
        for user in users.get(number, ()):
            related |= user.waits
        for other in related - seen:
            seen.add(other)
            spoiled.append(other)
    for number in seen & by_wait.keys():
        by_wait[number].wait.returned = False


def _is_returned(by_wait: Mapping[int, Collective], number: int) -> bool:
    return number in by_wait and by_wait[number].wait.returned
