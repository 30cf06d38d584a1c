"""Random draws for references: what a captured step draws, spelled out in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hpir.runtime.random import draw


@dataclass
class Draws:
    """The streams of one microbatch, one after the other, as a captured step numbers them; in float64.

    `rows` is the number of batch rows of the microbatch, `microbatch` its place in the global batch.
    """

    rows: int
    seed: int = 0
    step: int = 0
    microbatch: int = 0
    stream: int = 0

    def __call__(self, kind: str, *sizes: int, by_row: bool = True) -> Tensor:
        """Draw the next stream; `by_row` where the first dim runs over the batch."""
        values = draw(
            kind,
            sizes,
            torch.float64,
            torch.device("cpu"),
            seed=self.seed,
            step=self.step,
            stream=self.stream,
            microbatch=self.microbatch,
            rows=self.rows if by_row else None,
        )
        self.stream += 1
        return values

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Do to `x` what `F.dropout` does."""
        return x * (self("uniform", *x.shape) >= p) * (1.0 / (1.0 - p))
