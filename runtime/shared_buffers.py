"""Memory that the shards of several parameters share, so that they need not be packed to be sent together."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from .operators import torch_dtype
from .program import Argument
from .program_checks import MOST_PADDING


class SharedBuffers:
    """The buffers that parameters are placed in; each is made when the first of them is asked for.

    Args:
        arguments: of the functions that a rank enters.
        device: of the rank.
    """

    def __init__(self, arguments: Iterable[Argument], device: torch.device):
        self._device = device
        self._starts: dict[str, int] = {}  # of what this rank has of the buffer
        self._ends: dict[str, int] = {}
        self._made: dict[str, Tensor] = {}
        for argument in arguments:
            if argument.buffer:
                start, end = argument.offset, argument.offset + _bytes(argument)
                self._starts[argument.buffer] = min(start, self._starts.get(argument.buffer, start))
                self._ends[argument.buffer] = max(end, self._ends.get(argument.buffer, end))

    def place(self, argument: Argument) -> Tensor | None:
        """Return the memory of a parameter's padded shard, zeroed; None where it is to have its own."""
        if not argument.buffer:
            return None
        buffer = self._made.get(argument.buffer)
        # A multiple, so that what is aligned within the buffer is in memory too.
        first = self._starts[argument.buffer] // MOST_PADDING * MOST_PADDING
        if buffer is None:
            # The padding behind the last is sent too.
            size = -(-(self._ends[argument.buffer] - first) // MOST_PADDING) * MOST_PADDING
            buffer = self._made[argument.buffer] = torch.zeros(size, dtype=torch.uint8, device=self._device)
        part = buffer[argument.offset - first : argument.offset - first + _bytes(argument)]
        return part.view(torch_dtype(argument.type.dtype)).view([size or 0 for size in argument.type.shape])


def _bytes(argument: Argument) -> int:
    return math.prod(size or 0 for size in argument.type.shape) * torch_dtype(argument.type.dtype).itemsize
