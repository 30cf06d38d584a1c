"""The norm of a whole model's gradients, and clipping by it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import RuntimeFault
from .device import RankMesh
from .shards import ParameterShard

# As torch.nn.utils.clip_grad_norm_ has it.
_EPSILON = 1e-6


def total_norm(shards: Sequence[ParameterShard], ranks: RankMesh, norm_type: float = 2.0) -> Tensor:
    """Return the norm of all gradients together, each element of the model counted once: the same on every rank.

    Args:
        shards: of all parameters; those without a gradient count as zero.
        ranks: the mesh.
        norm_type: p of the p-norm; ``inf`` for the largest magnitude.

    Raises:
        RuntimeFault: `norm_type` is not positive.
    """
    if not norm_type > 0:
        raise RuntimeFault(f"expected norm_type > 0, got: {norm_type}")
    held = [(shard, shard.local(shard.live.grad)) for shard in shards if shard.live.grad is not None]
    counted = [grad for shard, grad in held if _is_first(shard, ranks) and grad.numel()]
    dtype = torch.float32
    for _, grad in held:
        dtype = torch.promote_types(dtype, grad.real.dtype if grad.is_complex() else grad.dtype)
    norm = torch.nn.utils.get_total_norm(counted, norm_type).to(ranks.device)
    if not ranks.distributed:
        return norm.to(dtype)
    wide = norm.to(torch.float64 if ranks.device.type in ("cpu", "cuda") else torch.float32)
    if math.isinf(norm_type):
        dist.all_reduce(wide, dist.ReduceOp.MAX)
        return wide.to(dtype)
    power = wide.pow(norm_type)
    dist.all_reduce(power)
    return power.pow(1.0 / norm_type).to(dtype)


def _is_first(shard: ParameterShard, ranks: RankMesh) -> bool:
    """Tell whether this rank is the first of those that hold the same piece."""
    return all(ranks.coordinate[axis] == 0 for axis in shard.axes if axis not in shard.split_axes)


def clip_gradients(
    shards: Sequence[ParameterShard],
    ranks: RankMesh,
    max_norm: float,
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients in place so that their norm together is at most `max_norm`; return the norm they had.

    Raises:
        RuntimeFault: the norm is not finite and `error_if_nonfinite` is set; gradients are left alone.
    """
    norm = total_norm(shards, ranks, norm_type)
    if error_if_nonfinite and not bool(norm.isfinite()):
        raise RuntimeFault(
            f"the total norm of order {norm_type} of the gradients is {float(norm)}, expected a finite one"
        )
    scale = (max_norm / (norm + _EPSILON)).clamp(max=1.0)
    grads: dict[torch.dtype, list[Tensor]] = {}
    for shard in shards:
        grad = shard.live.grad
        if grad is not None:
            grads.setdefault(grad.dtype, []).append(shard.local(grad))
    for same in grads.values():
        torch._foreach_mul_(same, scale)
    return norm
