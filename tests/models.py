"""The acceptance models: small models that each hold one thing that breaks other partitioners.

`CASES` lists those that this version captures. A case builds the same model each time (its own seed) and makes a global
batch of any number of rows, so that the same training can be run plainly, simulated and on real ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from dropout_lm import DropoutLM
from random_draws import Draws
from torch import Tensor, nn

import hpir

TrainFunction = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One acceptance model.

    `build` makes the model, `batch` a global batch of `rows` rows, `train` is the step function; `batch_dims` as for
    `hpir.export`; `units` are FSDP unit patterns that exist in the model; `ignore` parameters to keep whole.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], dict[str, Tensor]]
    train: TrainFunction
    batch_dims: int | Mapping[str, int | None] = 0
    units: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    tags: frozenset[str] = field(default_factory=frozenset)

    def model(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """Build the model with its fixed seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.build().to(dtype)

    def data(self, rows: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> dict[str, Tensor]:
        """Make a global batch with its fixed seed; floating inputs in `dtype`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            batch = self.batch(rows)
        return {name: leaf.to(dtype) if leaf.is_floating_point() else leaf for name, leaf in batch.items()}


class TiedLM(nn.Module):
    """Embedding and head are one parameter of 10 rows, which 3 ranks cannot split evenly."""

    def __init__(self, vocab: int = 10, dim: int = 8, layers: int = 2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([Block(dim) for _ in range(layers)])
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


class Block(nn.Module):
    """A residual MLP block with a norm."""

    def __init__(self, dim: int, hidden: int | None = None):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden or 2 * dim)
        self.down = nn.Linear(hidden or 2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return y


class UnevenMLP(nn.Module):
    """Widths 5 and 7: no dim divides by 2."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(3, 5)
        self.mid = nn.Linear(5, 7)
        self.out = nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(torch.tanh(self.mid(torch.tanh(self.up(x)))))
        return y


class LongSkip(nn.Module):
    """``l3(l2(l1(x))) + l1(x)``."""

    def __init__(self, dim: int = 6):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.l1(x))
        y: Tensor = self.l3(torch.relu(self.l2(first))) + first
        return y


class RotaryLM(nn.Module):
    """A causal attention LM whose rotary table is a non-persistent buffer of the root module."""

    def __init__(self, vocab: int = 16, dim: int = 8, heads: int = 2, length: int = 6, layers: int = 2):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([Attention(dim, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        half = dim // heads // 2
        angle = torch.outer(torch.arange(length).float(), 10000.0 ** -(torch.arange(half).float() / half))
        self.register_buffer("cos", torch.cat([angle.cos(), angle.cos()], -1), persistent=False)
        self.register_buffer("sin", torch.cat([angle.sin(), angle.sin()], -1), persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x, self.cos, self.sin)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Attention(nn.Module):
    """Rotary self-attention with one fused projection, split by `chunk`."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, dim // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        z: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, dim))
        return z


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class Adapters(nn.Module):
    """A frozen encoder with trainable low-rank adapters."""

    def __init__(self, dim: int = 6, rank: int = 2):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, dim))
        self.encoder.requires_grad_(False)
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim, bias=False)
        self.head = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.encoder(x) + self.up(self.down(x)))
        return y


class Unused(nn.Module):
    """One parameter (in the middle of the order) and one input take no part."""

    def __init__(self, dim: int = 4):
        super().__init__()
        self.first = nn.Linear(dim, dim)
        self.forgotten = nn.Linear(dim, dim)
        self.last = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.tanh(self.first(x)))
        return y


class ConvNet(nn.Module):
    """Convolutions and BatchNorm: buffers that every microbatch updates once."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)
        )
        self.head = nn.Linear(5, 3)

    def forward(self, image: Tensor) -> Tensor:
        y: Tensor = self.head(self.features(image).mean((2, 3)))
        return y


class ImageText(nn.Module):
    """Two inputs of different kinds and a boolean mask that every layer uses."""

    def __init__(self, vocab: int = 12, dim: int = 6, layers: int = 2):
        super().__init__()
        self.patch = nn.Linear(5, dim)
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([Block(dim, 7) for _ in range(layers)])
        self.head = nn.Linear(dim, vocab)

    def forward(self, image: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        x = torch.cat([self.patch(image), self.embed(ids)], dim=1)
        for layer in self.layers:
            x = torch.where(mask.unsqueeze(-1), layer(x), x)
        logits: Tensor = self.head(x[:, image.shape[1] :])
        return logits


class Twice(nn.Module):
    """One module called twice in a forward."""

    def __init__(self, dim: int = 5):
        super().__init__()
        self.shared = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(torch.tanh(self.shared(torch.tanh(self.shared(x)))))
        return y


class Strided(nn.Module):
    """Activations are transposed and expanded between layers."""

    def __init__(self, dim: int = 4):
        super().__init__()
        self.first = nn.Linear(dim, dim)
        self.second = nn.Linear(3, dim)
        self.scale = nn.Parameter(torch.ones(()))
        self.shift = nn.Parameter(torch.zeros(1, dim))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).transpose(1, 2)
        z: Tensor = self.second(y) * self.scale + self.shift.expand(y.shape[0], y.shape[1], -1)
        return z


def _lm_batch(vocab: int, length: int) -> Callable[[int], dict[str, Tensor]]:
    def make(rows: int) -> dict[str, Tensor]:
        ids = torch.randint(0, vocab, (rows, length + 1))
        return {"ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}

    return make


def _regression_batch(*shape: int, out: int = 1) -> Callable[[int], dict[str, Tensor]]:
    return lambda rows: {"x": torch.randn(rows, *shape), "y": torch.randn(rows, *shape[:-1], out)}


def train_lm(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of the next token."""
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


def train_regression(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean squared error."""
    return F.mse_loss(model(x), y)


def train_unused(model: nn.Module, x: Tensor, ignored: Tensor, y: Tensor) -> Tensor:
    """Mean squared error; one input is not used."""
    return F.mse_loss(model(x), y)


def train_image(model: nn.Module, image: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of an image class."""
    return F.cross_entropy(model(image), labels)


def train_image_text(model: nn.Module, image: Tensor, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the text's next token."""
    return F.cross_entropy(model(image, ids, mask).flatten(0, 1), labels.flatten())


def train_with_outputs(model: nn.Module, ids: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Cross entropy, with logits and a count of right guesses beside it."""
    logits = model(ids)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    return loss, {"logits": logits, "metrics": {"right": (logits.argmax(-1) == labels).sum()}}


def train_weighted(model: nn.Module, ids: Tensor, labels: Tensor) -> tuple[hpir.WeightedLoss, dict[str, Any]]:
    """Cross entropy of the tokens that are not ignored, as a sum and their number, with logits and counts beside it."""
    logits = model(ids)
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    counted = labels != IGNORED
    right = (logits.argmax(-1) == labels) & counted
    return hpir.WeightedLoss(total, counted.sum()), {"logits": logits, "right": right.sum()}


IGNORED = -100
"""The label of a token that takes no part in the loss."""


def _padded_batch(rows: int) -> dict[str, Tensor]:
    """Tokens of which each row ignores a number of its own; the first row all of them."""
    batch = _lm_batch(10, 4)(rows)
    ignored = torch.arange(4) < torch.tensor([(3 * row) % 4 if row else 4 for row in range(rows)]).unsqueeze(1)
    return {**batch, "labels": batch["labels"].masked_fill(ignored, IGNORED)}


def _image_text_batch(rows: int) -> dict[str, Tensor]:
    return {
        "image": torch.randn(rows, 2, 5),
        "ids": torch.randint(0, 12, (rows, 3)),
        "mask": torch.rand(rows, 5) > 0.3,
        "labels": torch.randint(0, 12, (rows, 3)),
    }


CASES: tuple[Case, ...] = (
    Case("tied", TiedLM, _lm_batch(10, 4), train_lm, units=("layers.*",)),
    Case("uneven", UnevenMLP, _regression_batch(3), train_regression, units=("up", "mid")),
    Case("long_skip", LongSkip, _regression_batch(6, out=6), train_regression, units=("l*",)),
    Case("rotary", RotaryLM, _lm_batch(16, 6), train_lm, units=("layers.*",)),
    Case("adapters", Adapters, _regression_batch(6), train_regression, units=("encoder",)),
    Case(
        "unused",
        Unused,
        lambda rows: {"x": torch.randn(rows, 4), "ignored": torch.randn(rows, 2), "y": torch.randn(rows, 1)},
        train_unused,
    ),
    Case(
        "convnet",
        ConvNet,
        lambda rows: {"image": torch.randn(rows, 3, 6, 6), "labels": torch.randint(0, 3, (rows,))},
        train_image,
        units=("features.*",),
    ),
    Case("image_text", ImageText, _image_text_batch, train_image_text, units=("layers.*",)),
    Case("outputs", TiedLM, _lm_batch(10, 4), train_with_outputs, units=("layers.*",)),
    Case("ignored_tokens", TiedLM, _padded_batch, train_weighted, units=("layers.*",)),
    Case("dropout", DropoutLM, _lm_batch(10, 4), train_lm, units=("layers.*",)),
    Case("twice", Twice, _regression_batch(5), train_regression, units=("shared",)),
    Case(
        "strided",
        Strided,
        lambda rows: {"x": torch.randn(rows, 3, 4), "y": torch.randn(rows, 4, 4)},
        train_regression,
    ),
    Case("ignored", UnevenMLP, _regression_batch(3), train_regression, units=("up",), ignore=("mid", "out.bias")),
)


BY_NAME = {case.name: case for case in CASES}


@dataclass
class Reference:
    """What the plain loop over (data rank, microbatch) in one process gives."""

    loss: Tensor
    grads: dict[str, Tensor]
    buffers: dict[str, Tensor]
    outputs: list[Any]


def reference_step(
    model: nn.Module,
    train: TrainFunction,
    batch: Mapping[str, Tensor],
    *,
    data_ranks: int = 1,
    microbatches: int = 1,
    batch_dims: int | Mapping[str, int | None] = 0,
    step: int = 0,
    seed: int = 0,
) -> Reference:
    """Run the reference: the plain loop over data ranks and microbatches; buffers follow data rank 0's loop.

    Loss and gradients are means, or with a `WeightedLoss` sums divided once by the whole weight. Gradients are added to
    the model's `.grad` fields and its buffers set to data rank 0's, as a training step would. A model that takes draws
    is given those of step `step` and seed `seed`.
    """
    parts = data_ranks * microbatches
    total = torch.zeros((), dtype=torch.float64)
    weight: Any = 0
    outputs: list[Any] = []
    accumulated = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    initial = {name: buffer.clone() for name, buffer in model.named_buffers()}
    after: dict[str, Tensor] = {}
    for rank in range(data_ranks):
        for name, buffer in model.named_buffers():
            buffer.copy_(initial[name])
        for microbatch in range(microbatches):
            index = rank * microbatches + microbatch
            piece = {}
            for name, leaf in batch.items():
                dim = batch_dims if isinstance(batch_dims, int) else batch_dims.get(name, 0)
                piece[name] = leaf if dim is None or leaf.dim() == 0 else leaf.chunk(parts, dim)[index]
            if isinstance(model, DropoutLM):
                model.draws = Draws(len(piece["ids"]), seed=seed, step=step, microbatch=index)
            result = train(model, **piece)
            loss, extra = result if isinstance(result, tuple) else (result, None)
            if isinstance(loss, hpir.WeightedLoss):
                torch.autograd.backward(loss.sum)
                total = total + loss.sum.detach().double()
                weight += loss.weight.detach().reshape(()) if isinstance(loss.weight, Tensor) else loss.weight
            else:
                (loss / parts).backward()
                total, weight = total + loss.detach().double() / parts, 1
            outputs.append(extra)
        if rank == 0:
            after = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for name, buffer in model.named_buffers():
        buffer.copy_(after[name])
    for parameter, before in zip(model.parameters(), accumulated, strict=True):
        if parameter.grad is not None:
            parameter.grad.div_(weight)
            if before is not None:
                parameter.grad.add_(before)
    grads = {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.grad is not None
    }
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers(remove_duplicate=False)}
    return Reference(total / weight, grads, buffers, outputs)
