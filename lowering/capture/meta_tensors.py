"""Tensors on the meta device, traced as fake tensors on the device that the step will run on.

A model built on the meta device has shapes and no memory. Torch's kernels for that device are not the ones a step
runs (some, such as the cross entropy, lose their autograd there), so tracing is given fake tensors instead: no memory
either, but with a device, and so the same graph as of a model that has values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


def tracing_device(tensors: Iterable[torch.Tensor]) -> torch.device:
    """Return the device of the first tensor that has values; the accelerator or else the CPU where none has."""
    for tensor in tensors:
        if not tensor.is_meta:
            return tensor.device
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cpu") if accelerator is None else accelerator


@contextlib.contextmanager
def fake_where_meta(model: nn.Module, leaves: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Put fake tensors in the place of a model's meta tensors for the length of the block.

    Args:
        model: whose own tensors are back afterwards.
        leaves: the inputs.

    Yields:
        The inputs, those on the meta device as fake tensors too.
    """
    device = tracing_device([*leaves.values(), *model.parameters(), *model.buffers()])
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            with mode:
                like: torch.Tensor = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
                )
            if isinstance(tensor, nn.Parameter):
                like = nn.Parameter(like, requires_grad=tensor.requires_grad)
            made[id(tensor)] = like
        return made[id(tensor)]

    owners: list[dict[str, Any]] = [
        owner for module in model.modules() for owner in (module._parameters, module._buffers)
    ]
    replaced = [
        (owner, name, tensor)
        for owner in owners
        for name, tensor in owner.items()
        if tensor is not None and tensor.is_meta
    ]
    for owner, name, tensor in replaced:
        owner[name] = fake(tensor)
    try:
        yield {name: fake(leaf) if leaf.is_meta else leaf for name, leaf in leaves.items()}
    finally:
        for owner, name, tensor in replaced:
            owner[name] = tensor
