"""The extra outputs of a forward-only step: one tensor of all microbatches and data ranks, as IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch_mlir import ir

from ...dialect.signature import ValueInfo
from ...dialect.types import TensorType
from ..build import Builder, Site
from .rank_signature import scaled
from .uneven_gather import UnevenGather


def gather_output(
    builder: Builder, site: Site, info: ValueInfo, values: Sequence[ir.Value], data_axes: Sequence[str]
) -> tuple[ValueInfo, ir.Value]:
    """Put an output together from its microbatches and data ranks.

    One with a batch dim is concatenated along it, in the order of the global batch; any other is returned as it is when
    there is one, else stacked along a new first dim, data rank major.

    Args:
        builder: of the function.
        site: where it ends.
        info: what a stage function says of it.
        values: of the microbatches, in order.
        data_axes: that split the batch.

    Returns:
        What the whole is, and it.
    """
    ranks = builder.mesh.count(data_axes)
    type_, dim, value = info.type, info.batch_dim, values[0]
    if len(values) * ranks > 1 and dim is None:
        dim, type_ = 0, TensorType((len(values), *type_.shape), type_.dtype)
        value = _joined(builder, site, "torch.aten.stack", values, 0, type_)
    elif len(values) > 1 and dim is not None:
        type_ = type_.with_shape(scaled(type_.shape, dim, len(values)))
        value = _joined(builder, site, "torch.aten.cat", values, dim, type_)
    if ranks > 1 and dim is not None and None in type_.shape:
        gather = UnevenGather(builder, site, data_axes)
        value, type_ = gather.gather(value, type_, dim), type_.with_size(dim, None)
    elif ranks > 1 and dim is not None:
        type_ = type_.with_shape(scaled(type_.shape, dim, ranks))
        value = builder.wait(site, builder.all_gather(site, value, data_axes, dim))
    return replace(info, type=type_, sharding=None, full_shape=type_.shape, batch_dim=dim, stages=()), value


def _joined(
    builder: Builder, site: Site, name: str, values: Sequence[ir.Value], dim: int, type_: TensorType
) -> ir.Value:
    list_type = ir.Type.parse("!torch.list<vtensor>")
    items = builder.create(site, "torch.prim.ListConstruct", values, [list_type]).results[0]
    return builder.create(site, name, [items, builder.integer(dim)], [type_.to_mlir()]).results[0]
