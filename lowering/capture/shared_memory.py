"""Tensors that share memory: an update of one would change the other in eager torch, but not in a compiled step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ...errors import CaptureError
from ...runtime import torch_compat


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


def check_constant(tensor: Tensor, model: nn.Module, place: str) -> None:
    """Refuse a tensor constant of a step that eager torch would train, or that changes when the model's state does.

    Raises:
        CaptureError: at `place`.
    """
    if tensor.requires_grad:
        raise CaptureError(
            f"{place}: a tensor that requires a gradient is not the model's, and a compiled step would not train it: "
            "make it a parameter of the model, or detach it"
        )
    storage = torch_compat.storage_id(tensor)
    for name, other in (*model.named_parameters(), *model.named_buffers()):
        if not isinstance(other, DTensor) and torch_compat.storage_id(other) == storage and overlap(tensor, other):
            raise CaptureError(
                f"{place}: a tensor shares memory with '{name}', which a compiled step would not keep: "
                "compute the view in forward"
            )


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
