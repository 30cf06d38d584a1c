"""A language model with dropout on its embedding, attention probabilities and residuals."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from random_draws import Draws
from torch import Tensor, nn


class DropoutLM(nn.Module):
    """Draws with torch's dropout; a reference run gives it `draws`, from which it takes its masks instead."""

    draws: Draws | None = None

    def __init__(self, vocab: int = 10, dim: int = 8, heads: int = 2, layers: int = 2, p: float = 0.2):
        super().__init__()
        self.heads, self.p = heads, p
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([DropoutBlock(dim) for _ in range(layers)])
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(self.embed(ids))
        for layer in self.layers:
            assert isinstance(layer, DropoutBlock)
            x = x + self.drop(layer.out(self.attend(layer.qkv(layer.norm(x)))))
            x = x + self.drop(layer.down(self.drop(F.gelu(layer.up(x)))))
        logits: Tensor = self.head(x)
        return logits

    def drop(self, x: Tensor) -> Tensor:
        """Drop elements."""
        return F.dropout(x, self.p) if self.draws is None else self.draws.dropout(x, self.p)

    def attend(self, qkv: Tensor) -> Tensor:
        """Causal self-attention that drops probabilities."""
        rows, length, _ = qkv.shape
        q, k, v = (part.reshape(rows, length, self.heads, -1).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        if self.draws is None:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)
        else:
            root = math.sqrt(1 / math.sqrt(q.shape[-1]))
            ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
            # As torch does it: at least in float32.
            wide = torch.promote_types(q.dtype, torch.float32)
            scores = ((q.to(wide) * root) @ (k.to(wide).mT * root)).masked_fill(ahead, -math.inf)
            y = (self.draws.dropout(scores.softmax(-1), self.p) @ v.to(wide)).to(q.dtype)
        return y.transpose(1, 2).reshape(rows, length, -1)


class DropoutBlock(nn.Module):
    """The weights of a layer."""

    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)
