"""A copy of a model on fake tensors, to run the user's Python on without memory and without leaving a trace."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ...runtime import torch_compat
from .grad_scaler import refused_when_on


def fake_copy(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Return a copy of `model` on fake tensors of `mode`, ties kept.

    Tensors that are attributes and have a history, as the weight that old weight norm computes, are copied without it.
    """
    tensors = [*model.parameters(), *model.buffers()]
    memo: dict[int, Any] = {id(tensor): mode.from_tensor(tensor, static_shapes=True) for tensor in tensors}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = mode.from_tensor(value.detach(), static_shapes=True)
    return copy.deepcopy(model, memo)


@contextlib.contextmanager
def running_on(mode: FakeTensorMode) -> Iterator[None]:
    """Run the user's Python on fake tensors as eager torch would, with gradients and nothing compiled.

    Where it asks whether it is compiled, it takes the path that tracing takes.
    """
    stance = torch.compiler.set_stance("force_eager")
    with mode, torch.enable_grad(), stance, torch_compat.compiling(), refused_when_on():
        yield
