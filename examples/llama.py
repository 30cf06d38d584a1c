"""A Llama as torchtitan writes it: a complex rotary table in a buffer, grouped queries, SwiGLU; at any size.

On the meta device it has no memory at any size, and exports like any other model::

    with torch.device("meta"):
        model = build(LLAMA_70B)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class LlamaSizes:
    """The shape of a Llama."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    length: int
    rope_theta: float = 500_000.0
    epsilon: float = 1e-5


LLAMA_70B = LlamaSizes(dim=8192, layers=80, heads=64, kv_heads=8, hidden=28_672, vocabulary=128_256, length=4096)
"""The shape of Llama 3 70B, trained on sequences of 4096 tokens."""


def rotary_table(head: int, length: int, theta: float) -> Tensor:
    """Return unit complex numbers ``[length, head / 2]`` that turn each pair of channels by its position."""
    frequencies = 1.0 / theta ** (torch.arange(0, head, 2).float() / head)
    angles = torch.outer(torch.arange(length), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn the channel pairs of ``x`` ``[batch, length, heads, head]`` by their positions, in float32."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = pairs * table[: x.shape[1]].view(1, x.shape[1], 1, -1)
    return torch.view_as_real(turned).flatten(3).type_as(x)


class Attention(nn.Module):
    """Causal attention with fewer key and value heads than query heads."""

    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        self.heads, self.kv_heads = sizes.heads, sizes.kv_heads
        self.head = sizes.dim // sizes.heads
        self.wq = nn.Linear(sizes.dim, sizes.heads * self.head, bias=False)
        self.wk = nn.Linear(sizes.dim, sizes.kv_heads * self.head, bias=False)
        self.wv = nn.Linear(sizes.dim, sizes.kv_heads * self.head, bias=False)
        self.wo = nn.Linear(sizes.heads * self.head, sizes.dim, bias=False)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """Attend to the positions up to one's own."""
        rows, length, _ = x.shape
        q = rotate(self.wq(x).view(rows, length, self.heads, self.head), table)
        k = rotate(self.wk(x).view(rows, length, self.kv_heads, self.head), table)
        v = self.wv(x).view(rows, length, self.kv_heads, self.head)
        repeats = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeats, dim=2), v.repeat_interleave(repeats, dim=2)
        y = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        out: Tensor = self.wo(y.transpose(1, 2).reshape(rows, length, -1))
        return out


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        self.w1 = nn.Linear(sizes.dim, sizes.hidden, bias=False)
        self.w2 = nn.Linear(sizes.hidden, sizes.dim, bias=False)
        self.w3 = nn.Linear(sizes.dim, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Raise, gate and lower."""
        out: Tensor = self.w2(functional.silu(self.w1(x)) * self.w3(x))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        self.attention = Attention(sizes)
        self.feed_forward = FeedForward(sizes)
        self.attention_norm = nn.RMSNorm(sizes.dim, eps=sizes.epsilon)
        self.ffn_norm = nn.RMSNorm(sizes.dim, eps=sizes.epsilon)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """Return the residual stream after this layer."""
        h = x + self.attention(self.attention_norm(x), table)
        out: Tensor = h + self.feed_forward(self.ffn_norm(h))
        return out


class Llama(nn.Module):
    """The whole model; its rotary table is a buffer that no checkpoint holds."""

    freqs_cis: Tensor

    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        self.sizes = sizes
        self.tok_embeddings = nn.Embedding(sizes.vocabulary, sizes.dim)
        self.register_buffer("freqs_cis", torch.empty(0), persistent=False)
        self.layers = nn.ModuleDict({str(number): Block(sizes) for number in range(sizes.layers)})
        self.norm = nn.RMSNorm(sizes.dim, eps=sizes.epsilon)
        self.output = nn.Linear(sizes.dim, sizes.vocabulary, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Compute the rotary table; the layers have the parameters and reset their own."""
        head = self.sizes.dim // self.sizes.heads
        self.freqs_cis = rotary_table(head, self.sizes.length, self.sizes.rope_theta)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next token at each position."""
        h = self.tok_embeddings(ids)
        for layer in self.layers.values():
            h = layer(h, self.freqs_cis)
        logits: Tensor = self.output(self.norm(h))
        return logits


def build(sizes: LlamaSizes, dtype: torch.dtype = torch.bfloat16) -> Llama:
    """Return the model with parameters of `dtype`, on the device that is the default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return Llama(sizes)
    finally:
        torch.set_default_dtype(before)


def next_token_loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """The step: mean cross entropy in float32."""
    return functional.cross_entropy(model(ids).float().flatten(0, 1), labels.flatten())
