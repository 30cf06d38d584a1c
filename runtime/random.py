"""Random tensors that depend on (seed, step, stream, place in the global batch) alone.

So every plan, every schedule and every recomputation of a step draws the same values, and no global generator is read
or moved. The place is a row of the global batch where the tensor holds values per row, else a microbatch. Values differ
from one kind of device to another, and from eager's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..errors import RuntimeFault

_MASK = (1 << 64) - 1

# Bits of a uniform draw that the dtype holds exactly: its significand. Drawn in float32, so never more than 24.
_UNIFORM_BITS = {torch.bfloat16: 8, torch.float16: 11}


@dataclass(frozen=True, slots=True)
class RandomContext:
    """What the values of a stream depend on, beside the stream.

    Attributes:
        seed: the Program's.
        step: number of the training step.
        microbatch: which part of the data rank's batch; set by the ``call`` that runs it.
        data_coordinate: position of the rank over the data axes.
        microbatches: parts each data rank's batch is split into.
    """

    seed: int = 0
    step: int = 0
    microbatch: int = 0
    data_coordinate: int = 0
    microbatches: int = 1

    def with_microbatch(self, microbatch: int) -> RandomContext:
        """Return the context of another microbatch of the same step and rank."""
        return replace(self, microbatch=microbatch)

    def draw(
        self,
        kind: str,
        sizes: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        *,
        stream: int,
        rows: int | None = None,
    ) -> torch.Tensor:
        """Draw a tensor of one stream: see `draw`."""
        return draw(
            kind,
            sizes,
            dtype,
            device,
            seed=self.seed,
            step=self.step,
            stream=stream,
            microbatch=self.data_coordinate * self.microbatches + self.microbatch,
            rows=rows,
        )


def draw(
    kind: str,
    sizes: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    *,
    seed: int,
    step: int,
    stream: int,
    microbatch: int,
    rows: int | None = None,
) -> torch.Tensor:
    """Draw a random tensor; equal arguments give equal values.

    Values are drawn in float32 whatever the dtype, so that a step run in float64 sees the masks that the float32 step
    sees. A uniform draw is rounded down to the dtype, so that it stays below 1.

    With `rows`, the first dim is that many equal blocks, one per row of the microbatch, and each is drawn by the number
    of its row in the global batch: how the batch is divided over ranks and microbatches makes no difference.

    Args:
        kind: "uniform" for [0, 1), "normal" for the standard normal.
        sizes: the tensor's shape.
        dtype: a real floating dtype.
        device: where it is drawn and lies.
        seed: of all streams.
        step: number of the training step.
        stream: which random op of the step function.
        microbatch: which part of the global batch, data rank major.
        rows: rows of a microbatch; None where the tensor does not hold values per row.

    Raises:
        RuntimeFault: `kind` is unknown, `dtype` is not floating, or the first dim does not divide into `rows`.
    """
    if kind not in ("uniform", "normal"):
        raise RuntimeFault(f"unknown kind of random values '{kind}', expected 'uniform' or 'normal'")
    if not dtype.is_floating_point:
        raise RuntimeFault(f"cannot draw random values of dtype {dtype}, expected a floating one")
    if rows is not None and (rows < 1 or not sizes or sizes[0] % rows):
        raise RuntimeFault(f"cannot draw {rows} rows of random values of shape {list(sizes)}")
    generator = torch.Generator(device=device)
    values = torch.empty(tuple(sizes), dtype=torch.float32, device=device)
    key = mixed_seed(seed, step, stream)
    blocks = [values] if rows is None else values.view(rows, -1).unbind() if values.numel() else []
    first = microbatch * len(blocks)
    for number, block in enumerate(blocks):
        generator.manual_seed(mixed_seed(first + number, start=key))
        if kind == "normal":
            block.normal_(generator=generator)
        else:
            block.uniform_(generator=generator)
    bits = _UNIFORM_BITS.get(dtype)
    if kind == "uniform" and bits is not None:
        values = values.mul_(1 << bits).floor_().div_(1 << bits)
    return values.to(dtype)


def mixed_seed(*numbers: int, start: int = 0) -> int:
    """Return a 64-bit seed in which every bit of every number, and their order, matters.

    `start` is the seed that earlier numbers gave: ``mixed_seed(1, 2)`` is ``mixed_seed(2, start=mixed_seed(1))``.

    Each number is folded in by the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
    number generators", OOPSLA 2014).
    """
    state = start
    for number in numbers:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = state ^ (number & _MASK)
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        state = mixed ^ (mixed >> 31)
    return state
