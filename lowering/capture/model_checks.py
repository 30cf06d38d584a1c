"""What a model must be to be captured, and keeping it as it was."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from ...errors import CaptureError, nearest
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


def check_arguments(train_fn: Callable[..., Any], batch: Mapping[str, Any], source: str) -> None:
    """Refuse a batch whose keys are not the step function's parameters.

    Raises:
        CaptureError: at `source`; the text names the nearest.
    """
    try:
        parameters = list(inspect.signature(train_fn).parameters.values())
    except (TypeError, ValueError):
        return  # nothing to compare with: a callable that does not tell its parameters
    if not parameters or parameters[0].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
        raise CaptureError(f"{source}: expected a step function of the model and the batch, train_fn(model, **batch)")
    if parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    named = {
        parameter.name: parameter
        for parameter in parameters
        if parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        for key in batch:
            if key not in named:
                takes = nearest(str(key), named) or f" (it takes: {', '.join(named) or 'none'})"
                raise CaptureError(f"{source}: the step function has no parameter '{key}' of the batch{takes}")
    for name, parameter in named.items():
        if parameter.default is inspect.Parameter.empty and name not in batch:
            has = nearest(name, map(str, batch)) or f" (it has: {', '.join(map(str, batch)) or 'nothing'})"
            raise CaptureError(f"{source}: the batch has no '{name}', which the step function needs{has}")


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
