"""Graph, recommendation and generative models, small."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GraphConvolution(nn.Module):
    """Means over the neighbours, gathered and scattered along edges; attention weights by a softmax per node."""

    def __init__(self, dim: int):
        super().__init__()
        self.message, self.update = nn.Linear(dim, dim), nn.Linear(2 * dim, dim)
        self.score = nn.Linear(2 * dim, 1)

    def forward(self, x: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        sent, received = x[sources], x[targets]
        score = self.score(torch.cat([sent, received], -1)).squeeze(-1)
        highest = torch.full((x.shape[0],), float("-inf"), dtype=x.dtype)
        highest = highest.scatter_reduce(0, targets, score.detach(), "amax")
        weight = (score - highest[targets]).exp()
        total = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, targets, weight)
        messages = self.message(sent) * (weight / total[targets].clamp(min=1e-9)).unsqueeze(-1)
        pooled = torch.zeros_like(x).scatter_add(0, targets.unsqueeze(-1).expand_as(messages), messages)
        y: Tensor = F.elu(self.update(torch.cat([x, pooled], -1)))
        return y


class GraphNet(nn.Module):
    """Graphs of equal size, in one disjoint union; a class per graph."""

    def __init__(self, features: int = 5, dim: int = 8, classes: int = 3):
        super().__init__()
        self.embed = nn.Linear(features, dim)
        self.layers = nn.ModuleList([GraphConvolution(dim) for _ in range(2)])
        self.head = nn.Linear(dim, classes)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        graphs, size, _ = nodes.shape
        offset = (torch.arange(graphs) * size).view(-1, 1)
        sources, targets = ((edges[:, :, end] + offset).flatten() for end in (0, 1))
        x = self.embed(nodes.flatten(0, 1))
        for layer in self.layers:
            x = layer(x, sources, targets)
        owner = torch.arange(graphs).repeat_interleave(size)
        sums = torch.zeros(graphs, x.shape[-1], dtype=x.dtype).index_add(0, owner, x)
        y: Tensor = self.head(sums / size)
        return y


class RecommendationModel(nn.Module):
    """DLRM: bags of categories and dense features, their pairwise products, an MLP."""

    def __init__(self, sizes: Sequence[int] = (11, 7, 5), dim: int = 8, dense: int = 4):
        super().__init__()
        self.tables = nn.ModuleList(
            [nn.EmbeddingBag(size, dim, mode=mode) for size, mode in zip(sizes, ("sum", "mean", "sum"), strict=True)]
        )
        self.bottom = nn.Sequential(nn.Linear(dense, dim), nn.ReLU())
        pairs = (len(sizes) + 1) * len(sizes) // 2
        self.top = nn.Sequential(nn.Linear(dim + pairs, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        bags = [table(categories[:, index]) for index, table in enumerate(self.tables)]
        features = torch.stack([bottom, *bags], 1)
        products = torch.bmm(features, features.mT)
        row, column = torch.tril_indices(features.shape[1], features.shape[1], offset=-1)
        y: Tensor = self.top(torch.cat([bottom, products[:, row, column]], 1)).squeeze(-1)
        return y


class VariationalAutoencoder(nn.Module):
    """Its noise is an input, so that the step is the same everywhere."""

    def __init__(self, pixels: int = 36, hidden: int = 12, latent: int = 4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.Softplus())
        self.mean, self.log_variance = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.Mish(), nn.Linear(hidden, pixels))

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mean, log_variance = self.mean(h), self.log_variance(h)
        return self.decoder(mean + noise * torch.exp(0.5 * log_variance)), mean, log_variance


def timestep_embedding(steps: Tensor, dim: int) -> Tensor:
    """Return sines and cosines of the steps."""
    half = dim // 2
    frequencies = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
    angles = steps[:, None].float() * frequencies[None]
    return torch.cat([angles.cos(), angles.sin()], -1)


class DiffusionBlock(nn.Module):
    """A DiT block: attention and MLP, their norms shifted and scaled by the conditioning, which starts at zero."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 24), nn.GELU(approximate="tanh"), nn.Linear(24, dim))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).unsqueeze(1).chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.attention(h, h, h, need_weights=False)[0]
        y: Tensor = x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)
        return y


class DiffusionTransformer(nn.Module):
    """DiT: patches of a noisy image, conditioned on the time step and a class."""

    def __init__(self, dim: int = 16, patch: int = 4, size: int = 8, classes: int = 3):
        super().__init__()
        self.dim, self.patch = dim, patch
        self.embed = nn.Conv2d(3, dim, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, dim))
        self.time, self.label = nn.Linear(dim, dim), nn.Embedding(classes, dim)
        self.blocks = nn.ModuleList([DiffusionBlock(dim, 4) for _ in range(2)])
        self.head = nn.Linear(dim, patch * patch * 3)

    def forward(self, x: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
        rows, _, size, _ = x.shape
        side = size // self.patch
        h = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        condition = self.time(timestep_embedding(steps, self.dim).to(h.dtype)) + self.label(labels)
        for block in self.blocks:
            h = block(h, condition)
        patches = self.head(h).view(rows, side, side, self.patch, self.patch, 3)
        y: Tensor = torch.einsum("nhwpqc->nchpwq", patches).reshape(rows, 3, size, size)
        return y


def train_graph(model: nn.Module, nodes: Tensor, edges: Tensor, labels: Tensor) -> Tensor:
    """Classify graphs."""
    return F.nll_loss(F.log_softmax(model(nodes, edges), -1), labels)


def train_clicks(model: nn.Module, dense: Tensor, categories: Tensor, clicked: Tensor) -> Tensor:
    """Predict clicks."""
    return F.binary_cross_entropy_with_logits(model(dense, categories), clicked)


def train_autoencoder(model: nn.Module, x: Tensor, noise: Tensor) -> Tensor:
    """Reconstruct, and stay close to the prior."""
    found, mean, log_variance = model(x, noise)
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)
    loss: Tensor = F.binary_cross_entropy(torch.sigmoid(found), x) + 0.1 * divergence.mean()
    return loss


def train_diffusion(model: nn.Module, image: Tensor, noise: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
    """Predict the noise."""
    kept = torch.cos(steps / 1000 * math.pi / 2).to(image.dtype).view(-1, 1, 1, 1)
    noisy = kept.sqrt() * image + (1 - kept).sqrt() * noise
    return F.huber_loss(model(noisy, steps, labels), noise)
