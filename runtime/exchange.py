"""How simulated ranks meet: collectives matched by issue order, point-to-point channels matched first in, first out.

Collectives of one set of ranks match by position, as they do on an NCCL communicator: each member's k-th collective on
that set belongs with every other member's k-th. Members that issue different ones at a position are an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import RuntimeFault
from ..mesh import Mesh
from .operators import tensor_type, torch_dtype
from .program import Op, TensorType


@dataclass(frozen=True, slots=True)
class Site:
    """Where a rank is: an op of a function it runs."""

    rank: int
    function: str
    number: int
    op: Op

    def __str__(self) -> str:
        return f"rank {self.rank}: {op_place(self.function, self.number, self.op)}"


def op_place(function: str, number: int, op: Op) -> str:
    """Return function, op, module and source line, for a message."""
    text = f"{function}: op {number} '{op.target}'"
    if op.module:
        text += f" in module '{op.module}'"
    if op.location:
        text += f" at {op.location}"
    return text


class Future:
    """Tensors on their way to one rank: `tensors` is None until they are there.

    `inputs` are the rank's own operands, kept until the wait as a transport keeps them. `waiter` is the rank that is
    blocked on it.
    """

    __slots__ = ("_pending", "_reserved", "inputs", "tensors", "waiter")

    def __init__(self, pending: _Collective | _Receive, inputs: Sequence[Tensor], reserved: int) -> None:
        self.tensors: Sequence[Tensor] | None = None
        self.inputs = inputs
        self.waiter: int | None = None
        self._pending: _Collective | _Receive | None = pending
        self._reserved = reserved

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the result buffers that a transport holds already, while the tensors are not there yet."""
        return 0 if self.tensors is not None else self._reserved

    def waits_for(self) -> str:
        """Return what has to happen before the tensors are there, for a message."""
        return "nothing" if self._pending is None else self._pending.waits_for()

    def fulfil(self, tensors: Sequence[Tensor]) -> int | None:
        """Hand over the tensors; return the rank that was blocked on them."""
        self.tensors = tensors
        self._pending = None
        waiter, self.waiter = self.waiter, None
        return waiter


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A collective as an op states it.

    Attributes:
        target: such as ``hp.all_gather``.
        axes: mesh axes, first one major.
        coordinates: positions on the only axis that take part; None for all.
        attributes: what members must agree on, in order, for comparison and messages.
        compute: from the members' tensors for one operand, and the operand's number, to the members' results.
        reserved: from an operand's bytes and the group's size to the bytes of its result.
    """

    target: str
    axes: tuple[str, ...]
    coordinates: tuple[int, ...] | None
    attributes: tuple[tuple[str, object], ...]
    compute: Callable[[Sequence[Tensor], int], list[Tensor]]
    reserved: Callable[[int, int], int]


@dataclass(slots=True)
class _Collective:
    call: CollectiveCall
    members: tuple[int, ...]
    types: tuple[TensorType, ...]
    site: Site
    arrived: dict[int, Future] = field(default_factory=dict)

    def spelled(self) -> str:
        attributes = "".join(f", {name} = {_spell(value)}" for name, value in self.call.attributes)
        operands = ", ".join(map(str, self.types))
        return f"'{self.call.target}' over ranks {list(self.members)}{attributes} of {operands}"

    def waits_for(self) -> str:
        missing = [rank for rank in self.members if rank not in self.arrived]
        return f"{self.spelled()}: {_ranks(missing)} not arrived"


class _Group:
    """The collectives that one set of ranks has issued and not all members have reached."""

    def __init__(self) -> None:
        self.open: deque[_Collective] = deque()
        self.completed = 0
        self.issued: dict[int, int] = {}


@dataclass(slots=True)
class _Message:
    tensors: Sequence[Tensor]
    site: Site


@dataclass(slots=True)
class _Receive:
    types: tuple[TensorType, ...]
    source: int
    site: Site
    future: Future | None = None

    def waits_for(self) -> str:
        return f"a message from rank {self.source}"


@dataclass(slots=True)
class _Channel:
    sent: deque[_Message] = field(default_factory=deque)
    expected: deque[_Receive] = field(default_factory=deque)


class Exchange:
    """Everything that is between the simulated ranks of one step.

    Args:
        mesh: the ranks.
        isolate: give each rank its own copy of what it gets. Needed only where a program changes tensors in place.
    """

    def __init__(self, mesh: Mesh, *, isolate: bool = False) -> None:
        self._mesh = mesh
        self._isolate = isolate
        self._groups: dict[frozenset[int], _Group] = {}
        self._members: dict[tuple[int, tuple[str, ...], tuple[int, ...] | None], tuple[tuple[int, ...], _Group]] = {}
        self._channels: dict[tuple[int, int], _Channel] = {}
        self._woken: list[int] = []

    def take_woken(self) -> list[int]:
        """Return the blocked ranks whose tensors have come since the last call, in the order they came."""
        woken, self._woken = self._woken, []
        return woken

    def collective(self, call: CollectiveCall, inputs: Sequence[Tensor], site: Site) -> Future:
        """Add one member's part to the collective it belongs to; the last one completes it.

        Raises:
            RuntimeFault: the rank is not among the coordinates, or another member's collective at this position
                differs; the text does not name `site`.
        """
        members, group = self._find_group(site.rank, call)
        types = tuple(tensor_type(tensor) for tensor in inputs)
        position = group.issued.get(site.rank, 0)
        group.issued[site.rank] = position + 1
        mine = _Collective(call, members, types, site)
        if position - group.completed == len(group.open):
            group.open.append(mine)
        collective = group.open[position - group.completed]
        if (
            collective.call.target != call.target
            or collective.members != members
            or collective.call.attributes != call.attributes
            or collective.types != types
        ):
            raise RuntimeFault(
                f"collective {position} of ranks {sorted(members)} is {mine.spelled()}, "
                f"but {collective.site} has {collective.spelled()}"
            )
        reserved = sum(call.reserved(tensor.nbytes, len(members)) for tensor in inputs)
        future = Future(collective, inputs, reserved)
        collective.arrived[site.rank] = future
        if len(collective.arrived) == len(members):
            group.open.popleft()
            group.completed += 1
            self._complete(collective)
        return future

    def _find_group(self, rank: int, call: CollectiveCall) -> tuple[tuple[int, ...], _Group]:
        key = (rank, call.axes, call.coordinates)
        found = self._members.get(key)
        if found is None:
            members = self._mesh.group(rank, call.axes)
            if call.coordinates is not None:
                members = tuple(members[position] for position in call.coordinates)
                if rank not in members:
                    raise RuntimeFault(
                        f"position {self._mesh.position(rank, call.axes)} on axis '{call.axes[0]}' takes no part, "
                        f"coordinates are {list(call.coordinates)}"
                    )
            found = members, self._groups.setdefault(frozenset(members), _Group())
            self._members[key] = found
        return found

    def _complete(self, collective: _Collective) -> None:
        futures = [collective.arrived[rank] for rank in collective.members]
        parts: list[list[Tensor]] = [[] for _ in futures]
        for number in range(len(collective.types)):
            results = collective.call.compute([future.inputs[number] for future in futures], number)
            for part, result in zip(parts, results, strict=True):
                part.append(self._owned(result))
        for future, part in zip(futures, parts, strict=True):
            self._wake(future.fulfil(part))

    def send(self, target: int, tensors: Sequence[Tensor], site: Site) -> None:
        """Put tensors on the channel from the site's rank to `target`.

        Raises:
            RuntimeFault: the receive that they belong to expects other types; the text does not name `site`.
        """
        channel = self._channels.setdefault((site.rank, target), _Channel())
        channel.sent.append(_Message([self._owned(tensor.contiguous()) for tensor in tensors], site))
        self._match(channel, site)

    def receive(self, source: int, types: tuple[TensorType, ...], site: Site) -> Future:
        """Expect tensors of these types next on the channel from `source` to the site's rank.

        Raises:
            RuntimeFault: what was sent has other types; the text does not name `site`.
        """
        channel = self._channels.setdefault((source, site.rank), _Channel())
        receive = _Receive(types, source, site)
        future = Future(receive, (), sum(map(_type_bytes, types)))
        receive.future = future
        channel.expected.append(receive)
        self._match(channel, site)
        return future

    def _match(self, channel: _Channel, site: Site) -> None:
        while channel.sent and channel.expected:
            message, receive = channel.sent.popleft(), channel.expected.popleft()
            sent = tuple(tensor_type(tensor) for tensor in message.tensors)
            if not _fit(sent, receive.types):
                spelled_sent, spelled_expected = (", ".join(map(str, types)) for types in (sent, receive.types))
                if site is message.site:
                    raise RuntimeFault(f"sends {spelled_sent}, but {receive.site} expects {spelled_expected}")
                raise RuntimeFault(f"expects {spelled_expected}, but {message.site} sends {spelled_sent}")
            if receive.future is not None:
                self._wake(receive.future.fulfil(message.tensors))

    def _wake(self, rank: int | None) -> None:
        if rank is not None:
            self._woken.append(rank)

    def _owned(self, tensor: Tensor) -> Tensor:
        return tensor.clone() if self._isolate else tensor

    def check_drained(self) -> None:
        """Raise a `RuntimeFault` when messages were never received, or collectives never reached by all members."""
        left = list(self._left())
        if left:
            raise RuntimeFault(
                "the step ended with communication left over:\n" + "\n".join(f"  {line}" for line in left)
            )

    def _left(self) -> Iterator[str]:
        for (source, target), channel in sorted(self._channels.items()):
            for message in channel.sent:
                yield f"{message.site}: rank {target} never receives it"
            for receive in channel.expected:
                yield f"{receive.site}: rank {source} never sends it"
        for group in self._groups.values():
            for collective in group.open:
                yield f"{collective.site}: {collective.waits_for()}"


def _fit(sent: Sequence[TensorType], expected: Sequence[TensorType]) -> bool:
    """Tell whether tensors of these types may arrive where some sizes are not known before."""
    return len(sent) == len(expected) and all(
        actual.dtype == type_.dtype
        and len(actual.shape) == len(type_.shape)
        and all(size is None or size == found for found, size in zip(actual.shape, type_.shape, strict=True))
        for actual, type_ in zip(sent, expected, strict=True)
    )


def _spell(value: object) -> str:
    if isinstance(value, tuple):
        return str(list(value))
    return f"'{value}'" if isinstance(value, str) else str(value)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {list(ranks)} have"


def _type_bytes(type_: TensorType) -> int:
    return int(torch.empty([size or 0 for size in type_.shape], dtype=torch_dtype(type_.dtype), device="meta").nbytes)
