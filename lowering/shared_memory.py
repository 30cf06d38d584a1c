"""Tensors that share memory: an update of one would change the other in eager torch, but not in a compiled step."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..errors import CaptureError
from ..runtime import torch_compat


def check_memory(model: nn.Module, source: str) -> None:
    """Refuse parameters that overlap in memory with another parameter or a buffer without being the same tensor.

    Parameters that lie side by side in one storage are fine.

    Raises:
        CaptureError: at `source`, naming both.
    """
    by_storage: dict[int, list[tuple[str, Tensor]]] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not isinstance(tensor, DTensor) and tensor.numel():
            by_storage.setdefault(torch_compat.storage_id(tensor), []).append((name, tensor))
    for tensors in by_storage.values():
        if len(tensors) > 1:
            _check_storage(tensors, source)


def _check_storage(tensors: list[tuple[str, Tensor]], source: str) -> None:
    tensors.sort(key=lambda item: item[1].storage_offset())
    for index, (name, tensor) in enumerate(tensors):
        for other_name, other in tensors[index + 1 :]:
            if other.storage_offset() > _last(tensor):
                break
            if not _is_parameter(tensor, other) or not overlap(tensor, other):
                continue
            if isinstance(tensor, nn.Parameter) and isinstance(other, nn.Parameter):
                advice = "share one parameter, or compute the view in forward"
            else:
                advice = "compute the view in forward"
            raise CaptureError(
                f"{source}: '{name}' and '{other_name}' share memory, which a compiled step would not keep: {advice}"
            )


def _is_parameter(*tensors: Tensor) -> bool:
    return any(isinstance(tensor, nn.Parameter) for tensor in tensors)


def find_sharing(tensor: Tensor, named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first of `named` that shares memory with `tensor`, None for none."""
    storage = torch_compat.storage_id(tensor)
    for name, other in named:
        if not isinstance(other, DTensor) and torch_compat.storage_id(other) == storage and overlap(tensor, other):
            return name
    return None


def overlap(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one storage have an element in common."""
    if not one.numel() or not other.numel():
        return False
    first = min(one.storage_offset(), other.storage_offset())
    end = max(_last(one), _last(other)) + 1
    if one.storage_offset() > _last(other) or other.storage_offset() > _last(one):
        return False
    if one.is_contiguous() and other.is_contiguous():
        return True
    # Columns of one matrix interleave without meeting.
    taken = torch.zeros(end - first, dtype=torch.bool)
    taken.as_strided(one.shape, one.stride(), one.storage_offset() - first).fill_(True)
    return bool(taken.as_strided(other.shape, other.stride(), other.storage_offset() - first).any())


def _last(tensor: Tensor) -> int:
    """Return the offset of a tensor's last element in its storage."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset()) + reach
