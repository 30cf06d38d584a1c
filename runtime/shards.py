"""One parameter of a Program on one rank: its shard, and what DTensor calls that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from ..errors import RuntimeFault
from ..mesh import Mesh, shard_spans
from . import torch_compat
from .device import RankMesh
from .host_copies import copy_into, to_device
from .operators import tensor_type, torch_dtype
from .program import Argument, TensorType
from .shared_buffers import SharedBuffers

Owner = tuple[nn.Module, str]
"""A module and the name under which it holds a tensor."""


def placements_of(argument: Argument, mesh: Mesh, axes: Sequence[str]) -> list[Placement]:
    """Return the DTensor placements, one per axis of `axes`, that say what an argument's sharding says.

    DTensor splits a dim by the mesh's axes in mesh order, major first. Where a sharding has another order, an axis is
    placed as ``_StridedShard``.

    Raises:
        RuntimeFault: such a dim does not divide evenly, which DTensor cannot say.
    """
    placements: list[Placement] = [Replicate() for _ in axes]
    for dim, (split, size) in enumerate(zip(argument.sharding, argument.full_shape, strict=True)):
        real = [axis for axis in split if mesh.axis_size(axis) > 1]
        in_order = real == list(mesh.in_mesh_order(real))
        if not in_order and size is not None and size % mesh.count(real):
            raise RuntimeFault(
                f"parameter '{argument.name}': dim {dim} of size {size} is split over mesh axes {list(split)}, which "
                f"are not in mesh order and do not divide it; DTensor has no name for that"
            )
        for position, axis in enumerate(split):
            index = list(axes).index(axis)
            before = [major for major in split[:position] if list(axes).index(major) > index]
            factor = mesh.count(before)
            placements[index] = Shard(dim) if factor == 1 else torch_compat.strided_shard(dim, factor)
    return placements


class ParameterShard:
    """One rank's shard of one parameter; a tied one has several owners.

    The live parameter is a DTensor whose local tensor is a view of a buffer that is padded to the largest shard: that
    buffer is what the Program is given. Without a process group the live parameter stays a plain one.

    Args:
        argument: of the Program.
        owners: everywhere the model holds the parameter; the first is asked for it.
        ranks: the mesh.
        spec: of the DTensor; None for a plain parameter.
        axes: of the mesh that `spec` is on.
        buffers: where parameters that share memory have it from.
    """

    def __init__(
        self,
        argument: Argument,
        owners: Sequence[Owner],
        ranks: RankMesh,
        spec: Any | None,
        axes: Sequence[str],
        buffers: SharedBuffers | None = None,
    ):
        self.argument = argument
        self.name = argument.name
        self.owners = list(owners)
        self.spec = spec
        self._buffers = buffers
        self.axes = tuple(axes) if spec is not None else ()
        self.device = ranks.device
        self.dtype = torch_dtype(argument.type.dtype)
        self.full_shape = static_shape(TensorType(argument.full_shape, argument.type.dtype), self.name)
        self.padded_shape = static_shape(argument.type, self.name)
        # (dim, offset, rows) of this rank's piece of each split dim.
        self.spans: list[tuple[int, int, int]] = []
        self.split_axes: tuple[str, ...] = ()
        for dim, axes in enumerate(argument.sharding):
            if axes:
                position = ranks.mesh.position(ranks.rank, axes)
                offset, rows = shard_spans(self.full_shape[dim], ranks.mesh.sizes(axes))[position]
                self.spans.append((dim, offset, rows))
                self.split_axes += axes
        self._padded: Tensor | None = None
        self._local: Tensor | None = None
        self._seen: Tensor | None = None

    @property
    def live(self) -> nn.Parameter:
        """The parameter as the model has it now."""
        module, key = self.owners[0]
        live = module._parameters.get(key)
        if live is None:
            raise RuntimeFault(
                f"parameter '{self.name}' is gone from the model: it was replaced after compile, for example by a "
                "parametrization; compile again"
            )
        return live

    def piece(self, full: Tensor) -> Tensor:
        """Return this rank's piece of a tensor of the whole shape, as a view."""
        for dim, offset, rows in self.spans:
            full = full.narrow(dim, offset, rows)
        return full

    def trimmed(self, padded: Tensor) -> Tensor:
        """Return a tensor of the padded shape without the padding, as a view."""
        for dim, _, rows in self.spans:
            if rows != self.padded_shape[dim]:
                padded = padded.narrow(dim, 0, rows)
        return padded

    def install(self, full: Tensor | None, *, requires_grad: bool) -> None:
        """Replace the model's parameter.

        Args:
            full: its whole value; None to leave the shard's values undefined.
            requires_grad: of the new parameter.
        """
        if self.spec is None:
            if full is None:
                full = torch.empty(self.full_shape, dtype=self.dtype, device=self.device)
            elif full.device == self.device:
                return
            self._replace(nn.Parameter(to_device(full.detach(), self.device), requires_grad=requires_grad))
            return
        place = None if self._buffers is None else self._buffers.place(self.argument)
        if full is not None and not self.spans and place is None:
            padded = to_device(full.detach(), self.device).contiguous()
        else:
            padded = torch.zeros(self.padded_shape, dtype=self.dtype, device=self.device) if place is None else place
            if full is not None:
                copy_into(self.trimmed(padded), self.piece(full.detach()))
        self._padded = padded
        tensor = torch_compat.make_dtensor(self.trimmed(padded), self.spec)
        self._replace(nn.Parameter(tensor, requires_grad=requires_grad))
        self._local = self.local(self.live)

    def _replace(self, parameter: nn.Parameter) -> None:
        for module, key in self.owners:
            module._parameters[key] = parameter

    def local(self, live: Tensor) -> Tensor:
        """Return the local tensor of a value of the live parameter's kind.

        Raises:
            RuntimeFault: it is no DTensor of this parameter's placements.
        """
        if self.spec is None:
            return live
        if not isinstance(live, DTensor) or torch_compat.spec_of(live).placements != self.spec.placements:
            raise RuntimeFault(
                f"parameter '{self.name}': expected a DTensor of placements {self.spec.placements}, "
                f"got: {getattr(live, 'placements', type(live).__name__)}; it was replaced after compile"
            )
        return torch_compat.local_of(live)

    def padded(self) -> Tensor:
        """Return what the Program takes: the live values, padded. Shares memory with the live parameter."""
        live = self.live
        if self.spec is None:
            if live is not self._seen or live.dtype is not self.dtype:
                if tensor_type(live) != TensorType(self.full_shape, self.argument.type.dtype):
                    self._refuse_change(live)
                self._seen = live
            return live
        local = torch_compat.local_of(live) if isinstance(live, DTensor) else None
        if local is not self._local or self._padded is None:
            self._adopt(live)
            assert self._padded is not None
        return self._padded

    def _adopt(self, live: Tensor) -> None:
        """Take over a local tensor that the user put in place of ours."""
        local = self.local(live)
        expected = self.trimmed_shape
        if tuple(local.shape) != expected or local.dtype != self.dtype:
            self._refuse_change(local)
        if expected == self.padded_shape:
            self._padded = local
        else:
            with torch.no_grad():
                self._padded = torch.zeros(self.padded_shape, dtype=self.dtype, device=self.device)
                self.trimmed(self._padded).copy_(local)
            assert isinstance(live, DTensor)
            local = self.trimmed(self._padded)
            torch_compat.replace_local(live, local)
        self._local = local

    def _refuse_change(self, live: Tensor) -> None:
        expected = TensorType(self.trimmed_shape, self.argument.type.dtype)
        raise RuntimeFault(
            f"parameter '{self.name}': the step was compiled for {expected}, got: {tensor_type(live)}: it was changed "
            "after compile; change it back, or compile again"
        )

    @property
    def trimmed_shape(self) -> tuple[int, ...]:
        """The shape of this rank's piece."""
        rows = {dim: size for dim, _, size in self.spans}
        return tuple(rows.get(dim, size) for dim, size in enumerate(self.full_shape))

    def wrapped(self, local: Tensor) -> Tensor:
        """Return a local tensor as a tensor of the live parameter's kind."""
        return local if self.spec is None else torch_compat.make_dtensor(local, self.spec)


def static_shape(type_: TensorType, name: str) -> tuple[int, ...]:
    """Return a shape all of whose sizes are known.

    Raises:
        RuntimeFault: one is not.
    """
    if None in type_.shape:
        raise RuntimeFault(f"'{name}': expected a static shape, got: {type_}")
    return tuple(size for size in type_.shape if size is not None)
