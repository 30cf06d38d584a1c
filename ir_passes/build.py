"""Making torch and hp ops at a place in a function: what every pass that inserts code needs.

Constants and lists of integers stand once at the function's entry, where they dominate everything; so do ops made at
`Builder.entry`. All else stands where its `Site` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch_mlir import ir

from ..dialect.attributes import future_type, future_types, ints_attr, strings_attr
from ..dialect.signature import body_of
from ..dialect.types import TORCH_DTYPE_CODES, TensorType, tensor_type
from ..mesh import Mesh


@dataclass(frozen=True)
class Site:
    """Where new ops go, with the location and the discardable attributes (`hp.module`, `hp.phase`, ...) they get.

    Ops made at one site stand in the order they were made in. `point` is None for the function's entry.
    """

    point: ir.InsertionPoint | None
    location: ir.Location
    attributes: Mapping[str, ir.Attribute] = field(default_factory=dict)

    @classmethod
    def before(cls, op: ir.Operation, attributes: Mapping[str, ir.Attribute] | None = None) -> Site:
        """Return the site right before `op`, with its location."""
        return cls(ir.InsertionPoint(op), op.location, attributes or {})

    @classmethod
    def after(cls, op: ir.Operation, attributes: Mapping[str, ir.Attribute] | None = None) -> Site:
        """Return the site right after `op`, with its location."""
        return cls(ir.InsertionPoint.after(op), op.location, attributes or {})

    def marked(self, attributes: Mapping[str, ir.Attribute], location: ir.Location | None = None) -> Site:
        """Return the same place, for ops with other attributes and, where given, another location."""
        return Site(self.point, location or self.location, attributes)


def type_of(value: ir.Value) -> TensorType:
    """Return the type of a value that is known to be a tensor of known rank and dtype."""
    parsed = tensor_type(value.type)
    if parsed is None:
        raise ValueError(f"expected a tensor of known rank and dtype, got: {value.type}")
    return parsed


class Builder:
    """Makes ops in one function of a module whose mesh is given.

    Args:
        function: a `func.func` with one block.
        mesh_name: symbol of the module's mesh, without the `@`.
        mesh: the module's mesh.
    """

    def __init__(self, function: ir.Operation, mesh_name: str, mesh: Mesh):
        self.function = function
        self.mesh_name = mesh_name
        self.mesh = mesh
        self._context = function.context
        self._block = body_of(function)
        self._entry_end: ir.Operation | None = None
        self._constants: dict[tuple[str, object], ir.Value] = {}
        with self._context:
            self._mesh_attribute = ir.FlatSymbolRefAttr.get(mesh_name)
            self._i64 = ir.IntegerType.get_signless(64)
            self._types = {
                name: ir.Type.parse(f"!torch.{name}") for name in ("int", "float", "bool", "none", "list<int>")
            }

    @property
    def entry(self) -> Site:
        """The site at the function's entry, behind what was already put there, before all else."""
        return Site(None, self.function.location)

    def create(
        self,
        site: Site,
        name: str,
        operands: Sequence[ir.Value],
        types: Sequence[ir.Type],
        attributes: Mapping[str, ir.Attribute] | None = None,
    ) -> ir.Operation:
        """Make any op at a site; it has the site's attributes and those given."""
        point = site.point
        if point is None:
            end = self._entry_end
            point = ir.InsertionPoint.at_block_begin(self._block) if end is None else ir.InsertionPoint.after(end)
        op = ir.Operation.create(
            name,
            results=types,
            operands=operands,
            attributes={**site.attributes, **(attributes or {})},
            loc=site.location,
            ip=point,
        )
        if site.point is None:
            self._entry_end = op
        return op

    def _constant(self, kind: str, key: object, value: ir.Attribute | None) -> ir.Value:
        if (kind, key) not in self._constants:
            attributes = {} if value is None else {"value": value}
            op = self.create(self.entry, f"torch.constant.{kind}", [], [self._types[kind]], attributes)
            self._constants[kind, key] = op.results[0]
        return self._constants[kind, key]

    def integer(self, value: int) -> ir.Value:
        """Return a `torch.constant.int`."""
        with self._context:
            return self._constant("int", value, ir.IntegerAttr.get(self._i64, value))

    def real(self, value: float) -> ir.Value:
        """Return a `torch.constant.float`."""
        with self._context, ir.Location.unknown():
            return self._constant("float", value, ir.FloatAttr.get(ir.F64Type.get(), value))

    def boolean(self, value: bool) -> ir.Value:
        """Return a `torch.constant.bool`."""
        with self._context:
            return self._constant("bool", value, ir.BoolAttr.get(value))

    def none(self) -> ir.Value:
        """Return a `torch.constant.none`."""
        return self._constant("none", None, None)

    def integers(self, values: Sequence[int]) -> ir.Value:
        """Return a list of constant integers."""
        key = ("list<int>", tuple(values))
        if key not in self._constants:
            items = [self.integer(value) for value in values]
            op = self.create(self.entry, "torch.prim.ListConstruct", items, [self._types["list<int>"]])
            self._constants[key] = op.results[0]
        return self._constants[key]

    def cast(self, site: Site, value: ir.Value, dtype: str) -> ir.Value:
        """Return `value` in another dtype (a torch name); itself where it has that dtype."""
        type_ = type_of(value)
        if type_.dtype == dtype:
            return value
        none = self.none()
        operands = [value, self.integer(TORCH_DTYPE_CODES[dtype]), none, none, none, self.boolean(False), none]
        return self._tensor_op(site, "torch.aten._to_copy", operands, type_.with_dtype(dtype))

    def slice_rows(self, site: Site, value: ir.Value, start: int, end: int) -> ir.Value:
        """Return rows `start` to `end` (exclusive) of dim 0."""
        operands = [value, self.integer(0), self.integer(start), self.integer(end), self.integer(1)]
        return self._tensor_op(site, "torch.aten.slice.Tensor", operands, type_of(value).with_size(0, end - start))

    def pad_rows(self, site: Site, value: ir.Value, rows: int) -> ir.Value:
        """Return `value` with `rows` rows of zeros after it along dim 0; itself where `rows` is 0."""
        if rows == 0:
            return value
        type_ = type_of(value)
        pads = [0, 0] * (len(type_.shape) - 1) + [0, rows]
        operands = [value, self.integers(pads), self.real(0.0)]
        return self._tensor_op(site, "torch.aten.constant_pad_nd", operands, type_.with_size(0, _rows(type_) + rows))

    def cat_rows(self, site: Site, values: Sequence[ir.Value]) -> ir.Value:
        """Return tensors concatenated along dim 0; the tensor itself where there is one."""
        if len(values) == 1:
            return values[0]
        types = [type_of(value) for value in values]
        with self._context:
            list_type = ir.Type.parse("!torch.list<vtensor>")
        items = self.create(site, "torch.prim.ListConstruct", values, [list_type]).results[0]
        rows = sum(_rows(type_) for type_ in types)
        return self._tensor_op(site, "torch.aten.cat", [items, self.integer(0)], types[0].with_size(0, rows))

    def _tensor_op(self, site: Site, name: str, operands: Sequence[ir.Value], type_: TensorType) -> ir.Value:
        with self._context:
            mlir_type = type_.to_mlir()
        return self.create(site, name, operands, [mlir_type]).results[0]

    def all_gather(self, site: Site, value: ir.Value, axes: Sequence[str], dim: int = 0) -> ir.Operation:
        """Start to gather `value` along a dim, whose size is static, over `axes`."""
        type_ = type_of(value)
        gathered = type_.with_size(dim, _rows(type_, dim) * self.mesh.count(axes))
        with self._context:
            return self._collective(site, "hp.all_gather", value, axes, gathered, {"dims": ints_attr([dim])})

    def reduce_scatter(self, site: Site, value: ir.Value, axes: Sequence[str], reduce: str) -> ir.Operation:
        """Start to reduce `value` over `axes` and scatter it along dim 0, which their ranks divide."""
        type_ = type_of(value)
        piece = type_.with_size(0, _rows(type_) // self.mesh.count(axes))
        with self._context:
            extra = {"dims": ints_attr([0]), "reduce": ir.StringAttr.get(reduce)}
            return self._collective(site, "hp.reduce_scatter", value, axes, piece, extra)

    def all_reduce(self, site: Site, value: ir.Value, axes: Sequence[str], reduce: str) -> ir.Operation:
        """Start to reduce `value` over `axes`."""
        with self._context:
            extra = {"reduce": ir.StringAttr.get(reduce)}
            return self._collective(site, "hp.all_reduce", value, axes, type_of(value), extra)

    def _collective(
        self,
        site: Site,
        name: str,
        value: ir.Value,
        axes: Sequence[str],
        result: TensorType,
        extra: Mapping[str, ir.Attribute],
    ) -> ir.Operation:
        attributes = {"mesh": self._mesh_attribute, "axes": strings_attr(axes), **extra}
        return self.create(site, name, [value], [future_type([result.to_mlir()])], attributes)

    def wait(self, site: Site, start: ir.Operation) -> ir.Value:
        """Wait for a collective of one operand."""
        future = start.results[0]
        return self.create(site, "hp.wait", [future], future_types(future.type)).results[0]


def _rows(type_: TensorType, dim: int = 0) -> int:
    rows = type_.shape[dim]
    if rows is None:
        raise ValueError(f"expected a static dim {dim}, got: {type_}")
    return rows
