"""What models compute of sizes that change: halves, paddings, means, square roots, pooled images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from models import reference_step
from torch import Tensor, nn

import hpir


class Image(nn.Module):
    """Convolution, statistics, pooling of any image size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        z: Tensor = self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))
        return z


class Means(nn.Module):
    """Divides by a size, by its root, and builds a mask of it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y, n = self.up(x), x.shape[1]
        ahead = torch.ones(n, n, device=x.device).triu(1).bool()
        weights = (y @ y.transpose(1, 2) / n**0.5).masked_fill(ahead, float("-inf")).softmax(-1)
        position = torch.arange(n, device=x.device) / n
        z: Tensor = y.sum(1, keepdim=True) / n + y * math.sqrt(n) + weights @ y * position.view(1, -1, 1)
        return z


class Blocks(nn.Module):
    """Pads to a multiple of four, which takes Python's remainder of a negative number."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.pad(self.up(x), (0, 0, 0, -x.shape[1] % 4))
        return y.view(x.shape[0], -1, 4, 4).mean(2)


class Pieces(nn.Module):
    """Splits in unequal pieces, strides, repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y, n = self.up(x), x.shape[1]
        half = max(n // 2, 1)
        left, right = y.split([half, n - half], dim=1)
        joined = torch.cat([left.mean(1), right.mean(1)], -1).repeat(1, 2)
        z: Tensor = joined.mean(-1, keepdim=True) + y.reshape(x.shape[0], -1)[:, ::2].mean() + y[:, : min(n, 9)].mean(1)
        return z


def mean_square(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def rows_of(*shape: int) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(shape))
        return torch.randn(*shape, dtype=torch.float64)


def built(kind: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind().double()


@pytest.mark.parametrize(
    ("kind", "dynamic", "shapes"),
    [
        (Image, {2: "h", 3: "w"}, [(3, 16, 20), (3, 8, 8), (3, 17, 33), (3, 5, 9)]),
        (Means, {1: "n"}, [(6, 4), (3, 4), (9, 4)]),
        (Blocks, {1: "n"}, [(6, 4), (3, 4), (9, 4), (8, 4)]),
        (Pieces, {1: "n"}, [(6, 4), (3, 4), (8, 4), (12, 4)]),
    ],
)
@pytest.mark.parametrize("rows", [False, True])
def test_models_that_compute_of_sizes_equal_the_plain_loop(
    kind: Callable[[], nn.Module], dynamic: dict[int, str], shapes: list[tuple[int, ...]], rows: bool
) -> None:
    names = {0: "rows", **dynamic} if rows else dynamic
    exported = hpir.export(built(kind), mean_square, {"x": rows_of(2, *shapes[0])}, dynamic={"x": names})
    program = hpir.compile_program(exported, {"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"]}})
    for number, shape in enumerate(shapes):
        batch = {"x": rows_of(2 * (2 + number if rows else 2), *shape)}
        expected = reference_step(built(kind), mean_square, batch, data_ranks=2)
        found = hpir.simulate(program, dict(built(kind).state_dict()), batch, check_types=True)
        assert abs(float(found.loss) - float(expected.loss)) <= 1e-10
        for name, gradient in expected.grads.items():
            assert (found.grads[name] - gradient).abs().max() <= 1e-10, (name, shape)


class Rounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return self.up(x) * math.sin(x.shape[1])


def test_what_no_operator_computes_is_refused_at_the_line() -> None:
    line = Rounded.forward.__code__.co_firstlineno + 1
    with pytest.raises(hpir.CaptureError, match=r"cannot (compute|capture).*sin") as caught:
        hpir.export(Rounded(), mean_square, {"x": torch.randn(2, 6, 4)}, dynamic={"x": {1: "n"}})
    assert str(caught.value).startswith(f"{__file__}:{line}: ")
