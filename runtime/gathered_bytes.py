"""How much memory gathered tensors take while a step runs, counted storage by storage.

Nothing here runs unless it is asked for: the counter takes the place of two methods of one rank's `RankOps` for as long
as it watches.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from .collectives import RankOps
from .wires import Future


class GatheredBytes:
    """Bytes of what is gathered, full parameters above all: from a gather's start until their memory is freed.

    From start to wait the size of the result counts, whatever a transport receives into; from there on the memory
    that holds it. Gathers over one rank, whose result is the shard itself, do not count.

    Attributes:
        current: bytes now.
        peak: the most there were at once since the last `reset`.
        gathers: gathers started since then.
    """

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0
        self.gathers = 0
        self._counted: set[int] = set()

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
                self._counted.add(address)
                self.current += held
                # The storage's Python object lives as long as its memory does.
                weakref.finalize(storage, self._freed, address, held).atexit = False
        self.peak = max(self.peak, self.current)

    def _freed(self, address: int, size: int) -> None:
        self._counted.discard(address)
        self.current -= size


@contextlib.contextmanager
def watched(ops: RankOps) -> Iterator[GatheredBytes]:
    """Count what a rank gathers within the block, in code that the eager backend runs.

    Args:
        ops: of the rank.
    """
    counter = GatheredBytes()
    gather, wait = ops.all_gather, ops.wait
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

    replaced: Any = ops
    replaced.all_gather, replaced.wait = all_gather, wait_for
    try:
        yield counter
    finally:
        del replaced.all_gather, replaced.wait
