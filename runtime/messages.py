"""Point-to-point messages of one rank: ``hp.send``, ``hp.recv`` and the wait for what was received.

A message is the tensors of one send, in order. Small ones travel in one buffer: another message costs more than a copy.
Dtypes that a backend may not know travel as bits. With a header the tensors' sizes go before them, in one tensor of a
length that the types' ranks give; the receiver makes its buffers when it has read them.

Order. A channel is first in, first out, on backends without tags too: a message behind one whose header was not read
yet is asked for only when that one's tensors have been. Nothing here ever blocks but `wait` and `drain`.

Lifetimes. What is sent is kept until it has left. Works of gloo do not say when that is without being waited for, so
the Program is asked: what a peer sends after it has waited for a message says that the message has arrived (see
`acknowledgements`). Received tensors lie in memory that is used again within a step once nothing reads it any more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import RuntimeFault
from . import torch_compat
from .device import RankMesh
from .operators import dtype_name, torch_dtype
from .wires import Finish, carrier, is_native

Types = tuple[tuple[str, tuple[int | None, ...]], ...]
"""Dtype name and sizes of each tensor of a message."""

# Larger tensors travel by themselves.
_MOST_PACKED_BYTES = 1 << 16
_ALIGNMENT = 16
_TAG = 0


class _Packed(NamedTuple):
    """Where a small tensor lies in the buffer that it shares."""

    position: int
    offset: int
    size: int


class Form:
    """How tensors of known types travel: some together in one buffer, the others each by itself; empty ones do not.

    Args:
        types: of the tensors.
    """

    def __init__(self, types: Types):
        self.types = [(torch_dtype(name), [size or 0 for size in sizes]) for name, sizes in types]
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in self.types]
        small = [position for position, size in enumerate(sizes) if 0 < size <= _MOST_PACKED_BYTES]
        self.packed: list[_Packed] = []
        self.packed_bytes = 0
        if len(small) > 1:
            for position in small:
                self.packed.append(_Packed(position, self.packed_bytes, sizes[position]))
                self.packed_bytes += -(-sizes[position] // _ALIGNMENT) * _ALIGNMENT
        together = {item.position for item in self.packed}
        self.alone = [position for position, size in enumerate(sizes) if size and position not in together]

    def parts(self, buffer: Tensor) -> list[Tensor]:
        """Return the tensors that lie in a buffer, in the order of `packed`."""
        parts = []
        for position, offset, size in self.packed:
            dtype, shape = self.types[position]
            parts.append(buffer.narrow(0, offset, size).view(dtype).view(shape))
        return parts

    def wires(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return what is sent for tensors of these types."""
        if not self.packed and len(tensors) == 1 and self.alone:
            # By far the most common, and what is given is mostly as it must be.
            return [carrier(tensors[0])[0]]
        wires = [carrier(tensors[position])[0] for position in self.alone]
        if self.packed:
            buffer = torch.empty(self.packed_bytes, dtype=torch.uint8, device=tensors[0].device)
            for part, item in zip(self.parts(buffer), self.packed, strict=True):
                part.copy_(tensors[item.position])
            wires.append(buffer)
        return wires


class _Slot:
    """Memory that a message of one form is received in.

    Attributes:
        wires: what is received into.
        values: the message's tensors, views of it.
    """

    def __init__(self, form: Form, device: torch.device):
        values: dict[int, Tensor] = {}
        self.wires: list[Tensor] = []
        for position, (dtype, shape) in enumerate(form.types):
            if position in form.alone and is_native(dtype):
                values[position] = wire = torch.empty(shape, dtype=dtype, device=device)
                self.wires.append(wire)
            elif position in form.alone:
                bits, back = carrier(torch.empty(shape, dtype=dtype, device=device))
                values[position] = _restored(bits, back)
                self.wires.append(bits)
            elif not math.prod(shape):
                values[position] = torch.empty(shape, dtype=dtype, device=device)
        if form.packed:
            buffer = torch.empty(form.packed_bytes, dtype=torch.uint8, device=device)
            self.wires.append(buffer)
            values.update(zip((item.position for item in form.packed), form.parts(buffer), strict=True))
        self.values = [values[position] for position in range(len(form.types))]
        self._packed = [item.position for item in form.packed]
        self._storages = [torch_compat.storage_id(wire) for wire in self.wires]
        self._own_uses = [torch_compat.storage_uses(storage) for storage in self._storages]

    def is_free(self) -> bool:
        """Tell whether nobody else holds any of the memory."""
        return [torch_compat.storage_uses(storage) for storage in self._storages] == self._own_uses

    def take(self) -> list[Tensor]:
        """Return the tensors as others may hold them; the memory is not free until they are gone.

        Small ones are copies, so that the memory of one does not depend on what else was sent with it.
        """
        taken = [value.detach() for value in self.values]
        for position in self._packed:
            taken[position] = taken[position].clone()
        return taken


def _restored(bits: Tensor, back: Finish | None) -> Tensor:
    restored: Tensor = bits if back is None else back(bits)
    return restored


class Receive:
    """A message on its way to this rank.

    Attributes:
        link: with the sender.
        number: among the messages from there in this step.
        types: of the tensors, as far as they are known.
        header: what their sizes arrive in; None without one.
        slot: what they arrive in; None until their sizes are known.
        works: to be waited for.
    """

    __slots__ = ("header", "link", "number", "slot", "types", "works")

    def __init__(self, link: _Link, types: Types, header: Tensor | None):
        self.link = link
        self.number = link.received
        link.received += 1
        self.types = types
        self.header = header
        self.slot: _Slot | None = None
        self.works: list[Any] = []


class _Link:
    """The two channels between this rank and another, one in each direction.

    Attributes:
        outward: process group of the channel to the other.
        inward: of the one from it.
        number: of the other in both groups.
        sent: works and tensors of messages that may not have left yet.
        left: how many messages of this step have.
        received: how many were asked of the other in this step.
        acknowledged: by the number of a message received, how many sent ones it says have arrived.
        asked: receives whose tensors were not asked for yet, in order; the first one's header was.
    """

    def __init__(self, outward: Any, inward: Any, number: int):
        self.outward = outward
        self.inward = inward
        self.number = number
        self.sent: deque[tuple[list[Any], list[Tensor]]] = deque()
        self.left = 0
        self.received = 0
        self.acknowledged: Sequence[int] = ()
        self.asked: deque[Receive] = deque()


class Messages:
    """The messages of one rank.

    Args:
        ranks: the mesh and its process groups.
    """

    def __init__(self, ranks: RankMesh):
        self._ranks = ranks
        self._polls = ranks.backend != "gloo"
        self._links: dict[tuple[str, int], _Link] = {}
        self._forms: dict[Types, Form] = {}
        self._slots: dict[Types, list[_Slot]] = {}

    def begin(self, acknowledgements: Mapping[tuple[str, int], Sequence[int]]) -> None:
        """Begin a step: count messages anew.

        Args:
            acknowledgements: of the entry that the rank runs, as `acknowledgements` gives them.
        """
        for key, link in self._links.items():
            link.left = link.received = 0
            link.acknowledged = acknowledgements.get(key, ())
        for key, counts in acknowledgements.items():
            if key not in self._links:
                self._link(*key).acknowledged = counts

    def _link(self, axis: str, peer: int) -> _Link:
        found = self._links.get((axis, peer))
        if found is None:
            ranks = self._ranks
            other = ranks.neighbour(axis, peer)
            outward, inward = ranks.channel(axis, ranks.rank, other), ranks.channel(axis, other, ranks.rank)
            number = ranks.number_in(outward, other)
            found = self._links[axis, peer] = _Link(outward, inward, number)
        return found

    def _form(self, types: Types) -> Form:
        form = self._forms.get(types)
        if form is None:
            form = self._forms[types] = Form(types)
        return form

    def send(self, tensors: Sequence[Tensor], axis: str, peer: int, header: bool) -> None:
        """Start to send tensors to the rank at a position on an axis."""
        link = self._links.get((axis, peer)) or self._link(axis, peer)
        types = tuple((_NAMES[tensor.dtype], tuple(tensor.shape)) for tensor in tensors)
        wires = self._form(types).wires(tensors)
        if header:
            sizes = [size for tensor in tensors for size in tensor.shape]
            wires = [torch.tensor(sizes, dtype=torch.int64, device=self._ranks.device), *wires]
        link.sent.append(([link.outward.send([wire], link.number, _TAG) for wire in wires], wires))
        if self._polls:
            while link.sent and all(work.is_completed() for work in link.sent[0][0]):
                link.sent.popleft()
                link.left += 1

    def recv(self, axis: str, peer: int, types: Types, header: bool) -> Receive:
        """Start to receive tensors from the rank at a position on an axis."""
        link = self._links.get((axis, peer)) or self._link(axis, peer)
        sizes = None
        if header:
            count = sum(len(shape) for _, shape in types)
            sizes = torch.empty(count, dtype=torch.int64, device=self._ranks.device)
        receive = Receive(link, types, sizes)
        if link.asked:
            link.asked.append(receive)
        elif sizes is not None:
            link.asked.append(receive)
            self._ask_sizes(receive)
        else:
            self._ask(receive)
        return receive

    def _ask_sizes(self, receive: Receive) -> None:
        link = receive.link
        receive.works = [link.inward.recv([receive.header], link.number, _TAG)]

    def _ask(self, receive: Receive) -> None:
        """Ask for tensors whose sizes are known."""
        link = receive.link
        slots = self._slots.setdefault(receive.types, [])
        slot = next((slot for slot in slots if slot.is_free()), None)
        if slot is None:
            slot = _Slot(self._form(receive.types), self._ranks.device)
        else:
            slots.remove(slot)
        receive.slot = slot
        receive.works = [link.inward.recv([wire], link.number, _TAG) for wire in slot.wires]

    def _read_sizes(self, receive: Receive) -> None:
        """Wait for a header."""
        assert receive.header is not None
        for work in receive.works:
            work.wait()
        sizes = iter(receive.header.tolist())
        found = tuple((name, tuple(next(sizes) for _ in shape)) for name, shape in receive.types)
        for (name, shape), (_, known) in zip(found, receive.types, strict=True):
            if any(size not in (None, actual) for size, actual in zip(known, shape, strict=True)):
                raise RuntimeFault(f"expected {name}{list(known)}, but {name}{list(shape)} arrives")
        receive.types = found

    def wait(self, receive: Receive) -> list[Tensor]:
        """Wait for a message and return its tensors."""
        link = receive.link
        while receive.slot is None:
            first = link.asked[0]
            self._read_sizes(first)
            self._ask(first)
            link.asked.popleft()
            while link.asked:
                following = link.asked[0]
                if following.header is not None:
                    self._ask_sizes(following)
                    break
                self._ask(following)
                link.asked.popleft()
        for work in receive.works:
            work.wait()
        receive.works = []
        values = receive.slot.take()
        self._slots.setdefault(receive.types, []).append(receive.slot)
        if receive.number < len(link.acknowledged):
            arrived = link.acknowledged[receive.number]
            while link.left < arrived and link.sent:
                _finish(link)
        return values

    def drain(self) -> None:
        """Wait until everything sent has left, and give up memory that nobody reads."""
        for link in self._links.values():
            while link.sent:
                _finish(link)
        self._slots.clear()

    def forget(self) -> list[Any]:
        """Forget what is on its way and return the works of what was sent."""
        works = [work for link in self._links.values() for some, _ in link.sent for work in some]
        for link in self._links.values():
            link.sent.clear()
            link.asked.clear()
        self._slots.clear()
        return works


def _finish(link: _Link) -> None:
    for work in link.sent[0][0]:
        work.wait()
    link.sent.popleft()
    link.left += 1


class _Names(dict[torch.dtype, str]):
    def __missing__(self, dtype: torch.dtype) -> str:
        name = self[dtype] = dtype_name(dtype)
        return name


_NAMES = _Names()
