"""What a model must be to be captured, and keeping it as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.distributed.tensor import DTensor

from ..errors import CaptureError
from .module_kinds import check_modules
from .shared_memory import check_memory


def check_model(model: nn.Module, source: str) -> None:
    """Refuse what is no model, and a model that a compiled step would train differently.

    Raises:
        CaptureError: at `source`.
    """
    if not isinstance(model, nn.Module):
        raise CaptureError(f"{source}: expected a torch.nn.Module, got: {type(model).__name__}")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise CaptureError(
                f"{source}: parameter '{name}' is a DTensor already: compile the model before it is sharded"
            )
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise CaptureError(
                f"{source}: parameter '{name}' has a gradient hook, which a compiled step would not call: remove "
                "it and change the gradient after the step"
            )
    check_modules(model, source)
    check_memory(model, source)


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put a model's own tensors back after the block: tracing swaps them, and loses count where modules are shared."""
    saved = [(module, dict(module._parameters), dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for module, parameters, buffers in saved:
            module._parameters.update(parameters)
            module._buffers.update(buffers)
