"""What hp-fsdp decides for each parameter and each gradient before it changes anything; all its refusals are here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch_mlir import ir

from ...dialect.attributes import read_strings, strings_attr
from ...dialect.diagnostics import error_at
from ...dialect.hp import COMMUNICATION
from ...dialect.signature import Signature, ValueInfo, body_of, return_of, shard
from ...dialect.types import FLOAT_DTYPES, tensor_type
from ...mesh import Mesh
from .units import assign_units, matches_any, unmatched_patterns


@dataclass(frozen=True)
class DataAxes:
    """Mesh axes in mesh order: `shard` split parameters, `replicate` hold equal shards, `all` see different data."""

    shard: tuple[str, ...]
    replicate: tuple[str, ...]
    all: tuple[str, ...]


@dataclass(frozen=True)
class ParameterPlan:
    """One parameter.

    Attributes:
        info: the argument as it was.
        local: the argument as it will be: its shard, or `info` itself where it stays whole.
        unit: name of its FSDP unit, empty for the root unit.
        compute_dtype: the dtype it is gathered and computed in.
    """

    info: ValueInfo
    local: ValueInfo
    unit: str
    compute_dtype: str

    @property
    def sharded(self) -> bool:
        """Whether the data axes split it."""
        return self.local is not self.info

    @property
    def rows(self) -> int:
        """Rows of dim 0 before the data axes split it."""
        return self.info.type.shape[0] or 0

    def marks(self, phase: str) -> dict[str, ir.Attribute]:
        """Return the attributes of the communication made for it: unit, names, phase."""
        return {**self.place(phase), "hp.unit": ir.StringAttr.get(self.unit), "hp.fqn": strings_attr(self.info.names)}

    def place(self, phase: str) -> dict[str, ir.Attribute]:
        """Return the attributes of the other ops made for it: module and phase."""
        return {"hp.module": ir.StringAttr.get(self.unit), "hp.phase": ir.StringAttr.get(phase)}


@dataclass(frozen=True)
class GradientPlan:
    """One gradient: the result that returns it, and its parameter."""

    result: int
    parameter: ParameterPlan


@dataclass(frozen=True)
class ShardingRequest:
    """The options of hp-fsdp that decide about parameters."""

    axes: DataAxes
    units: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    param_dtype: str = ""
    pass_name: str = field(default="hp-fsdp", repr=False)


def plan_parameters(
    function: ir.Operation, signature: Signature, mesh: Mesh, request: ShardingRequest
) -> list[ParameterPlan]:
    """Decide what becomes of each parameter.

    Raises:
        IRError: a pattern matches nothing, an axis is in use, or a parameter has a shape that cannot be split.
    """
    parameters = signature.with_role("param")
    names = [info.names for info in parameters]
    for option, patterns in (("units", request.units), ("ignore", request.ignore)):
        for pattern, hint in unmatched_patterns(names, patterns):
            raise error_at(
                function,
                f"{request.pass_name}: {option}: pattern '{pattern}' matches no module and no parameter{hint}",
                named=False,
            )
    for info in signature.arguments:
        for axis in info.axes:
            if axis in request.axes.all:
                raise error_at(
                    function,
                    f"{request.pass_name}: axis '{axis}' splits {info.role} '{info.name}' already; "
                    "a data axis is one that nothing uses yet, and the pass runs once",
                    named=False,
                )
    plans = []
    for info, unit in zip(parameters, assign_units(names, request.units), strict=True):
        ignored = matches_any(info.names, request.ignore)
        whole = ignored or not request.axes.shard or not info.type.shape
        local = info if whole else _shard_rows(function, info, mesh, request)
        lowered = request.param_dtype and not ignored and info.type.dtype in FLOAT_DTYPES
        plans.append(ParameterPlan(info, local, unit, request.param_dtype if lowered else info.type.dtype))
    return plans


def _shard_rows(function: ir.Operation, info: ValueInfo, mesh: Mesh, request: ShardingRequest) -> ValueInfo:
    if None in info.type.shape:
        raise error_at(
            function,
            f"{request.pass_name}: expected parameter '{info.name}' to have a static shape, got: {info.type}",
            named=False,
        )
    present = info.sharding or ((),) * len(info.type.shape)
    rows = info.full_shape[0] or 0
    if present[0] and rows % mesh.count(present[0]):
        # Each tensor rank would cut its own number of rows: no one function could trim the gathered tensor.
        raise error_at(
            function,
            f"{request.pass_name}: cannot split '{info.name}' further: its {rows} rows do not divide by the "
            f"{mesh.count(present[0])} ranks of {', '.join(present[0])}",
            named=False,
        )
    return shard(info, ((*present[0], *request.axes.shard), *present[1:]), mesh)


def plan_gradients(
    function: ir.Operation, signature: Signature, plans: Sequence[ParameterPlan], pass_name: str
) -> list[GradientPlan]:
    """Pair each gradient that the function returns with its parameter.

    Raises:
        IRError: a gradient is of no parameter, is returned twice, or has another shape.
    """
    by_name: Mapping[str, ParameterPlan] = {name: plan for plan in plans for name in plan.info.names}
    returned = return_of(function)
    seen: set[int] = set()
    gradients = []
    for result in signature.results_with_role("grad"):
        plan = by_name.get(result.name)
        if plan is None:
            raise error_at(
                function, f"{pass_name}: result {result.index} is the gradient of no parameter: '{result.name}'"
            )
        if plan.info.index in seen:
            raise error_at(returned, f"{pass_name}: the gradient of '{result.name}' is returned twice")
        seen.add(plan.info.index)
        type_ = tensor_type(returned.operands[result.index].type)
        if type_ is None or type_.shape != plan.info.type.shape:
            raise error_at(
                returned,
                f"{pass_name}: expected the gradient of '{result.name}' to have the shape of {plan.info.type}, "
                f"got: {returned.operands[result.index].type}",
            )
        gradients.append(GradientPlan(result.index, plan))
    return gradients


def check_communication(function: ir.Operation, axes: DataAxes, pass_name: str) -> None:
    """Refuse a function that the pass ran on before, or one that communicates over a data axis.

    The ranks along a data axis are taken to run on different data, each unaware of the others.

    Raises:
        IRError: at the op that communicates.
    """
    for view in body_of(function).operations:
        op = view.operation
        if op.name in COMMUNICATION and "axes" in op.attributes:
            if "hp.unit" in op.attributes:
                raise error_at(op, f"was made by {pass_name}, which runs once")
            for axis in read_strings(op.attributes["axes"]) or ():
                if axis in axes.all:
                    raise error_at(
                        op, f"communicates over '{axis}' already; {pass_name} takes an axis that nothing uses yet"
                    )


def sharded_signature(
    signature: Signature,
    plans: Sequence[ParameterPlan],
    gradients: Sequence[GradientPlan],
    axes: DataAxes,
    mesh: Mesh,
) -> Signature:
    """Return the signature after the pass: parameters, gradients, inputs and outputs of one rank."""
    arguments, results = list(signature.arguments), list(signature.results)
    for plan in plans:
        arguments[plan.info.index] = plan.local
    for gradient in gradients:
        local = gradient.parameter.local
        results[gradient.result] = replace(
            results[gradient.result], type=local.type, sharding=local.sharding, full_shape=local.full_shape
        )
    for side in (arguments, results):
        for index, info in enumerate(side):
            if info.role in ("input", "output") and info.batch_dim is not None:
                side[index] = _split_batch(info, info.batch_dim, axes, mesh)
    return Signature(tuple(arguments), tuple(results))


def _split_batch(info: ValueInfo, dim: int, axes: DataAxes, mesh: Mesh) -> ValueInfo:
    # The function sees one data rank's batch; what a tensor partition splits further is that, so data axes are major.
    sharding = list(info.sharding or ((),) * len(info.type.shape))
    sharding[dim] = (*axes.all, *sharding[dim])
    full = list(info.full_shape)
    size = full[dim]
    full[dim] = None if size is None else size * mesh.count(axes.all)
    return replace(info, sharding=tuple(sharding), full_shape=tuple(full))
