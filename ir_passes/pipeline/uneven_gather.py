"""Gathering outputs whose sizes differ between ranks, or are known only at run time, as IR."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from ...dialect.attributes import future_type, future_types, ints_attr, strings_attr
from ...dialect.types import TORCH_DTYPE_CODES, TensorType
from ..build import Builder, Site

_INDICES = TensorType((None,), "int64")
_ZERO_DIMS = TensorType((), "int64")


class UnevenGather:
    """Concatenates what ranks have, in rank order: they tell their sizes, pad, gather, and take the padding out.

    Args:
        builder: of the function.
        site: where the ops go.
        axes: mesh axes of the group.
    """

    def __init__(self, builder: Builder, site: Site, axes: Sequence[str]):
        self._builder = builder
        self._site = site
        self._axes = tuple(axes)
        self._int = ir.Type.parse("!torch.int")

    def gather(self, value: ir.Value, type_: TensorType, dim: int) -> ir.Value:
        """Return the whole. Sizes of other dims must be equal, or every rank says that they are not.

        Args:
            value: what this rank has.
            type_: its type.
            dim: the dim to concatenate along.
        """
        builder = self._builder
        dynamic = [number for number, size in enumerate(type_.shape) if size is None or number == dim]
        own = {number: self._size(value, number) for number in dynamic}
        told = self._tell(own)
        for number in dynamic:
            if number != dim:
                self._check_equal(told[number], number)
        rows = self._extreme("max", told[dim])
        missing = self._integer("aten.sub.int", [rows, own[dim]])
        zero = builder.integer(0)
        pads = self._list([zero, zero] * (len(type_.shape) - 1 - dim) + [zero, missing])
        unknown = type_.with_size(dim, None)
        padded = self._tensor("aten.constant_pad_nd", [value, pads, zero], unknown)
        (gathered,) = self._collect([padded], [dim], [unknown])
        index = self._kept(gathered, dim, rows, told[dim])
        return self._tensor("aten.index_select", [gathered, builder.integer(dim), index], unknown)

    def _tell(self, sizes: dict[int, ir.Value]) -> dict[int, ir.Value]:
        """Return each size as all ranks have it: a tensor of one number per rank."""
        builder = self._builder
        dtype, none = builder.integer(TORCH_DTYPE_CODES["int64"]), builder.none()
        one = builder.integers([1])
        operands = [
            self._tensor("aten.full", [one, size, dtype, none, none, none], TensorType((1,), "int64"))
            for size in sizes.values()
        ]
        type_ = TensorType((builder.mesh.count(self._axes),), "int64")
        told = self._collect(operands, [0] * len(operands), [type_] * len(operands))
        return dict(zip(sizes, told, strict=True))

    def _check_equal(self, told: ir.Value, number: int) -> None:
        equal = self._create(
            "torch.aten.eq.int",
            [self._extreme("max", told), self._extreme("min", told)],
            [ir.Type.parse("!torch.bool")],
        )
        text = f"dim {number} of an output differs between data ranks: pad it to one size"
        message = self._builder.create(
            self._site,
            "torch.constant.str",
            [],
            [ir.Type.parse("!torch.str")],
            {"value": ir.StringAttr.get(text)},
        )
        # By its own name the op takes numbers only, no bool.
        attributes = {"name": ir.StringAttr.get("torch.aten._assert_scalar")}
        operands = [equal.results[0], message.results[0]]
        self._builder.create(self._site, "torch.operator", operands, [], attributes)

    def _kept(self, gathered: ir.Value, dim: int, rows: ir.Value, sizes: ir.Value) -> ir.Value:
        """Return the positions along `dim` that are no padding: every rank has `rows`, of which `sizes` count."""
        none, first = self._builder.none(), self._builder.integer(0)
        total = self._size(gathered, dim)
        position = self._tensor("aten.arange", [total, none, none, none, none], _INDICES)
        rank = self._tensor("aten.floor_divide.Scalar", [position, rows], _INDICES)
        within = self._tensor("aten.remainder.Scalar", [position, rows], _INDICES)
        limit = self._tensor("aten.index_select", [sizes, first, rank], _INDICES)
        keep = self._tensor("aten.lt.Tensor", [within, limit], TensorType((None,), "bool"))
        found = self._tensor("aten.nonzero", [keep], TensorType((None, 1), "int64"))
        return self._tensor("aten.squeeze.dim", [found, self._builder.integer(1)], _INDICES)

    def _extreme(self, name: str, sizes: ir.Value) -> ir.Value:
        number = self._tensor(f"aten.{name}", [sizes], _ZERO_DIMS)
        attributes = {"name": ir.StringAttr.get("torch.aten._local_scalar_dense")}
        return self._builder.create(self._site, "torch.operator", [number], [self._int], attributes).results[0]

    def _collect(
        self, operands: Sequence[ir.Value], dims: Sequence[int], types: Sequence[TensorType]
    ) -> list[ir.Value]:
        attributes = {
            "mesh": ir.FlatSymbolRefAttr.get(self._builder.mesh_name),
            "axes": strings_attr(self._axes),
            "dims": ints_attr(dims),
        }
        future = future_type([type_.to_mlir() for type_ in types])
        start = self._create("hp.all_gather", operands, [future], attributes)
        return list(self._create("hp.wait", [start.results[0]], future_types(future)).results)

    def _size(self, value: ir.Value, dim: int) -> ir.Value:
        return self._integer("aten.size.int", [value, self._builder.integer(dim)])

    def _list(self, values: Sequence[ir.Value]) -> ir.Value:
        return self._create("torch.prim.ListConstruct", values, [ir.Type.parse("!torch.list<int>")]).results[0]

    def _integer(self, name: str, operands: Sequence[ir.Value]) -> ir.Value:
        return self._create(f"torch.{name}", operands, [self._int]).results[0]

    def _tensor(self, name: str, operands: Sequence[ir.Value], type_: TensorType) -> ir.Value:
        return self._create(f"torch.{name}", operands, [type_.to_mlir()]).results[0]

    def _create(
        self,
        name: str,
        operands: Sequence[ir.Value],
        types: Sequence[ir.Type],
        attributes: dict[str, ir.Attribute] | None = None,
    ) -> ir.Operation:
        return self._builder.create(self._site, name, operands, types, attributes)
