"""Models on the meta device: initialised shard by shard, each rank only its own."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import RuntimeFault
from .device import RankMesh
from .host_copies import to_device
from .program import Argument
from .random import mixed_seed
from .shards import Owner, ParameterShard
from .shared_faults import raise_together

InitFunction = Callable[[nn.Module], None]

# What an initialiser may raise: for a DTensor that it cannot work on, or a file that is not there.
_INIT_ERRORS = (
    RuntimeError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    OSError,
)


def initialize_shards(
    model: nn.Module,
    shards: Sequence[ParameterShard],
    buffers: Mapping[str, Owner],
    ranks: RankMesh,
    axes: Sequence[str],
    whole: Sequence[Argument],
    *,
    seed: int,
    init: InitFunction | None = None,
) -> None:
    """Give values to parameters and buffers that were on the meta device. All ranks call it, also without any.

    Each module that owns one has its ``reset_parameters`` (and ``reset_buffers``) called, children before parents as
    when the model was built, with DTensors in place: every rank draws its own shard, from `seed`, the module's name and
    the shard's coordinate. What ranks share is then made equal.

    Args:
        model: the model; `shards` are installed in it, their values undefined.
        shards: of the parameters.
        buffers: by name, where they are.
        ranks: the mesh.
        axes: over which ranks hold the same parameters and buffers.
        whole: all parameters and buffers of the Program, in an order that all ranks have.
        seed: of all draws.
        init: called with each such module in place of its own methods.

    Raises:
        RuntimeFault: on any rank, a module has no such method, it fails, or it leaves a parameter or buffer without
            values; the text names it.
    """
    with torch.no_grad():
        for shard in shards:
            _mark(shard.trimmed(shard.padded()))
    marks: dict[str, tuple[Tensor, int]] = {}
    for name, (module, key) in buffers.items():
        meta = module._buffers[key]
        assert meta is not None
        buffer = torch.zeros(meta.shape, dtype=meta.dtype, device=ranks.device)
        module._buffers[key] = buffer
        marks[name] = (buffer, buffer._version)
    owners = {id(module) for shard in shards for module, _ in shard.owners}
    owners |= {id(module) for module, _ in buffers.values()}
    # Of all parameters, also those of other stages: what is drawn does not depend on who draws it.
    split = tuple(dict.fromkeys(axis for argument in whole for axes in argument.sharding for axis in axes))
    coordinate = ranks.mesh.position(ranks.rank, ranks.mesh.in_mesh_order(split))
    device = ranks.device
    fault: RuntimeFault | None = None
    with (
        torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=_rng_type(device)),
        warnings.catch_warnings(),
        torch.no_grad(),
    ):
        # Each rank draws by itself on purpose.
        warnings.filterwarnings("ignore", "DTensor random operators may not have complete support")
        for name, module in reversed(list(model.named_modules())):
            if id(module) in owners:
                torch.manual_seed(mixed_seed(seed, zlib.crc32(name.encode()), coordinate))
                try:
                    _reset(name, module, init)
                except RuntimeFault as error:
                    # Ranks of other stages have other modules.
                    fault = error
                    break
                _clear_padding_row(module, shards)
    raise_together(fault, ranks)
    _check(shards, buffers, marks, ranks, whole)
    _equalise(shards, buffers, ranks, axes)


def _rng_type(device: torch.device) -> str:
    return "cuda" if device.type == "cpu" else device.type


def _mark(tensor: Tensor) -> None:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))


def _reset(name: str, module: nn.Module, init: InitFunction | None) -> None:
    what = f"module '{name}' ({type(module).__name__})" if name else f"the root module ({type(module).__name__})"
    # MultiheadAttention has the method under a private name.
    methods = [getattr(module, found) for found in ("reset_parameters", "reset_buffers") if hasattr(module, found)]
    if not methods and hasattr(module, "_reset_parameters"):
        methods = [module._reset_parameters]
    if init is None and not methods:
        raise RuntimeFault(
            f"{what} has parameters or buffers on the meta device and no reset_parameters(): "
            f"pass init=, a function of a module, to compile"
        )
    try:
        if init is not None:
            init(module)
        else:
            for method in methods:
                method()
    except _INIT_ERRORS as error:
        raise RuntimeFault(f"{what} cannot be initialised shard by shard: {error}") from None


def _clear_padding_row(module: nn.Module, shards: Sequence[ParameterShard]) -> None:
    """Zero an embedding's padding row: by itself it zeroes a copy when the row is on one rank only."""
    row = getattr(module, "padding_idx", None)
    if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or not isinstance(row, int):
        return
    for shard in shards:
        if any(owner is module for owner, _ in shard.owners):
            begin, rows = next(
                ((begin, rows) for dim, begin, rows in shard.spans if dim == 0), (0, shard.full_shape[0])
            )
            if begin <= row < begin + rows:
                shard.trimmed(shard.padded())[row - begin].zero_()


def _check(
    shards: Sequence[ParameterShard],
    buffers: Mapping[str, Owner],
    marks: Mapping[str, tuple[Tensor, int]],
    ranks: RankMesh,
    whole: Sequence[Argument],
) -> None:
    faults: dict[tuple[str, str], bool] = {}
    for shard in shards:
        local = shard.local(shard.live).detach()
        wrong = tuple(local.shape) != (shard.trimmed_shape if shard.spec is not None else shard.full_shape)
        faults["parameter", shard.name] = wrong or bool((local != local).any())
    for name, (module, key) in buffers.items():
        buffer, (made, version) = module._buffers[key], marks[name]
        faults["buffer", name] = buffer is None or buffer.is_meta or (buffer is made and buffer._version == version)
    kinds = [("parameter" if each.role == "param" else each.role, each.name) for each in whole]
    found = torch.tensor([faults.get(kind, False) for kind in kinds], dtype=torch.int32, device=ranks.device)
    if ranks.distributed:
        # A rank with an empty shard sees nothing wrong; all must raise together.
        dist.all_reduce(found, dist.ReduceOp.MAX)
    for (kind, name), fault in zip(kinds, found.tolist(), strict=True):
        if fault:
            raise RuntimeFault(
                f"{kind} '{name}' is on the meta device and its module's reset_parameters() does not give it values "
                f"shard by shard: pass init=, a function of a module, to compile"
            )


def _equalise(
    shards: Sequence[ParameterShard], buffers: Mapping[str, Owner], ranks: RankMesh, axes: Sequence[str]
) -> None:
    """Make what several ranks hold equal: they take it from the first of them."""
    tensors: list[tuple[Tensor, tuple[str, ...]]] = [(shard.padded(), shard.split_axes) for shard in shards]
    for module, key in buffers.values():
        buffer = module._buffers[key]
        if buffer is not None:
            module._buffers[key] = buffer = to_device(buffer, ranks.device).contiguous()
            tensors.append((buffer, ()))
    if ranks.device_mesh is None:
        return
    for tensor, split in tensors:
        # Axis by axis, so that no process group is needed that the mesh has not.
        for axis in axes:
            if axis not in split and ranks.mesh.axis_size(axis) > 1:
                # As bytes: backends refuse some dtypes.
                dist.broadcast(
                    tensor.view(-1).view(torch.uint8), ranks.neighbour(axis, 0), group=ranks.device_mesh.get_group(axis)
                )
