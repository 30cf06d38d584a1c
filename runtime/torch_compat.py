"""What hpir needs of torch that is private or has moved between torch 2.11 and 2.13: the one place that knows."""

from __future__ import annotations

import contextlib
import importlib
import resource
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement
from torch.fx import GraphModule


def accelerator_type() -> str | None:
    """Return the type of the accelerator this torch can use here, such as ``cuda``, or None."""
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    return None if found is None else found.type


def reset_peak_memory(device: torch.device) -> None:
    """Begin to count the peak of a device's memory anew; on the CPU it is of the process's whole life."""
    if device.type != "cpu":
        _device_module(device).reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that tensors on a device took at once; on the CPU, that this process took."""
    if device.type != "cpu":
        return int(_device_module(device).max_memory_allocated(device))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(used) * (1 if sys.platform == "darwin" else 1024)


def _device_module(device: torch.device) -> Any:
    # `torch.accelerator` has these for some devices only; ``torch.cuda``, ``torch.npu`` and ``torch.xpu`` all do.
    return torch.get_device_module(device)


def unspecialized_sizes() -> AbstractContextManager[Any]:
    """Trace dynamic sizes without taking for granted that they are neither 0 nor 1."""
    config: Any = importlib.import_module("torch.fx.experimental._config")
    patched: AbstractContextManager[Any] = config.patch(backed_size_oblivious=True)
    return patched


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Have `torch.compiler.is_compiling` say True, so that eager code takes the path that tracing takes."""
    compiler: Any = torch.compiler
    before = compiler._is_compiling_flag
    compiler._is_compiling_flag = True
    try:
        yield
    finally:
        compiler._is_compiling_flag = before


def functional_collectives() -> Any:
    """Return ``torch.ops._c10d_functional``, its operators registered."""
    importlib.import_module("torch.distributed._functional_collectives")
    return torch.ops._c10d_functional


def gather_rows(row: Tensor) -> Tensor:
    """Return the tensor `row` of every rank of the default process group, stacked."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    rows = row.new_empty((dist.get_world_size() * row.numel(),))
    gather(rows, row.contiguous().view(-1))
    return rows.view(-1, *row.shape)


def default_timeout(device: torch.device) -> timedelta | None:
    """Return the timeout of the default process group; torch gives new ones a fixed one, of 10 or 30 minutes."""
    options = getattr(cast(Any, dist.group.WORLD)._get_backend(device), "options", None)
    timeout = getattr(options, "_timeout", None)
    return timeout if isinstance(timeout, timedelta) else None


def strided_shard(dim: int, split_factor: int) -> Placement:
    """Return the placement of a dim that `split_factor` later mesh dims have split before this one does."""
    module = importlib.import_module("torch.distributed.tensor.placement_types")
    return cast(Placement, module._StridedShard(dim, split_factor=split_factor))


def tensor_spec(mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int], dtype: torch.dtype) -> Any:
    """Return the specification of a DTensor of this global shape; to be used for many tensors."""
    module = importlib.import_module("torch.distributed.tensor._dtensor_spec")
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    meta = module.TensorMeta(torch.Size(shape), tuple(reversed(strides)), dtype)
    return module.DTensorSpec(mesh, tuple(placements), tensor_meta=meta)


def make_dtensor(local: Tensor, spec: Any) -> DTensor:
    """Return a DTensor around `local`, which it shares; no check, no communication, no autograd."""
    return cast(DTensor, cast(Any, DTensor)(local, spec, requires_grad=False))


def spec_of(tensor: DTensor) -> Any:
    """Return a DTensor's specification."""
    return tensor._spec


def local_of(tensor: DTensor) -> Tensor:
    """Return a DTensor's local tensor itself: no copy, no autograd."""
    return tensor._local_tensor


def replace_local(tensor: DTensor, local: Tensor) -> None:
    """Make `local` a DTensor's local tensor; its shape must be the old one's."""
    tensor._local_tensor = local


def has_overlap(tensor: Tensor) -> bool:
    """Tell whether two elements of `tensor` may share memory, as after ``expand``."""
    return bool(torch._debug_has_internal_overlap(tensor))


def below_autograd() -> AbstractContextManager[Any]:
    """Return a context in which operators are dispatched past autograd, which does more than not to record.

    Collectives have an autograd layer in Python, whose cost this saves; other operators save a little each.
    """
    return cast(AbstractContextManager[Any], cast(Any, torch._C)._AutoDispatchBelowAutograd())


def compile_graph(graph_module: GraphModule, inputs: Sequence[Tensor]) -> Callable[[list[Tensor]], Sequence[Any]]:
    """Compile a graph of functional ATen ops with Inductor.

    Args:
        graph_module: takes tensors, returns a tuple.
        inputs: tensors (fake ones do) of the types and strides it will be called with.

    Returns:
        A function of a list of inputs, which it empties, to a sequence of outputs.
    """
    with warnings.catch_warnings():
        # Inductor imports deprecated parts of torch itself.
        warnings.simplefilter("ignore", DeprecationWarning)
        inductor = importlib.import_module("torch._inductor.compile_fx")
        compiled = inductor.compile_fx(graph_module, list(inputs))

    # It takes positional arguments, whatever its `_boxed_call` says.
    def boxed(arguments: list[Tensor]) -> Sequence[Any]:
        taken = tuple(arguments)
        arguments.clear()
        return cast(Sequence[Any], compiled(*taken))

    return boxed


def storage_id(tensor: Tensor) -> int:
    """Return a number that tensors have in common exactly if they lie in one storage, on the meta device too."""
    return int(cast(Any, tensor.untyped_storage())._cdata)


def storage_uses(identity: int) -> int:
    """Return how many tensors and others hold the storage of a `storage_id`, which must exist."""
    return int(cast(Any, torch._C)._storage_Use_Count(identity))


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Switch off the CPU's oneDNN operators within the block."""
    # Not `torch.backends.mkldnn.flags`, which sets more and warns of it.
    core = cast(Any, torch._C)
    enabled = core._get_mkldnn_enabled()
    core._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        core._set_mkldnn_enabled(enabled)
