"""Copies from host memory to an accelerator: through pinned memory, on the current stream, without waiting.

A copy from pageable memory makes the host wait; one from pinned memory runs beside it. What is copied is put into
pinned memory of our own first, so that callers may overwrite theirs at once. That memory may go before the copy is
done: torch's allocator of pinned memory gives it out again only when the streams that read it are past that point.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; itself where it is there already.

    Args:
        tensor: anywhere.
        device: where to; work that follows on the current stream sees the values.
    """
    if tensor.device == device:
        return tensor
    if _is_upload(tensor, device):
        return _pinned(tensor).to(device, non_blocking=True)
    return tensor.to(device)


def copy_into(target: Tensor, source: Tensor) -> None:
    """Copy values into a tensor of the same shape; work that follows on the current stream sees them."""
    if _is_upload(source, target.device):
        target.copy_(_pinned(source), non_blocking=True)
    else:
        target.copy_(source)


def _is_upload(source: Tensor, device: torch.device) -> bool:
    return source.device.type == "cpu" and device.type != "cpu"


def _pinned(tensor: Tensor) -> Tensor:
    """Return a copy in pinned memory, dense, that nobody else has."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    pinned = torch.empty(plain.shape, dtype=plain.dtype, pin_memory=True)
    return pinned.copy_(plain)
