"""Sequence models as training code outside of libraries writes them, small."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rotary_frequencies(dim: int, length: int, theta: float = 10000.0) -> Tensor:
    """Return ``exp(i * position * frequency)`` as complex numbers."""
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """Rotate pairs of features by their position."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    rotated = torch.view_as_real(pairs * freqs_cis[None, : x.shape[1], None]).flatten(3)
    return rotated.type_as(x)


class RMSNorm(nn.Module):
    """Root mean square norm in float32."""

    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


class GroupedAttention(nn.Module):
    """Causal attention with fewer key and value heads, and rotary positions in complex numbers."""

    def __init__(self, dim: int, heads: int, kv_heads: int):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.wq = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(heads * self.head_dim, dim, bias=False)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q = rotate(self.wq(x).view(rows, length, -1, self.head_dim), freqs_cis)
        k = rotate(self.wk(x).view(rows, length, -1, self.head_dim), freqs_cis)
        v = self.wv(x).view(rows, length, -1, self.head_dim)
        repeats = self.heads // self.kv_heads
        k, v = (t.repeat_interleave(repeats, dim=2).transpose(1, 2) for t in (k, v))
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True)
        y: Tensor = self.wo(out.transpose(1, 2).contiguous().view(rows, length, -1))
        return y


class LlamaBlock(nn.Module):
    """Attention and a gated MLP."""

    def __init__(self, dim: int, hidden: int, heads: int, kv_heads: int):
        super().__init__()
        self.attention = GroupedAttention(dim, heads, kv_heads)
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.attention_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), freqs_cis)
        h = self.ffn_norm(x)
        y: Tensor = x + self.w2(F.silu(self.w1(h)) * self.w3(h))
        return y


class Llama(nn.Module):
    """Llama as torchtitan writes it: layers in a ModuleDict, rotary frequencies as a complex buffer."""

    def __init__(self, vocabulary: int, dim: int = 16, layers: int = 2, length: int = 32):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, dim)
        self.register_buffer("freqs_cis", rotary_frequencies(dim // 4, length), persistent=False)
        self.freqs_cis: Tensor
        self.layers = nn.ModuleDict({str(index): LlamaBlock(dim, 24, 4, 2) for index in range(layers)})
        self.norm = RMSNorm(dim)
        self.output = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, self.freqs_cis)
        logits: Tensor = self.output(self.norm(h))
        return logits


class RecurrentLM(nn.Module):
    """An embedding, a recurrent layer and a head."""

    def __init__(self, vocabulary: int, kind: type[nn.LSTM] | type[nn.GRU], dim: int = 12):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.rnn = kind(dim, dim, num_layers=2, batch_first=True)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.rnn(self.embed(tokens))
        logits: Tensor = self.head(hidden)
        return logits


class CellLM(nn.Module):
    """A recurrent cell in a Python loop over the sequence."""

    def __init__(self, vocabulary: int, dim: int = 12):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        state = x.new_zeros(x.shape[0], x.shape[2])
        states = []
        for position in range(x.shape[1]):
            state = self.cell(x[:, position], state)
            states.append(state)
        logits: Tensor = self.head(torch.stack(states, 1))
        return logits


class EncoderDecoder(nn.Module):
    """`nn.Transformer` from tokens to tokens."""

    def __init__(self, vocabulary: int, dim: int = 16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.transformer = nn.Transformer(dim, 4, 1, 1, 24, dropout=0.0, batch_first=True)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=self.head.weight.dtype)
        x = self.embed(tokens)
        logits: Tensor = self.head(self.transformer(x, x, tgt_mask=causal, tgt_is_causal=True))
        return logits


def train_language(model: nn.Module, input_ids: Tensor, labels: Tensor) -> Tensor:
    """Predict the labels of all tokens."""
    return F.cross_entropy(model(input_ids).flatten(0, 1), labels.flatten())
