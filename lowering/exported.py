"""`hpir.export` and what it returns."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torch_mlir import ir

from ..collection import collection_paused
from ..errors import RuntimeFault
from .capture.capture import capture
from .capture.settled_state import with_settled_state
from .capture.step_module import TrainFunction
from .import_graph import import_joint

# Tracing has state of the whole process: torch's, and where the user's Python prints.
_ONE_AT_A_TIME = threading.RLock()


@dataclass(frozen=True)
class Exported:
    """A captured training step.

    Attributes:
        module: the MLIR module at level "joint".
        state: every name of every parameter, buffer and tensor constant to its tensor (the model's own storage).
        graph_module: the joint FX graph the module was imported from; takes and returns full tensors in the order of
            `@joint`'s signature.
    """

    module: ir.Module
    state: dict[str, torch.Tensor]
    graph_module: GraphModule

    def save(self, path: str | Path, *, debug_info: bool = False) -> None:
        """Write the module as text; with `debug_info`, each op carries its source line."""
        file = Path(path)
        scratch = file.with_name(file.name + ".partial")
        try:
            scratch.write_text(self.text(debug_info=debug_info), encoding="utf-8")
            scratch.replace(file)
        except OSError as error:
            raise RuntimeFault(f"{file}: cannot write the module: {(error.strerror or str(error)).lower()}") from None

    def text(self, *, debug_info: bool = False) -> str:
        """Return the module as text."""
        text: str = self.module.operation.get_asm(enable_debug_info=debug_info)
        return text.rstrip("\n") + "\n"


@collection_paused()
def export(
    model: nn.Module,
    train_fn: TrainFunction,
    batch: Mapping[str, Any],
    *,
    batch_dims: int | Mapping[str, int | None] = 0,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
) -> Exported:
    """Capture a training step, forward and backward, as MLIR.

    What is given is what is traced: one microbatch of one data rank. The model is neither run nor changed; it may be on
    the meta device.

    Args:
        model: any `torch.nn.Module`; its training flag, frozen and shared parameters are taken as they are.
        train_fn: called as ``train_fn(model, **batch)``; returns the loss (a floating tensor of shape [] or [1], or a
            `hpir.WeightedLoss`) or ``(loss, outputs)`` with outputs nested mappings, lists, tuples and dataclasses of
            tensors, numbers and strings.
        batch: keyword inputs: tensors of the shapes and dtypes to compile for, and Python values, which are compiled in
            and must be the same in every batch; nested in mappings, lists, tuples and dataclasses.
        batch_dims: the dim that microbatches and data ranks split, for all inputs, or by path of an input or of a
            container (None: given whole to each). 0-d inputs are given whole.
        dynamic: names of the dims whose sizes may change from step to step, by input: ``{"ids": {1: "seq"}}``. One name
            is one size wherever it is given; a batch dim's name is that of every input's. What the step takes for
            granted of them (``seq <= 32``) is checked before each step.

    Returns:
        An `Exported` with the module at level "joint".

    Raises:
        CaptureError: the step cannot be captured; the text names the user's file and line.

    Example:
        >>> exported = hpir.export(model, lambda model, x, y: F.mse_loss(model(x), y), {"x": x, "y": y})
        >>> print(exported.module)
    """
    with _ONE_AT_A_TIME:
        joint = with_settled_state(model, train_fn, batch, lambda: capture(model, train_fn, batch, batch_dims, dynamic))
        return Exported(import_joint(joint), joint.state, joint.graph_module)
