"""Kinds of modules that a compiled step would not train as eager torch does: each is refused, with advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...errors import CaptureError

_QUANTIZED = (
    "torch.ao.nn.quantized",
    "torch.ao.nn.qat",
    "torch.ao.nn.intrinsic.q",
    "torch.ao.nn.sparse.quantized",
    "torch.ao.quantization",
)


def check_modules(model: nn.Module, source: str) -> None:
    """Refuse modules, hooks and parameters that cannot be captured, or that would be trained differently.

    Raises:
        CaptureError: at `source`, naming the module.
    """
    for path, module in model.named_modules():
        for is_kind, text in _REFUSED:
            if is_kind(module):
                where = f"module '{path}'" if path else "the model"
                raise CaptureError(f"{source}: {where} {text}")
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None:
                continue
            full = f"{path}.{name}" if path else name
            if is_lazy(tensor):
                raise CaptureError(
                    f"{source}: '{full}' is not initialised: run the model once on an example batch first"
                )
            if not isinstance(tensor, DTensor) and is_traceable_wrapper_subclass(tensor):
                raise CaptureError(f"{source}: '{full}' is a {type(tensor).__name__}, expected a plain tensor")
    if _has_backward_hooks(torch_module):
        raise CaptureError(
            f"{source}: there are global module backward hooks, which a compiled step would not call: {_HOOK}"
        )


def check_train_function(train_fn: Any, source: str) -> None:
    """Refuse a step function that is a module with state of its own.

    Raises:
        CaptureError: at `source`, naming the state.
    """
    if isinstance(train_fn, nn.Module):
        own = [name for name, _ in (*train_fn.named_parameters(), *train_fn.named_buffers())]
        if own:
            raise CaptureError(
                f"{source}: the step function is a module that holds '{own[0]}': make it part of the model"
            )


def _has_backward_hooks(module: Any) -> bool:
    names = ("_global_backward_hooks", "_global_backward_pre_hooks")
    if isinstance(module, nn.Module):
        names = ("_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in names)


def _has_data_dependent_momentum(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.training and module.track_running_stats and module.momentum is None


def _is_quantized(module: nn.Module) -> bool:
    return type(module).__module__.startswith(_QUANTIZED)


_HOOK = "use a torch.autograd.Function, or change gradients after the step"

_REFUSED: tuple[tuple[Callable[[nn.Module], bool], str], ...] = (
    (
        lambda module: isinstance(module, (DataParallel, DistributedDataParallel, FullyShardedDataParallel)),
        "is wrapped for data parallel training already: give the module inside it, and the plan says how to split",
    ),
    (
        lambda module: isinstance(module, torch.jit.ScriptModule),
        "is scripted, which cannot be captured: give the Python module that it was made from",
    ),
    (_is_quantized, "is quantized, which cannot be captured: train the floating-point model"),
    (
        lambda module: isinstance(module, nn.SyncBatchNorm) and module.training,
        "is a SyncBatchNorm, whose statistics over all ranks a compiled step would not have: "
        "use BatchNorm (statistics of each microbatch) or GroupNorm",
    ),
    (
        _has_data_dependent_momentum,
        "is a BatchNorm with momentum=None, which reads its number of batches as a Python number: give it a momentum",
    ),
    (
        lambda module: isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse,
        "makes sparse gradients, which the IR has no type for: build it with sparse=False",
    ),
    (
        lambda module: isinstance(module, nn.RNNBase) and module.training and module.dropout > 0,
        "has dropout between its layers, which torch leaves out where it takes the layer apart: set dropout to 0 and"
        " put nn.Dropout between layers of one",
    ),
    (_has_backward_hooks, f"has a backward hook, which a compiled step would not call: {_HOOK}"),
)
