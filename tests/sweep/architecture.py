"""One row of the model sweep, and the batches that several rows share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 32
LENGTH = 8
DEFAULT_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Architecture:
    """A model in a tiny configuration and what is expected of it.

    Attributes:
        name: of the row.
        family: what it is grouped by in the table.
        build: makes the model; nothing is downloaded.
        batch: makes a global batch of that many rows.
        train: the step function.
        units: FSDP unit patterns that exist in the model.
        batch_dims: as for `hpir.export`.
        dtype: the model and its floating inputs run in: float64, or float32 where a model does not run in that.
        tolerance: largest relative difference from eager that counts as equal.
        allow: namespaces of the custom operators it uses.
        refused: what `hpir.export` says of it; empty where it is expected to pass.
        note: why it is refused, or what is special about it, for the table.
    """

    name: str
    family: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], dict[str, Any]]
    train: Callable[..., Any]
    units: tuple[str, ...] = ()
    batch_dims: int | Mapping[str, int | None] = 0
    dtype: torch.dtype = torch.float64
    tolerance: float = DEFAULT_TOLERANCE
    allow: tuple[str, ...] = ()
    refused: str = ""
    note: str = ""

    def model(self) -> nn.Module:
        """Build the model from a fixed seed, in training mode."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.build().train()
        return model.double() if self.dtype == torch.float64 else model

    def data(self, rows: int) -> dict[str, Any]:
        """Make a global batch from a fixed seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            batch = self.batch(rows)
        return {name: leaf.to(self.dtype) if leaf.is_floating_point() else leaf for name, leaf in batch.items()}


def loss_of(model: nn.Module, **batch: Tensor) -> Tensor:
    """Return the loss that a Hugging Face model computes from its labels."""
    loss: Tensor = model(**batch).loss
    return loss


def hugging_face(
    name: str,
    kind: str,
    head: str,
    batch: Callable[[int], dict[str, Tensor]],
    units: tuple[str, ...],
    options: Mapping[str, Any],
    *,
    config: str = "",
    family: str = "text",
    train: Callable[..., Tensor] = loss_of,
    prepare: Callable[[Any], object] = lambda model: None,
    **fields: Any,
) -> Architecture:
    """Return the row of class ``<kind><head>``, built from ``<kind>Config`` (or `config`) with `options`.

    `prepare` is called with the model, as a user would before training it.
    """

    def build() -> nn.Module:
        import transformers  # Slow to import: whoever only reads the table need not wait for it.

        configuration = getattr(transformers, config or f"{kind}Config")(**options)
        model: nn.Module = getattr(transformers, kind + head)(configuration)
        prepare(model)
        return model

    return Architecture(name, family, build, batch, train, units, **fields)


def tokens(rows: int, length: int = LENGTH) -> Tensor:
    """Return random token numbers."""
    return torch.randint(3, VOCABULARY, (rows, length))


def language_batch(rows: int) -> dict[str, Tensor]:
    """Return tokens and labels."""
    return {"input_ids": tokens(rows), "labels": tokens(rows)}


def masked_batch(rows: int) -> dict[str, Tensor]:
    """Return tokens, a padding mask and labels."""
    mask = torch.ones(rows, LENGTH, dtype=torch.int64)
    mask[0, -3:] = 0
    return {"input_ids": tokens(rows), "attention_mask": mask, "labels": tokens(rows)}


def class_batch(rows: int) -> dict[str, Tensor]:
    """Return tokens, a padding mask and a class per row."""
    return {**masked_batch(rows), "labels": torch.randint(0, 3, (rows,))}


def image_batch(size: int, classes: int = 3) -> Callable[[int], dict[str, Tensor]]:
    """Return what makes square images and a class per row."""
    return lambda rows: {
        "pixel_values": torch.randn(rows, 3, size, size),
        "labels": torch.randint(0, classes, (rows,)),
    }


def segmentation_batch(size: int, classes: int = 3) -> Callable[[int], dict[str, Tensor]]:
    """Return what makes square images and a class per pixel."""
    return lambda rows: {
        "pixel_values": torch.randn(rows, 3, size, size),
        "labels": torch.randint(0, classes, (rows, size, size)),
    }
