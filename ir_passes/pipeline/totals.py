"""What a step sums over its microbatches, ranks and owners, and divides once: loss, weight and gradients, as IR.

With a plain loss all microbatches and data ranks count equally: loss and gradients are means. With a weight they are
sums, divided by the sum of the weights. Gradients come reduced over the data ranks already; loss and weight are reduced
here, on the ranks that have them, and then told to the others of the pipeline axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from ...dialect.attributes import future_type, future_types, i64_attr, ints_attr, strings_attr
from ...dialect.signature import ValueInfo
from ...dialect.types import ELEMENT_TYPES, TensorType
from ..build import Builder, Site, type_of
from .rank_signature import Gradient

_HALVES = frozenset({"float16", "bfloat16"})
_REAL = {"complex128": "float64", "complex64": "float32", "complex32": "float32"}


@dataclass(frozen=True)
class Told:
    """The loss or the weight as a result, and the position on the pipeline axis that computes it."""

    info: ValueInfo
    root: int

    @property
    def role(self) -> str:
        """The result's role."""
        return self.info.role

    @property
    def type(self) -> TensorType:
        """The result's type."""
        return self.info.type


@dataclass(frozen=True)
class StepShape:
    """What all ranks know of a step.

    Attributes:
        mesh_name: symbol of the mesh.
        axis: the pipeline axis.
        ranks: positions on it.
        data_axes: that split the batch, those of one rank left out.
        microbatches: of each data rank.
        rows: name of the dynamic size that they split; empty where the rows are fixed.
        told: the loss and, where there is one, the weight.
        gradients: of all parameters.
    """

    mesh_name: str
    axis: str
    ranks: int
    data_axes: tuple[str, ...]
    microbatches: int
    rows: str
    told: tuple[Told, ...]
    gradients: tuple[Gradient, ...]

    @property
    def weighted(self) -> bool:
        """Whether the loss is a sum to divide by a weight."""
        return any(told.role == "weight" for told in self.told)

    def sum_dtype(self, role: str, dtype: str) -> str:
        """Return the dtype to add a value up in: a sum of many losses rounds away in 16 bits."""
        if role == "loss" and (self.weighted or self.microbatches > 1 or self.data_axes):
            return wide(dtype)
        return dtype


def wide(dtype: str) -> str:
    """Return the dtype to add up values of a dtype in."""
    return "float32" if dtype in _HALVES else dtype


class StepTotals:
    """Emits the end of one rank's function.

    Args:
        builder: of the function.
        site: where it ends.
        shape: of the step.
        position: of the rank on the pipeline axis.
    """

    def __init__(self, builder: Builder, site: Site, shape: StepShape, position: int):
        self._builder = builder
        self._site = site
        self._shape = shape
        self._position = position

    def tell(self, sums: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        """Return loss and weight of the whole step by role, the same on every rank; a weighted loss is still a sum.

        Args:
            sums: those that this rank has computed, by role.
        """
        shape = self._shape
        own = dict(sums)
        if not shape.weighted and shape.microbatches > 1:
            own = {role: self._divide(value, shape.microbatches) for role, value in own.items()}
        if shape.data_axes:
            reduce = "sum" if shape.weighted else "avg"
            attributes = {"axes": strings_attr(shape.data_axes), "reduce": ir.StringAttr.get(reduce)}
            started = {role: self._start("hp.all_reduce", [value], attributes) for role, value in own.items()}
            own = {role: self._wait(start)[0] for role, start in started.items()}
        if not shape.weighted:
            own = {told.role: self._cast(own[told.role], told.type) for told in shape.told if told.role in own}
        return own if shape.ranks == 1 else self._broadcast(own)

    def _broadcast(self, own: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        shape = self._shape
        started = []
        for root in sorted({told.root for told in shape.told}):
            group = [told for told in shape.told if told.root == root]
            operands = [own[told.role] if root == self._position else self._nothing(told) for told in group]
            attributes = {"axes": strings_attr([shape.axis]), "root": i64_attr(root)}
            started.append((group, self._start("hp.broadcast", operands, attributes)))
        return {
            told.role: value for group, start in started for told, value in zip(group, self._wait(start), strict=True)
        }

    def _nothing(self, told: Told) -> ir.Value:
        """Return what a rank that does not know a value gives to its broadcast."""
        shape = self._shape
        dtype = shape.sum_dtype(told.role, told.type.dtype) if shape.weighted else told.type.dtype
        zero = "false" if dtype == "bool" else "0.0" if "float" in dtype else "0"
        sizes = "".join(f"{size}x" for size in told.type.shape)
        value = ir.Attribute.parse(f"dense<{zero}> : tensor<{sizes}{ELEMENT_TYPES[dtype]}>")
        return self._op("torch.vtensor.literal", [], told.type.with_dtype(dtype), {"value": value})

    def sum_owners(
        self, parts: Mapping[str, Sequence[ir.Value]], parameters: Mapping[str, ir.Value]
    ) -> dict[str, ir.Value]:
        """Return the sums of gradients over all stages that make a part of them, by parameter.

        Args:
            parts: by parameter, the parts that this rank's stages make, none, one or several.
            parameters: that this rank holds.
        """
        sums: dict[str, ir.Value] = {}
        started: list[tuple[str, ir.Operation]] = []
        for gradient in self._shape.gradients:
            name, own = gradient.info.name, list(parts.get(gradient.info.name, ()))
            if self._position not in gradient.owners:
                continue
            while len(own) > 1:
                own[:2] = [self._op("hp.accumulate", own[:2], type_of(own[0]))]
            if len(gradient.owners) == 1:
                sums[name] = own[0]
                continue
            attributes = {
                "axes": strings_attr([self._shape.axis]),
                "coordinates": ints_attr(gradient.owners),
                "reduce": ir.StringAttr.get("sum"),
                "hp.fqn": strings_attr(gradient.info.names),
            }
            operand = own[0] if own else self._zeros_like(parameters[name])
            started.append((name, self._start("hp.all_reduce", [operand], attributes)))
        sums.update((name, self._wait(start)[0]) for name, start in started)
        return sums

    def divide(
        self, told: Mapping[str, ir.Value], gradients: Mapping[str, ir.Value]
    ) -> tuple[dict[str, ir.Value], dict[str, ir.Value]]:
        """Return loss and weight by role and gradients by parameter as the step returns them.

        A division by the weight is in the dtype of what is divided, and at least in float32: a tensor without dims
        would otherwise take on the dtype of the weight, and a large count would overflow 16 bits.
        """
        shape = self._shape
        if not shape.weighted:
            if shape.microbatches > 1:
                gradients = {name: self._divide(value, shape.microbatches) for name, value in gradients.items()}
            return dict(told), dict(gradients)
        types = {entry.role: entry.type for entry in shape.told}
        divisors = self._divisors(told["weight"])
        loss = self._quotient(told["loss"], types["loss"], divisors)
        results = {"loss": loss, "weight": self._cast(told["weight"], types["weight"])}
        return results, {name: self._quotient(value, type_of(value), divisors) for name, value in gradients.items()}

    def _divisors(self, weight: ir.Value) -> Callable[[str], ir.Value]:
        """Return a function from a dtype to the weight in it, without dims; each is made once."""
        type_ = type_of(weight)
        if type_.shape:
            weight = self._op("torch.aten.reshape", [weight, self._builder.integers([])], type_.with_shape(()))
        made: dict[str, ir.Value] = {}

        def divisor(dtype: str) -> ir.Value:
            dtype = _REAL.get(dtype, dtype)
            if dtype not in made:
                made[dtype] = self._builder.cast(self._site, weight, dtype)
            return made[dtype]

        return divisor

    def _quotient(self, value: ir.Value, type_: TensorType, divisor: Callable[[str], ir.Value]) -> ir.Value:
        value = self._builder.cast(self._site, value, wide(type_of(value).dtype))
        dividend = type_of(value)
        quotient = self._op("torch.aten.div.Tensor", [value, divisor(dividend.dtype)], dividend)
        return self._cast(quotient, type_)

    def _divide(self, value: ir.Value, count: int) -> ir.Value:
        return self._op("torch.aten.div.Scalar", [value, self._builder.integer(count)], type_of(value))

    def _zeros_like(self, value: ir.Value) -> ir.Value:
        none = self._builder.none()
        return self._op("torch.aten.zeros_like", [value, *[none] * 5], type_of(value))

    def _cast(self, value: ir.Value, type_: TensorType) -> ir.Value:
        return self._builder.cast(self._site, value, type_.dtype)

    def _start(self, name: str, operands: Sequence[ir.Value], attributes: Mapping[str, ir.Attribute]) -> ir.Operation:
        mesh = {"mesh": ir.FlatSymbolRefAttr.get(self._shape.mesh_name)}
        types = [future_type([operand.type for operand in operands])]
        return self._builder.create(self._site, name, operands, types, {**attributes, **mesh})

    def _wait(self, start: ir.Operation) -> list[ir.Value]:
        future = start.results[0]
        return list(self._builder.create(self._site, "hp.wait", [future], future_types(future.type)).results)

    def _op(
        self,
        name: str,
        operands: Sequence[ir.Value],
        type_: TensorType,
        attributes: Mapping[str, ir.Attribute] | None = None,
    ) -> ir.Value:
        return self._builder.create(self._site, name, operands, [type_.to_mlir()], attributes).results[0]
