"""What the `hp` ops do on a real rank: collectives through ``_c10d_functional``, messages through torch.distributed.

The methods of `RankOps` are what generated code calls (as ``hp.all_gather(...)``). Those that may stand in a compiled
function are made of torch operators alone and look at nothing but dtype and shape, so that they can be traced with FX
proxies that have both.
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
from .operators import torch_dtype
from .random import RandomContext
from .torch_compat import functional_collectives, has_overlap

aten = torch.ops.aten

# What every backend moves and adds. All else is moved as bits of the same width and added in a wider dtype.
_NATIVE = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
    }
)
_CARRIERS = {1: torch.uint8, 2: torch.float16, 4: torch.int32, 8: torch.int64}
# Two's complement sums are the same with and without a sign.
_SUM_AS_BITS = {torch.uint32: torch.int32, torch.uint64: torch.int64}

Finish = Callable[[Any], Any]


class Future:
    """Tensors on their way.

    Attributes:
        values: what will hold them; not to be read before the wait.
        finish: per tensor, what turns the arrived into the result; None for nothing.
        works: of messages, to be waited for; collectives' are known to torch by their tensors.
    """

    __slots__ = ("finish", "values", "works")

    def __init__(self, values: list[Any], finish: list[Finish | None], works: Sequence[Any] | None = None):
        self.values = values
        self.finish = finish
        self.works = works


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
        # gloo's reduce-scatter is an all-reduce of which most is thrown away; an exchange and a sum moves half of that.
        self._exchanges = ranks.backend == "gloo"
        self._pending: set[Future] = set()
        self._sends: list[tuple[list[Any], Sequence[Tensor]]] = []
        ops = functional_collectives()
        self._gather = ops.all_gather_into_tensor.default
        self._scatter = ops.reduce_scatter_tensor.default
        self._reduce = ops.all_reduce.default
        self._exchange = ops.all_to_all_single.default
        self._broadcast = ops.broadcast.default
        self._wait = ops.wait_tensor.default

    def _start(self, values: list[Any], finish: list[Finish | None]) -> Future:
        future = Future(values, finish)
        self._pending.add(future)
        return future

    def all_gather(self, tensors: Sequence[Tensor], axes: Sequence[str], dims: Sequence[int]) -> Future:
        """Start ``hp.all_gather``."""
        group = self.ranks.group(axes)
        if group.size == 1:
            return _arrived(tensors)
        values, finish = [], []
        for tensor, dim in zip(tensors, dims, strict=True):
            bits, back = _carrier(tensor)
            values.append(self._gather(bits, group.size, group.name))
            finish.append(_chain(back, _gathered(group, dim)))
        return self._start(values, finish)

    def reduce_scatter(
        self, tensors: Sequence[Tensor], axes: Sequence[str], dims: Sequence[int], reduce: str
    ) -> Future:
        """Start ``hp.reduce_scatter``."""
        group = self.ranks.group(axes)
        if group.size == 1:
            return _arrived(tensors)
        native = self._averages and reduce == "avg"
        values, finish = [], []
        for tensor, dim in zip(tensors, dims, strict=True):
            terms, back = _summable(tensor)
            average = None if native or reduce != "avg" else _average(group)
            if self._exchanges:
                values.append(self._swap(_stacked_pieces(terms, dim, group), group))
                finish.append(_chain(_sum_of(group), average, back))
            else:
                rows = _joined_pieces(terms, dim, group)
                values.append(self._scatter(rows, "avg" if native else "sum", group.size, group.name))
                finish.append(_chain(average, back))
        return self._start(values, finish)

    def _swap(self, stacked: Tensor, group: Group) -> Tensor:
        ones = [1] * group.size
        result: Tensor = self._exchange(stacked, ones, ones, group.name)
        return result

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
            return _arrived(tensors)
        native = self._averages and reduce == "avg"
        values, finish = [], []
        for tensor in tensors:
            terms, back = _summable(tensor)
            average = None if native or reduce != "avg" else _average(group)
            values.append(self._reduce(aten.contiguous.default(terms), "avg" if native else "sum", group.name))
            finish.append(_chain(average, back))
        return self._start(values, finish)

    def all_to_all(
        self, tensors: Sequence[Tensor], axes: Sequence[str], split_dims: Sequence[int], concat_dims: Sequence[int]
    ) -> Future:
        """Start ``hp.all_to_all``."""
        group = self.ranks.group(axes)
        if group.size == 1:
            return _arrived(tensors)
        values, finish = [], []
        for tensor, split, concat in zip(tensors, split_dims, concat_dims, strict=True):
            bits, back = _carrier(tensor)
            values.append(self._swap(_stacked_pieces(bits, split, group), group))
            finish.append(_chain(_concatenated(group, concat), back))
        return self._start(values, finish)

    def broadcast(
        self, tensors: Sequence[Tensor], axes: Sequence[str], root: int, coordinates: Sequence[int] | None = None
    ) -> Future:
        """Start ``hp.broadcast``."""
        group = self.ranks.group(axes, coordinates)
        if group.size == 1:
            return _arrived(tensors)
        source = root if coordinates is None else tuple(coordinates).index(root)
        source = source if group.order is None else group.order[source]
        values, finish = [], []
        for tensor in tensors:
            bits, back = _carrier(tensor)
            values.append(self._broadcast(bits, source, group.name))
            finish.append(back)
        return self._start(values, finish)

    def send(self, tensors: Sequence[Tensor], axis: str, peer: int) -> None:
        """Start ``hp.send``; the tensors are kept until `drain`."""
        ranks = self.ranks
        receiver = ranks.neighbour(axis, peer)
        group = ranks.channel(axis, ranks.rank, receiver)
        kept = [tensor.resolve_conj().contiguous() for tensor in tensors]
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, receiver, group) for tensor in kept])
        self._sends.append((works, kept))

    def recv(self, axis: str, peer: int, types: Sequence[tuple[str, Sequence[int]]]) -> Future:
        """Start ``hp.recv`` of tensors of these dtypes and sizes."""
        ranks = self.ranks
        sender = ranks.neighbour(axis, peer)
        group = ranks.channel(axis, sender, ranks.rank)
        values = [torch.empty(tuple(sizes), dtype=torch_dtype(dtype), device=ranks.device) for dtype, sizes in types]
        works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, value, sender, group) for value in values])
        future = Future(values, [None] * len(values), works)
        self._pending.add(future)
        return future

    def wait(self, future: Future) -> list[Tensor]:
        """Wait for a future and return its tensors: ``hp.wait``."""
        self._pending.discard(future)
        if future.works is not None:
            for work in future.works:
                work.wait()
            return list(future.values)
        arrived = []
        for value, finish in zip(future.values, future.finish, strict=True):
            waited = self._wait(value)
            arrived.append(waited if finish is None else finish(waited))
        return arrived

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

    def draw(self, kind: str, sizes: Sequence[int], dtype: torch.dtype, stream: int) -> Tensor:
        """Draw a random tensor: ``hp.uniform`` and ``hp.normal``."""
        return self.random.draw(kind, sizes, dtype, self.ranks.device, stream=stream)

    def drain(self) -> None:
        """Wait until everything sent has left."""
        while self._sends:
            works, _ = self._sends.pop()
            for work in works:
                work.wait()

    def abandon(self) -> None:
        """Wait for whatever is still on its way and forget it, failed or not: for use after an error."""
        pending, sends = self._pending, self._sends
        self.forget()
        waits: list[Callable[[], object]] = []
        for future in pending:
            if future.works is None:
                waits.extend(_deferred(self._wait, value) for value in future.values)
            else:
                waits.extend(work.wait for work in future.works)
        waits.extend(work.wait for works, _ in sends for work in works)
        for wait in waits:
            try:
                wait()
            except RuntimeError as error:
                if not dist.is_initialized():
                    raise RuntimeFault(f"the process group is gone: {error}") from None

    def forget(self) -> None:
        """Forget whatever is on its way without waiting."""
        self._pending, self._sends = set(), []


def _deferred(function: Callable[[Any], object], value: Any) -> Callable[[], object]:
    return lambda: function(value)


def _arrived(tensors: Sequence[Tensor]) -> Future:
    return Future(list(tensors), [None] * len(tensors), ())


def _chain(*steps: Finish | None) -> Finish | None:
    present = [step for step in steps if step is not None]
    if len(present) < 2:
        return present[0] if present else None

    def run(value: Any) -> Any:
        for step in present:
            value = step(value)
        return value

    return run


def _carrier(tensor: Tensor) -> tuple[Tensor, Finish | None]:
    """Return a contiguous tensor of the same bits in a dtype that backends move, and the way back."""
    dtype = tensor.dtype
    if dtype in _NATIVE:
        return aten.contiguous.default(tensor), None
    if dtype.is_complex:
        real = aten.view_as_real.default(aten.resolve_conj.default(tensor))
        return aten.contiguous.default(real), aten.view_as_complex.default
    bits = aten.view.dtype(aten.contiguous.default(tensor), _CARRIERS[dtype.itemsize])
    return bits, lambda value: aten.view.dtype(value, dtype)


def _summable(tensor: Tensor) -> tuple[Tensor, Finish | None]:
    """Return a tensor whose elementwise sum over ranks, taken back, is this one's."""
    dtype = tensor.dtype
    if dtype in _NATIVE:
        return tensor, None
    if dtype.is_complex:
        return aten.view_as_real.default(aten.resolve_conj.default(tensor)), aten.view_as_complex.default
    if dtype == torch.bool:
        return aten._to_copy.default(tensor, dtype=torch.int32), lambda value: aten.ne.Scalar(value, 0)
    if dtype in _SUM_AS_BITS:
        return aten.view.dtype(tensor, _SUM_AS_BITS[dtype]), lambda value: aten.view.dtype(value, dtype)
    wide = torch.float32 if dtype.is_floating_point else torch.int32
    return aten._to_copy.default(tensor, dtype=wide), lambda value: aten._to_copy.default(value, dtype=dtype)


def _in_torch_order(pieces: Any, group: Group) -> list[Tensor]:
    """Return pieces by position as torch numbers their receivers."""
    if group.order is None:
        return [pieces[index] for index in range(group.size)]
    placed: list[Any] = [None] * group.size
    for position, index in enumerate(group.order):
        placed[index] = pieces[position]
    return placed


def _by_position(pieces: Any, group: Group) -> list[Tensor]:
    """Return pieces as torch numbers their senders by position."""
    return [pieces[index] for index in (group.order or range(group.size))]


def _joined_pieces(tensor: Tensor, dim: int, group: Group) -> Tensor:
    """Return the pieces along `dim` one after the other along dim 0."""
    if dim == 0 and group.order is None:
        joined: Tensor = aten.contiguous.default(tensor)
    else:
        joined = aten.cat.default(_in_torch_order(aten.chunk.default(tensor, group.size, dim), group), 0)
    return joined


def _stacked_pieces(tensor: Tensor, dim: int, group: Group) -> Tensor:
    """Return the pieces along `dim` as a new dim 0."""
    if dim == 0 and group.order is None:
        stacked: Tensor = aten.unflatten.int(aten.contiguous.default(tensor), 0, [group.size, -1])
    else:
        stacked = aten.stack.default(_in_torch_order(aten.chunk.default(tensor, group.size, dim), group), 0)
    return stacked


def _gathered(group: Group, dim: int) -> Finish | None:
    if dim == 0 and group.order is None:
        return None
    return lambda value: aten.cat.default(_by_position(aten.chunk.default(value, group.size, 0), group), dim)


def _concatenated(group: Group, dim: int) -> Finish:
    if dim == 0 and group.order is None:
        return lambda value: aten.flatten.using_ints(value, 0, 1)
    return lambda value: aten.cat.default(_by_position(aten.unbind.int(value, 0), group), dim)


def _sum_of(group: Group) -> Finish:
    """Return the sum over dim 0 in the order of positions, so that it does not depend on the backend's."""

    def run(value: Any) -> Any:
        pieces = _by_position(aten.unbind.int(value, 0), group)
        total = aten.add.Tensor(pieces[0], pieces[1])
        for piece in pieces[2:]:
            total = aten.add_.Tensor(total, piece)
        return total

    return run


def _average(group: Group) -> Finish:
    return lambda value: aten.div_.Scalar(value, group.size)
