"""The acceptance models with enough modules for eight pipeline stages, each with what makes it hard crossing them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import torch
from dropout_lm import DropoutLM
from models import BY_NAME, Block, Case, ImageText, RotaryLM, TiedLM, train_regression
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hpir
from hpir.lowering.exported import Exported

LAYERS = 8


class DeepUneven(nn.Module):
    """Widths 5 and 7 by turns: no dim divides by 2."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, *(5 if layer % 2 else 7 for layer in range(LAYERS - 1)), 1]
        self.up = nn.Linear(widths[0], widths[1])
        self.mid = nn.ModuleList(nn.Linear(left, right) for left, right in itertools.pairwise(widths[1:-1]))
        self.out = nn.Linear(widths[-2], widths[-1])

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        for layer in self.mid:
            x = layer(torch.tanh(x))
        y: Tensor = self.out(torch.tanh(x))
        return y


class DeepSkip(nn.Module):
    """What the first layer makes is used by every third one and by the loss."""

    def __init__(self, dim: int = 6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.layers[0](x))
        x = first
        for number, layer in enumerate(self.layers):
            if number:
                x = torch.relu(layer(x + first if number % 3 == 0 else x))
        return x * first + first


class DeepAdapters(nn.Module):
    """Frozen layers, those of the first stages without anything to train; adapters beside the later ones."""

    def __init__(self, dim: int = 6, rank: int = 2):
        super().__init__()
        self.encoder = nn.ModuleList(nn.Linear(dim, dim) for _ in range(LAYERS))
        self.encoder.requires_grad_(False)
        self.down = nn.ModuleDict({str(n): nn.Linear(dim, rank, bias=False) for n in range(4, LAYERS)})
        self.up = nn.ModuleDict({str(n): nn.Linear(rank, dim, bias=False) for n in range(4, LAYERS)})
        self.head = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.encoder):
            key = str(number)
            added = self.up[key](self.down[key](x)) if key in self.down else 0
            x = torch.tanh(layer(x)) + added
        y: Tensor = self.head(x)
        return y


class DeepUnused(nn.Module):
    """A layer in the middle and one input take no part."""

    def __init__(self, dim: int = 4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(LAYERS + 1))
        self.last = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = x if number == 4 else torch.tanh(layer(x))
        y: Tensor = self.last(x)
        return y


class DeepConv(nn.Module):
    """Convolutions and BatchNorm on every stage: buffers that every microbatch updates once."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 4, 5, 4, 5]
        layers: list[nn.Module] = []
        for left, right in itertools.pairwise(widths):
            layers += [nn.Conv2d(left, right, 3, padding=1), nn.BatchNorm2d(right), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(5, 3)

    def forward(self, image: Tensor) -> Tensor:
        y: Tensor = self.head(self.features(image).mean((2, 3)))
        return y


class DeepTwice(nn.Module):
    """A module that is called first, in the middle and last: on three stages."""

    def __init__(self, dim: int = 5):
        super().__init__()
        self.shared = nn.Linear(dim, dim)
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(LAYERS))
        self.head = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.shared(x))
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if number == LAYERS // 2:
                x = torch.tanh(self.shared(x))
        y: Tensor = self.head(torch.tanh(self.shared(x)))
        return y


class DeepStrided(nn.Module):
    """Activations are transposed and expanded between all layers; scale and shift are the root's."""

    def __init__(self, dim: int = 4):
        super().__init__()
        self.first = nn.Linear(4, dim)
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(LAYERS))
        self.second = nn.Linear(dim, dim)
        self.scale = nn.Parameter(torch.ones(()))
        self.shift = nn.Parameter(torch.zeros(1, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)  # rows, 3, 4
        x = x.mean(1, keepdim=True).expand(-1, 4, -1)
        for layer in self.layers:
            x = torch.tanh(layer(x.transpose(1, 2))) * self.scale
        z: Tensor = self.second(x.transpose(1, 2)) + self.shift.expand(x.shape[0], x.shape[1], -1)
        return z


class Counting(nn.Module):
    """A buffer that the first stage updates and the last one reads; integers and bools that cross; checkpoints."""

    def __init__(self, dim: int = 6):
        super().__init__()
        self.layers = nn.ModuleList(Block(dim) for _ in range(LAYERS))
        self.head = nn.Linear(dim, 1)
        self.register_buffer("mean", torch.full((dim,), 0.5))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        before = self.mean.clone()
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        large = x > self.mean
        rank = x.argsort(-1)
        for number, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=False) if number % 2 else layer(x)
        x = torch.where(large, x * before, x) + rank.to(x.dtype) * 0.01
        y: Tensor = self.head(x)
        return y


class Derived(nn.Module):
    """Parameters of the root in pieces, and through a function, on several stages; two with one gradient."""

    def __init__(self, dim: int = 6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(LAYERS))
        self.mixer = nn.Parameter(torch.randn(dim, dim))
        self.pieces = nn.Parameter(torch.randn(3 * dim, dim))
        self.first_shift, self.second_shift = nn.Parameter(torch.randn(dim)), nn.Parameter(torch.randn(dim))
        self.head = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        mixer = nn.functional.softplus(self.mixer)
        pieces = self.pieces.chunk(3)
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x) @ (mixer if number % 2 else pieces[number // 3]))
            x = x + self.first_shift if number == 3 else x
            x = x + self.second_shift if number == 3 else x
        y: Tensor = self.head(x @ self.mixer)
        return y


def _deep(name: str, build: Callable[[], nn.Module]) -> Case:
    case = BY_NAME[name]
    units = tuple(unit for unit in case.units if unit.endswith("*") and unit != "l*") or ("layers.*",)
    if name in ("uneven", "ignored"):
        units = ("up", "mid.*")
    elif name == "adapters":
        units = ("encoder.*",)
    return Case(name, build, case.batch, case.train, case.batch_dims, units, case.ignore, case.tags)


DEEP: tuple[Case, ...] = (
    _deep("tied", functools.partial(TiedLM, layers=LAYERS)),
    _deep("uneven", DeepUneven),
    _deep("long_skip", DeepSkip),
    _deep("rotary", functools.partial(RotaryLM, layers=LAYERS)),
    _deep("adapters", DeepAdapters),
    _deep("unused", DeepUnused),
    _deep("convnet", DeepConv),
    _deep("image_text", functools.partial(ImageText, layers=LAYERS)),
    _deep("outputs", functools.partial(TiedLM, layers=LAYERS)),
    _deep("ignored_tokens", functools.partial(TiedLM, layers=LAYERS)),
    _deep("dropout", functools.partial(DropoutLM, layers=LAYERS)),
    _deep("twice", DeepTwice),
    _deep("strided", DeepStrided),
    _deep("ignored", DeepUneven),
    Case(
        "counting",
        Counting,
        lambda rows: {"x": torch.randn(rows, 6), "y": torch.randn(rows, 1)},
        train_regression,
        units=("layers.*",),
    ),
    Case(
        "derived",
        Derived,
        lambda rows: {"x": torch.randn(rows, 6), "y": torch.randn(rows, 1)},
        train_regression,
        units=("layers.*",),
    ),
)

BY_DEEP_NAME = {case.name: case for case in DEEP}


@functools.cache
def _captured(name: str) -> Exported:
    case = BY_DEEP_NAME[name]
    return hpir.export(case.model(torch.float64), case.train, case.data(2, torch.float64), batch_dims=case.batch_dims)


def captured_deep(name: str) -> Exported:
    """Return a deep model captured in float64 with 2 rows; its module is a copy, for passes to change."""
    exported = _captured(name)
    return Exported(exported.module.operation.clone(), exported.state, exported.graph_module)
