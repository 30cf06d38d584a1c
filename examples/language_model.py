"""A small Llama-style language model and byte-level data from the Python standard library's own source."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dim (Zhang and Sennrich, 2019)."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., dim]."""
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-5)

    def reset_parameters(self) -> None:
        """Set the scale to one."""
        nn.init.ones_(self.weight)


class Attention(nn.Module):
    """Causal self-attention with rotary positions (Su et al., 2021)."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend over [batch, length, dim]."""
        batch, length, dim = x.shape
        q, k, v = (
            w(x).view(batch, length, self.heads, dim // self.heads).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        out: Tensor = self.wo(y.transpose(1, 2).reshape(batch, length, dim))
        return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of features by its position's angle."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, 2020)."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., dim] to [..., dim]."""
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, dim: int, heads: int, hidden: int):
        super().__init__()
        self.attention_norm = RMSNorm(dim)
        self.attention = Attention(dim, heads)
        self.feed_forward_norm = RMSNorm(dim)
        self.feed_forward = FeedForward(dim, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map [batch, length, dim] to the same."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return y


class LanguageModel(nn.Module):
    """A decoder over `vocab` tokens; the rotary table is a non-persistent buffer of the root module."""

    def __init__(self, vocab: int = 256, dim: int = 256, layers: int = 6, heads: int = 8, length: int = 128):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([Layer(dim, heads, dim * 11 // 4) for _ in range(layers)])
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        half = dim // heads // 2
        angles = torch.outer(torch.arange(length).float(), 10000.0 ** -(torch.arange(half).float() / half))
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, dim=-1), persistent=False)
        self.register_buffer("sin", torch.cat([angles.sin()] * 2, dim=-1), persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [batch, length, vocab] for token ids [batch, length]."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits: Tensor = self.head(self.norm(x))
        return logits


def next_token_loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy in nats of the next token."""
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


def standard_library_bytes(limit: int = 4_000_000) -> Tensor:
    """Return up to `limit` bytes of the standard library's source files, in a fixed order, as uint8."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)[:limit]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def global_batch(corpus: Tensor, step: int, rows: int, length: int) -> dict[str, Tensor]:
    """Return the windows that step `step` trains on: ids and next-token labels, int64 [rows, length]."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(0, len(corpus) - length - 1, (rows,), generator=generator)
    windows = torch.stack([corpus[start : start + length + 1] for start in starts.tolist()]).long()
    return {"ids": windows[:, :-1].contiguous(), "labels": windows[:, 1:].contiguous()}
