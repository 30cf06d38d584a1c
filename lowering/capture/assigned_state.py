"""Buffers that a step assigns (``self.mean = new``): their new values are written to the old tensors at its end.

Eager torch has the new tensor from then on. A compiled step keeps one tensor per buffer, which is the same as long as
shape and dtype stay and the new tensor is nobody else's. Attributes that a hook of old weight norm, spectral norm or
pruning assigns anew before each forward are not state at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from ...runtime import torch_compat


class BufferSnapshot:
    """Which tensors a model's buffers are, to find out which a step has replaced.

    Args:
        model: a copy that the step is about to run on.
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self._before = {
            (path, key): tensor for path, module in model.named_modules() for key, tensor in module._buffers.items()
        }
        self._memory = [torch_compat.storage_id(tensor) for tensor in (*model.parameters(), *model.buffers())]

    def assigned(self) -> tuple[list[str], set[str]]:
        """Compare after the step has run.

        Returns:
            The names of the buffers that have a new tensor of the same type, and the paths of the modules that have
            one which cannot be kept.
        """
        kept: list[str] = []
        lost: set[str] = set()
        for path, module in self._model.named_modules():
            keys = [key for other, key in self._before if other == path]
            if set(keys) != set(module._buffers):
                lost.add(path)
            for key in keys:
                old, new = self._before[path, key], module._buffers.get(key)
                if old is new:
                    continue
                if old is None or new is None or not _same_type(old, new) or not self._is_its_own(old, new):
                    lost.add(path)
                else:
                    kept.append(f"{path}.{key}" if path else key)
        return kept, lost

    def _is_its_own(self, old: Tensor, new: Tensor) -> bool:
        memory = torch_compat.storage_id(new)
        if memory in self._memory and memory != torch_compat.storage_id(old):
            return False
        self._memory.append(memory)
        return True


def _same_type(old: Tensor, new: Tensor) -> bool:
    return old.shape == new.shape and old.dtype == new.dtype and old.device == new.device


def buffers_of(model: nn.Module, names: Sequence[str]) -> list[Tensor]:
    """Return the buffers of these names as they are now; dynamo traces through this."""
    return [model.get_buffer(name) for name in names]


def write_back(model: nn.Module, names: Sequence[str], before: Sequence[Tensor]) -> None:
    """Write what the step assigned to the tensors that the buffers were before; dynamo traces through this."""
    with torch.no_grad():
        for old, new in zip(before, buffers_of(model, names), strict=True):
            old.copy_(new)


def is_recomputed(module: nn.Module, attributes: Sequence[str]) -> bool:
    """Return whether hooks of `module` assign all of these attributes anew before each forward."""
    names: set[str] = set()
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, (WeightNorm, SpectralNorm)):
            names.add(hook.name)
        elif isinstance(hook, BasePruningMethod):
            names.add(hook._tensor_name)
    return bool(attributes) and names.issuperset(attributes)
