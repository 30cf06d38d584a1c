"""One check for any model: captured on one rank it is eager, and split over two data ranks it is the plain loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from models import reference_step
from torch import Tensor, nn

import hpir

Build = Callable[[], nn.Module]

ROWS = 8
PLAN = {"mesh": {"dp": 2}, "data": {"axes": ["dp"], "microbatches": 2}, "fsdp": {"axes": ["dp"]}}


def regression(width: int, out: int, *shape: int) -> dict[str, Tensor]:
    """Return a batch of `ROWS` rows: inputs ``x`` of ``[*shape, width]`` and targets ``y`` of ``[out]``."""
    generator = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(ROWS, *shape, width, generator=generator),
        "y": torch.randn(ROWS, out, generator=generator),
    }


def build_model(build: Build, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Build a model from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().to(dtype)


def assert_captured(
    build: Build,
    train: Callable[..., Any],
    batch: Mapping[str, Tensor],
    *,
    dtype: torch.dtype = torch.float64,
    tolerance: float = 1e-10,
    allow: Sequence[str] = (),
) -> hpir.Exported:
    """Check loss, gradients and buffers of a step against eager: one rank, and two data ranks x two microbatches.

    Args:
        build: makes the model, the same each time under a fixed seed.
        train: the step function.
        batch: of `ROWS` rows; every input is split along dim 0.
        dtype: of the model and of floating inputs.
        tolerance: relative to each result's largest value.
        allow: as for `hpir.compile`.

    Returns:
        The step as captured with the whole batch.
    """
    batch = {name: leaf.to(dtype) if leaf.is_floating_point() else leaf for name, leaf in batch.items()}
    whole = None
    for ranks, microbatches in ((1, 1), (2, 2)):
        parts = ranks * microbatches
        model = build_model(build, dtype)
        piece = {name: leaf.chunk(parts)[0] for name, leaf in batch.items()}
        exported = hpir.export(model, train, piece)
        whole = whole or exported
        state = {name: tensor.detach().clone() for name, tensor in exported.state.items()}
        plan = None if ranks == 1 else PLAN
        result = hpir.simulate(hpir.compile_program(exported, plan, allow=allow), state, batch)
        expected = reference_step(build_model(build, dtype), train, batch, data_ranks=ranks, microbatches=microbatches)
        assert_close(result.loss.double(), expected.loss, tolerance, "loss")
        assert set(result.grads) == set(expected.grads)
        for name, gradient in expected.grads.items():
            assert_close(result.grads[name], gradient, tolerance, f"gradient of {name}")
        for name, buffer in expected.buffers.items():
            found = result.buffers.get(name, state.get(name, buffer))
            assert_close(found, buffer, tolerance, f"buffer {name}")
    assert whole is not None
    return whole


def assert_close(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Compare relative to the largest value."""
    assert found.dtype == expected.dtype and found.shape == expected.shape, what
    scale = float(expected.detach().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(
        found, expected.detach(), rtol=0, atol=tolerance * max(scale, 1e-6), msg=lambda text: f"{what}: {text}"
    )
