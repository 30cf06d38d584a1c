"""Models and step functions with sizes that change from step to step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hpir

LENGTHS = {"ids": {1: "seq"}, "labels": {1: "seq"}}
LENGTHS_AND_ROWS = {"ids": {0: "rows", 1: "seq"}, "labels": {1: "seq"}}


class LengthLM(nn.Module):
    """A causal LM with learned positions for up to 12 tokens, and BatchNorm over all of them."""

    def __init__(self, vocab: int = 11, dim: int = 8, heads: int = 2, layers: int = 2):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(vocab, dim)
        self.positions = nn.Parameter(torch.randn(12, dim))
        self.layers = nn.ModuleList([nn.Linear(dim, 3 * dim) for _ in range(layers)])
        self.norm = nn.BatchNorm1d(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.positions[: ids.shape[1]]
        batch, length, dim = x.shape
        for layer in self.layers:
            q, k, v = (
                part.view(batch, length, self.heads, dim // self.heads).transpose(1, 2)
                for part in layer(x).chunk(3, dim=-1)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + y.transpose(1, 2).reshape(batch, length, dim)
        logits: Tensor = self.head(self.norm(x.transpose(1, 2)).transpose(1, 2))
        return logits


class Halves(nn.Module):
    """Splits and joins along the dim that changes; works for even lengths of at least 4 only."""

    def __init__(self, dim: int = 4):
        super().__init__()
        self.first, self.second = nn.Linear(dim, dim), nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        y = torch.cat([self.first(left), right.flip(1)], dim=1) * x.shape[1]
        z: Tensor = self.second(torch.relu(y[:, 1:-1]))
        return z


def train_lengths(model: nn.Module, ids: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Mean cross entropy; logits and a count beside it."""
    logits = model(ids)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    return loss, {"logits": logits, "right": (logits.argmax(-1) == labels).sum()}


def train_halves(model: nn.Module, x: Tensor) -> Tensor:
    """Mean square of what comes out."""
    loss: Tensor = model(x).square().mean()
    return loss


def train_tokens(model: nn.Module, ids: Tensor, labels: Tensor) -> tuple[hpir.WeightedLoss, dict[str, Any]]:
    """Cross entropy over the labels that are not -100, as a sum and a count; guesses beside it."""
    logits = model(ids)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return hpir.WeightedLoss(loss, (labels != -100).sum()), {"guess": logits.argmax(-1)}


class PlainLM(nn.Module):
    """A LM without statistics over the batch, so that a step over parts of it equals one over all of it."""

    def __init__(self, vocab: int = 11, dim: int = 8):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.up, self.down = nn.Linear(dim, 5), nn.Linear(5, dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.down(torch.tanh(self.up(x.cumsum(1))))
        logits: Tensor = self.head(x)
        return logits


def padded_batch(rows: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Make token ids and labels, with padding spread very unevenly: later rows have less and less of it."""
    batch = lengths_batch(rows, length, seed)
    for row in range(rows):
        batch["labels"][row, : (length * (rows - row)) // (rows + 1)] = -100
    return batch


def lengths_batch(rows: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Make token ids and labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 11, (rows, length + 1), generator=generator)
    return {"ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


def built(kind: type[nn.Module]) -> nn.Module:
    """Build a model in float64, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind().double()
