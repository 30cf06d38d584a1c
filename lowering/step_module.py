"""The model and its step function as one module with flat tensor inputs and outputs, and what its outputs look like."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from ..errors import CaptureError
from ..runtime.trees import output_tree

TrainFunction = Callable[..., Any]
"""``train_fn(model, **batch)`` returning the loss, or the loss and extra outputs."""


class StepModule(nn.Module):
    """The model and its step function as one module with flat tensor inputs and outputs, which is what dynamo takes."""

    def __init__(self, model: nn.Module, train_fn: TrainFunction, rebuild: Callable[[Sequence[Any]], dict[str, Any]]):
        super().__init__()
        self.model = model
        self._train_fn = train_fn
        self._rebuild = rebuild

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the loss, then the leaves of the extra outputs, detached."""
        result = self._train_fn(self.model, **self._rebuild(leaves))
        loss, outputs = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        flat = _flatten(outputs)
        return (loss, *[leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in flat])


def _flatten(value: Any) -> list[Any]:
    # Spelled out, not torch's pytree: dynamo traces through this, and the order must be that of `output_tree`.
    if value is None:
        return []
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _flatten(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _flatten(item)]
    return [value]


@dataclass
class Outputs:
    """Names and batch dims of the extra outputs, in flat order."""

    names: list[str] = field(default_factory=list)
    batch_dims: list[int | None] = field(default_factory=list)


def output_structure(
    step: StepModule, source: str, leaves: Mapping[str, torch.Tensor], dims: Mapping[str, int | None]
) -> tuple[Any, Outputs]:
    """Run the step on fake tensors to check its loss and learn its outputs, and again with twice the batch.

    A dim of an output that doubles with the batch is its batch dim: data ranks and microbatches are concatenated
    along it. An output without one (a count, a mean) is stacked.

    Returns:
        The outputs' structure (None without any) and their names and batch dims.

    Raises:
        CaptureError: the loss or an output is not what it should be.
        Exception: whatever the step function raises.
    """
    try:
        result = _fake_run(step, leaves, dims, 1)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return None, Outputs()  # dynamo refuses it too, and can say what it is in the user's code
    loss, outputs = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    _check_loss(loss, source)
    tree, flat = output_tree(outputs)
    if not flat:
        return None, Outputs()
    for name, leaf in flat.items():
        if not isinstance(leaf, torch.Tensor):
            raise CaptureError(f"{source}: output '{name}' is a {type(leaf).__name__}, expected a tensor")
    try:
        doubled = _fake_run(step, leaves, dims, 2)
    except (RuntimeError, ValueError, TypeError, AssertionError, LookupError):
        # A model that is written for one batch size: its outputs have no dim known to follow the batch.
        return tree, Outputs(list(flat), [None] * len(flat))
    _, again = output_tree(doubled[1])
    found = []
    for name, leaf in flat.items():
        grown = [dim for dim, (a, b) in enumerate(zip(leaf.shape, again[name].shape, strict=True)) if b == 2 * a != 0]
        found.append(grown[0] if len(grown) == 1 else None)
    return tree, Outputs(list(flat), found)


def _fake_run(step: StepModule, leaves: Mapping[str, torch.Tensor], dims: Mapping[str, int | None], factor: int) -> Any:
    """Run the step function on a copy of the model with fake tensors: no memory, nothing left on it."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    tensors = [*step.model.parameters(), *step.model.buffers()]
    memo: dict[int, Any] = {id(tensor): mode.from_tensor(tensor, static_shapes=True) for tensor in tensors}
    model = copy.deepcopy(step.model, memo)
    inputs = []
    with mode, torch.no_grad():
        for name, leaf in leaves.items():
            dim = dims[name]
            shape = [size * factor if number == dim else size for number, size in enumerate(leaf.shape)]
            inputs.append(torch.empty(shape, dtype=leaf.dtype, device=leaf.device))
        return step._train_fn(model, **step._rebuild(inputs))


def _check_loss(loss: Any, source: str) -> None:
    if not isinstance(loss, torch.Tensor):
        raise CaptureError(
            f"{source}: the step function returned a {type(loss).__name__}, expected the loss as a tensor"
        )
    if isinstance(loss, nn.Parameter):
        raise CaptureError(f"{source}: the loss is a parameter itself, expected something computed")
    if loss.numel() != 1 or loss.dim() > 1:
        raise CaptureError(f"{source}: expected the loss to have shape [] or [1], got: {list(loss.shape)}")
    if not loss.is_floating_point():
        raise CaptureError(f"{source}: expected the loss to be a floating tensor, got: {loss.dtype}")
