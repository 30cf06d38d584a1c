"""The norm of a whole model's gradients, and clipping by it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import RuntimeFault
from .device import RankMesh
from .entries import gradient_dtypes
from .operators import torch_dtype
from .program import Program
from .shards import ParameterShard

# As torch.nn.utils.clip_grad_norm_ has it.
_EPSILON = 1e-6


def least_norm_dtype(program: Program) -> torch.dtype:
    """Return the dtype that the norm of all gradients of a pipelined Program has, which no one rank has all of."""
    dtype = torch.float32
    if program.pipeline_axis is not None:
        for name in gradient_dtypes(program):
            dtype = torch.promote_types(dtype, torch_dtype(name).to_real())
    return dtype


def total_norm(
    shards: Sequence[ParameterShard],
    ranks: RankMesh,
    norm_type: float = 2.0,
    *,
    counted: Collection[str] | None = None,
    least: torch.dtype = torch.float32,
) -> Tensor:
    """Return the norm of all gradients together, each element of the model counted once: the same on every rank.

    Args:
        shards: of all parameters that this rank owns; those without a gradient count as zero.
        ranks: the mesh.
        norm_type: p of the p-norm; ``inf`` for the largest magnitude.
        counted: names of those that no other pipeline stage counts; None for all.
        least: the narrowest dtype of the result: that of the gradients that other stages have.

    Raises:
        RuntimeFault: `norm_type` is not positive.
    """
    if not norm_type > 0:
        raise RuntimeFault(f"expected norm_type > 0, got: {norm_type}")
    held = [(shard, shard.local(shard.live.grad)) for shard in shards if shard.live.grad is not None]
    own = [
        grad
        for shard, grad in held
        if _is_first(shard, ranks) and grad.numel() and (counted is None or shard.name in counted)
    ]
    dtype = least
    for _, grad in held:
        dtype = torch.promote_types(dtype, grad.real.dtype if grad.is_complex() else grad.dtype)
    norm = torch.nn.utils.get_total_norm(own, norm_type).to(ranks.device)
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
    counted: Collection[str] | None = None,
    least: torch.dtype = torch.float32,
) -> Tensor:
    """Scale all gradients in place so that their norm together is at most `max_norm`; return the norm they had.

    Raises:
        RuntimeFault: the norm is not finite and `error_if_nonfinite` is set; gradients are left alone.
    """
    norm = total_norm(shards, ranks, norm_type, counted=counted, least=least)
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
