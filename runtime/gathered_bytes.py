"""How much memory gathered tensors take while a step runs, counted storage by storage.

Nothing here runs unless it is asked for: the counter takes the place of some methods of one rank's `RankOps` for as
long as it watches.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, UntypedStorage

from .collectives import RankOps
from .wires import Future


class GatheredBytes:
    """Bytes of what is gathered, full parameters above all: from a gather's start until their memory is freed.

    From start to wait the size of the result counts, whatever a transport receives into; from there on the memory
    that holds it, and for a bucket that is taken apart into copies, these. Gathers over one rank, whose result is the
    shard itself, do not count.

    Attributes:
        current: bytes now.
        peak: the most there were at once since the last `reset`.
        gathers: gathers started since then.
    """

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0
        self.gathers = 0
        self._counted: dict[int, weakref.finalize[[int, int], UntypedStorage]] = {}

    def reset(self) -> None:
        """Begin anew; what is there still counts."""
        self.peak = self.current
        self.gathers = 0

    def started(self, size: int) -> None:
        """Count the bytes that a gather is to give."""
        self.gathers += 1
        self.current += size
        self.peak = max(self.peak, self.current)

    def arrived(self, size: int, results: Sequence[Tensor]) -> None:
        """Count the memory of a gather's results, each storage once, in place of the bytes it was to give."""
        self.current -= size
        for tensor in results:
            storage = tensor.untyped_storage()
            address, held = storage.data_ptr(), storage.nbytes()
            if held and address not in self._counted:
                self.current += held
                # The storage's Python object lives as long as its memory does.
                self._counted[address] = weakref.finalize(storage, self._freed, address, held)
                self._counted[address].atexit = False
        self.peak = max(self.peak, self.current)

    def unpacked(self, packed: Tensor, results: Sequence[Tensor]) -> None:
        """Count the copies of a gathered bucket's members in place of the bucket; nothing changes for views of it."""
        storage = packed.untyped_storage()
        address = storage.data_ptr()
        if address not in self._counted or any(each.untyped_storage().data_ptr() == address for each in results):
            return
        self._counted.pop(address).detach()
        self.arrived(storage.nbytes(), results)

    def _freed(self, address: int, size: int) -> None:
        del self._counted[address]
        self.current -= size


@contextlib.contextmanager
def watched(ops: RankOps) -> Iterator[GatheredBytes]:
    """Count what a rank gathers within the block, in code that the eager backend runs.

    Args:
        ops: of the rank.
    """
    counter = GatheredBytes()
    gather, wait, unpack, unpack_arrival = ops.all_gather, ops.wait, ops.unpack, ops.unpack_arrival
    sizes: dict[int, int] = {}

    def all_gather(tensors: Sequence[Tensor], axes: Sequence[str], dims: Sequence[int]) -> Future:
        future = gather(tensors, axes, dims)
        ranks = ops.ranks.group(axes).size
        if ranks > 1:
            sizes[id(future)] = ranks * sum(tensor.nbytes for tensor in tensors)
            counter.started(sizes[id(future)])
        return future

    def wait_for(future: Future) -> list[Tensor]:
        size = sizes.pop(id(future), None)
        results = wait(future)
        if size is not None:
            counter.arrived(size, results)
        return results

    def unpack_counted(packed: Tensor, *arguments: Any, **options: Any) -> Sequence[Tensor]:
        results = unpack(packed, *arguments, **options)
        counter.unpacked(packed, results)
        return results

    def unpack_arrival_counted(future: Future, *arguments: Any, **options: Any) -> list[Tensor]:
        size = sizes.pop(id(future), None)
        results = unpack_arrival(future, *arguments, **options)
        if size is not None:
            counter.arrived(size, results)
        return results

    replaced: Any = ops
    replaced.all_gather, replaced.wait = all_gather, wait_for
    replaced.unpack, replaced.unpack_arrival = unpack_counted, unpack_arrival_counted
    try:
        yield counter
    finally:
        del replaced.all_gather, replaced.wait, replaced.unpack, replaced.unpack_arrival
