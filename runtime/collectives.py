"""What the `hp` ops do on a real rank: collectives through ``_c10d_functional``, messages through torch.distributed.

The methods of `RankOps` are what generated code calls (as ``hp.all_gather(...)``). Those that may stand in a compiled
function are made of torch operators alone and look at nothing but dtype and shape, so that they can be traced with FX
proxies that have both.

Streams and lifetimes on accelerators. Ops run on the current stream; a collective runs on its process group's stream,
which first waits for what the current one was given before the start. The wait makes the current stream, not the host,
wait for the collective. Nothing here calls ``record_stream``, because no memory can be given out too early:

- A collective's operands and results: functional collectives are asynchronous ones (``asyncOp`` is true by default),
  whose work holds both from the start until it is waited for (``stashed_for_allocator_safety_`` of ProcessGroupNCCL,
  always on since torch 2.8); torch's registry of functional collectives holds the work until ``wait_tensor``. After
  that all further use is ordered by the current stream, whose memory pool they are of. So it is safe to drop an operand
  after the start, as generated code does at its last use, and memory is not held until some later event, as it would be
  with ``record_stream``.
- What an abandoned step started is waited for by `RankOps.abandon`.
- Messages: what is sent is kept in `Messages` until its work is done, what is received in the future until its work
  was waited for.
- Host memory of copies to the device: see `host_copies`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import RuntimeFault
from ..mesh import shard_spans
from .device import Group, RankMesh
from .direct_exchange import DirectExchange
from .messages import Messages, Receive
from .messages import Types as MessageTypes
from .packed_ops import Types
from .packing import packing
from .random import RandomContext
from .torch_compat import functional_collectives, has_overlap
from .wires import (
    Finish,
    Future,
    Part,
    Wire,
    arrived,
    average,
    by_dtype,
    carrier,
    chain,
    concatenated,
    gathered,
    joined_pieces,
    piece_shape,
    stacked_pieces,
    summable,
)

aten = torch.ops.aten


class RankOps:
    """The `hp` ops of one rank.

    Args:
        ranks: the mesh and its process groups.

    Attributes:
        device: of the rank.
        random: what random draws depend on; set per step and per microbatch.
    """

    def __init__(self, ranks: RankMesh):
        self.ranks = ranks
        self.device = ranks.device
        self.random = RandomContext()
        self._averages = ranks.backend in ("nccl", "hccl", "xccl")
        self._pending: set[Future | Receive] = set()
        self._lost = False
        self.messages = Messages(ranks)
        self._functional = functional_collectives()
        self._gather = self._functional.all_gather_into_tensor.default
        self._wait = self._functional.wait_tensor.default
        # gloo takes operands of one dtype at a time, the others all at once.
        self._by_dtype = ranks.backend == "gloo"
        self._direct = DirectExchange(self._functional) if ranks.backend == "gloo" else None

    def _future(self, parts: list[Part]) -> Future:
        future = Future(parts)
        self._pending.add(future)
        return future

    def _start(
        self,
        wires: Sequence[Wire],
        start: Callable[[Any], Any],
        start_all: Callable[[list[Any]], Any] | None = None,
    ) -> Future:
        """Start a collective for each operand, or for several together.

        Args:
            wires: the operands.
            start: starts it for one tensor.
            start_all: starts it for several tensors at once, where there is an operator for that.
        """
        parts: list[Part] = []
        if len(wires) == 1 or start_all is None:
            for position, wire in enumerate(wires):
                parts.append(Part(start(wire.tensor), (position,), wire.finish))
        else:
            for bucket in by_dtype(wires) if self._by_dtype else [list(range(len(wires)))]:
                values = start_all([wires[position].tensor for position in bucket])
                parts += [Part(values[number], (at,), wires[at].finish) for number, at in enumerate(bucket)]
        return self._future(parts)

    def all_gather(self, tensors: Sequence[Tensor], axes: Sequence[str], dims: Sequence[int]) -> Future:
        """Start ``hp.all_gather``."""
        group = self.ranks.group(axes)
        if group.size == 1:
            return arrived(tensors)
        if self._direct is not None:
            return self._future(self._direct.all_gather(tensors, dims, group))
        wires = []
        for tensor, dim in zip(tensors, dims, strict=True):
            bits, back = carrier(tensor)
            wires.append(Wire(bits, tuple(tensor.shape), tensor.dtype, chain(back, gathered(group, dim))))
        size, name = group.size, group.name
        return self._start(
            wires,
            lambda wire: self._gather(wire, size, name),
            lambda some: self._functional.all_gather_into_tensor_coalesced.default(some, size, name),
        )

    def reduce_scatter(
        self, tensors: Sequence[Tensor], axes: Sequence[str], dims: Sequence[int], reduce: str
    ) -> Future:
        """Start ``hp.reduce_scatter``."""
        group = self.ranks.group(axes)
        if group.size == 1:
            return arrived(tensors)
        kind, mean = self._reduction(reduce, group)
        if self._direct is not None:
            return self._future(self._direct.reduce_scatter(tensors, dims, group, mean))
        size, name = group.size, group.name
        wires = []
        for tensor, dim in zip(tensors, dims, strict=True):
            terms, back = summable(tensor)
            pieces = piece_shape(tensor, dim, group)
            shape = (size * pieces[0], *pieces[1:])
            wires.append(Wire(joined_pieces(terms, dim, group), shape, tensor.dtype, chain(mean, back)))
        return self._start(
            wires,
            lambda wire: self._functional.reduce_scatter_tensor.default(wire, kind, size, name),
            lambda some: self._functional.reduce_scatter_tensor_coalesced.default(some, kind, size, name),
        )

    def _reduction(self, reduce: str, group: Group) -> tuple[str, Finish | None]:
        """Return what the backend is asked for, and what makes that the result."""
        if reduce == "sum" or self._averages:
            return reduce, None
        return "sum", average(group)

    def all_reduce(
        self,
        tensors: Sequence[Tensor],
        axes: Sequence[str],
        reduce: str,
        coordinates: Sequence[int] | None = None,
    ) -> Future:
        """Start ``hp.all_reduce``."""
        group = self.ranks.group(axes, coordinates)
        if group.size == 1:
            return arrived(tensors)
        kind, mean = self._reduction(reduce, group)
        if self._direct is not None:
            return self._future(self._direct.all_reduce(tensors, group, mean))
        wires = []
        for tensor in tensors:
            terms, back = summable(tensor)
            wires.append(Wire(aten.contiguous.default(terms), tuple(tensor.shape), tensor.dtype, chain(mean, back)))
        return self._start(
            wires,
            lambda wire: self._functional.all_reduce.default(wire, kind, group.name),
            lambda some: self._functional.all_reduce_coalesced.default(some, kind, group.name),
        )

    def all_to_all(
        self, tensors: Sequence[Tensor], axes: Sequence[str], split_dims: Sequence[int], concat_dims: Sequence[int]
    ) -> Future:
        """Start ``hp.all_to_all``."""
        group = self.ranks.group(axes)
        if group.size == 1:
            return arrived(tensors)
        if self._direct is not None:
            return self._future(self._direct.all_to_all(tensors, split_dims, concat_dims, group))
        wires = []
        for tensor, split, concat in zip(tensors, split_dims, concat_dims, strict=True):
            bits, back = carrier(tensor)
            shape = (group.size, *piece_shape(tensor, split, group))
            finish = chain(concatenated(group, concat), back)
            wires.append(Wire(stacked_pieces(bits, split, group), shape, tensor.dtype, finish))
        ones, name = [1] * group.size, group.name
        return self._start(wires, lambda wire: self._functional.all_to_all_single.default(wire, ones, ones, name))

    def broadcast(
        self, tensors: Sequence[Tensor], axes: Sequence[str], root: int, coordinates: Sequence[int] | None = None
    ) -> Future:
        """Start ``hp.broadcast``."""
        group = self.ranks.group(axes, coordinates)
        if group.size == 1:
            return arrived(tensors)
        source = root if coordinates is None else tuple(coordinates).index(root)
        source = source if group.order is None else group.order[source]
        if self._direct is not None:
            return self._future(self._direct.broadcast(tensors, source, group))
        wires = []
        for tensor in tensors:
            bits, back = carrier(tensor)
            wires.append(Wire(bits, tuple(tensor.shape), tensor.dtype, back))
        return self._start(wires, lambda wire: self._functional.broadcast.default(wire, source, group.name))

    def send(self, tensors: Sequence[Tensor], axis: str, peer: int, header: bool = False, label: str = "") -> None:
        """Start ``hp.send``; the tensors are kept until they have left."""
        try:
            self.messages.send(tensors, axis, peer, header)
        except RuntimeError:
            self._lost = True
            raise

    def recv(self, axis: str, peer: int, types: MessageTypes, header: bool = False, label: str = "") -> Receive:
        """Start ``hp.recv`` of tensors of these dtypes and sizes."""
        try:
            receive = self.messages.recv(axis, peer, types, header)
        except RuntimeError:
            self._lost = True
            raise
        self._pending.add(receive)
        return receive

    def wait(self, future: Future | Receive) -> list[Tensor]:
        """Wait for a future and return its tensors: ``hp.wait``."""
        self._pending.discard(future)
        try:
            return self._arrived(future)
        except RuntimeError:
            self._lost = True
            raise

    def _arrived(self, future: Future | Receive) -> list[Tensor]:
        if isinstance(future, Receive):
            return self.messages.wait(future)
        if future.is_there:
            return [part.value for part in future.parts]
        if len(future.parts) == 1 and len(future.parts[0].positions) == 1:
            value, _, finish, _ = future.parts[0]
            waited = self._wait(value)
            return [waited if finish is None else finish(waited)]
        results: dict[int, Tensor] = {}
        # All waits come first: gloo writes all outputs of a coalesced collective at each of its waits.
        arrivals = [self._wait(part.value) for part in future.parts]
        for waited, (_, positions, finish, _) in zip(arrivals, future.parts, strict=True):
            if len(positions) == 1:
                results[positions[0]] = waited if finish is None else finish(waited)
            else:
                assert finish is not None
                results.update(zip(positions, finish(waited), strict=True))
        return [results[position] for position in range(len(results))]

    def shard_slice(self, tensor: Tensor, axes: Sequence[str], dim: int) -> Tensor:
        """Return this rank's piece, padded with zeros to the largest: ``hp.shard_slice``."""
        mesh = self.ranks.mesh
        spans = shard_spans(tensor.shape[dim], mesh.sizes(axes))
        begin, rows = spans[mesh.position(self.ranks.rank, axes)]
        piece: Tensor = aten.slice.Tensor(tensor, dim, begin, begin + rows)
        missing = max(size for _, size in spans) - rows
        if missing:
            padding = [0, 0] * (len(tensor.shape) - 1 - dim) + [0, missing]
            piece = aten.constant_pad_nd.default(piece, padding)
        return piece

    def microbatch(self, tensor: Tensor, index: int, count: int, dim: int) -> Tensor:
        """Return the `index`-th of `count` parts, a view: ``hp.microbatch``."""
        rows, longer = divmod(tensor.shape[dim], count)
        begin = index * rows + min(index, longer)
        part: Tensor = aten.slice.Tensor(tensor, dim, begin, begin + rows + (index < longer))
        return part

    def pack(
        self, tensors: Sequence[Tensor], types: Types, ranks: int, alignment: int, dims: tuple[int, ...] = ()
    ) -> Tensor:
        """Return tensors of these types as one, sharing their memory where it can: ``hp.pack``."""
        return packing(types, ranks, alignment, dims).pack(tensors)

    def unpack(
        self, packed: Tensor, types: Types, ranks: int, alignment: int, layout: str, dims: tuple[int, ...] = ()
    ) -> list[Tensor]:
        """Return the tensors of these types that are in `packed`: ``hp.unpack``."""
        return packing(types, ranks, alignment, dims).unpack(packed, layout)

    def unpack_arrival(
        self, future: Future, types: Types, ranks: int, alignment: int, layout: str, dims: tuple[int, ...] = ()
    ) -> list[Tensor]:
        """Wait for a gathered tensor and return the tensors that are in it: ``hp.wait`` and ``hp.unpack`` in one."""
        packed = packing(types, ranks, alignment, dims)
        part = future.parts[0]
        if part.rows is None or not packed.by_rows:
            return packed.unpack(self.wait(future)[0], layout)
        self._pending.discard(future)
        try:
            return packed.join(part.rows(self._wait(part.value)), layout)
        except RuntimeError:
            self._lost = True
            raise

    def accumulate(
        self, sums: Sequence[Tensor], values: Sequence[Tensor], in_place: Sequence[bool] = ()
    ) -> list[Tensor]:
        """Return each sum plus its value: ``hp.accumulate``.

        Args:
            sums: the accumulators.
            values: what is added, one each.
            in_place: per accumulator, whether nothing else reads its memory, so that it may be the result.
        """
        totals = []
        for position, (total, value) in enumerate(zip(sums, values, strict=True)):
            if not (position < len(in_place) and in_place[position]) or has_overlap(total):
                total = aten.clone.default(total)
            totals.append(aten.add_.Tensor(total, value))
        return totals

    def enter_microbatch(self, microbatch: int) -> None:
        """Make random draws those of this microbatch."""
        self.random = self.random.with_microbatch(microbatch)

    def draw(self, kind: str, sizes: Sequence[int], dtype: torch.dtype, stream: int, rows: int | None = None) -> Tensor:
        """Draw a random tensor: ``hp.uniform`` and ``hp.normal``."""
        return self.random.draw(kind, sizes, dtype, self.ranks.device, stream=stream, rows=rows)

    def drain(self) -> None:
        """Wait until everything sent has left."""
        try:
            self.messages.drain()
        except RuntimeError:
            self._lost = True
            raise

    def abandon(self) -> bool:
        """Wait for whatever is still on its way and forget it: for use after an error.

        What hangs is waited for once, until the timeout: after a first failure of communication, also one before this
        call, all is forgotten without waiting.

        Returns:
            Whether communication has not failed.
        """
        if self._lost:
            self.forget()
            return False
        pending = self._pending
        waits: list[Callable[[], object]] = [
            _deferred(self.messages.wait, future) for future in pending if isinstance(future, Receive)
        ]
        waits += [
            _deferred(self._wait, part.value)
            for future in pending
            if isinstance(future, Future) and not future.is_there
            for part in future.parts
        ]
        self._pending = set()
        try:
            for wait in waits:
                wait()
            self.messages.drain()
        except (RuntimeError, RuntimeFault) as error:
            if not dist.is_initialized():
                raise RuntimeFault(f"the process group is gone: {error}") from None
            return isinstance(error, RuntimeFault)
        finally:
            self.forget()
        return True

    def forget(self) -> None:
        """Forget whatever is on its way without waiting."""
        self._lost = False
        self._pending = set()
        self.messages.forget()


def _deferred(function: Callable[[Any], object], value: Any) -> Callable[[], object]:
    return lambda: function(value)
