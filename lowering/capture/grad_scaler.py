"""`torch.amp.GradScaler` in a step function: one that is switched off does nothing there, any other is refused.

Its scale changes from step to step. Captured, today's would stay for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


def traceable_when_off() -> contextlib.AbstractContextManager[None]:
    """Let dynamo trace calls of `GradScaler.scale` where the scaler is switched off; it refuses torch's own."""
    return _scaling(_scale_with)


def refused_when_on() -> contextlib.AbstractContextManager[None]:
    """Keep runs on fake tensors from leaving a fake scale in the user's scaler: `GradScaler.scale` raises instead."""
    return _scaling(lambda method: _scale_with(_refuse))


@contextlib.contextmanager
def _scaling(replacement: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    own = [(kind, vars(kind)["scale"]) for kind in _family(torch.amp.GradScaler) if "scale" in vars(kind)]
    try:
        for kind, method in own:
            setattr(kind, "scale", replacement(method))  # noqa: B010 - mypy refuses to assign to a method
        yield
    finally:
        for kind, method in own:
            setattr(kind, "scale", method)  # noqa: B010


def _scale_with(method: Callable[..., Any]) -> Callable[..., Any]:
    def scale(self: torch.amp.GradScaler, outputs: Any) -> Any:
        return method(self, outputs) if self._enabled else outputs

    return scale


def _refuse(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
    raise RuntimeError("GradScaler.scale is called within the step")


def _family(kind: type[torch.amp.GradScaler]) -> Iterator[type[torch.amp.GradScaler]]:
    yield kind
    children: list[type[torch.amp.GradScaler]] = kind.__subclasses__()
    for child in children:
        yield from _family(child)
