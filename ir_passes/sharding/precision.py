"""Computing in a parameter's low precision: what `param-dtype` of hp-fsdp means, use by use.

1. A parameter is cast once, at the function's entry, and its views are views of the cast.
2. An operator of the matmul family computes in the low dtype: its other floating operands are cast to it, its floating
   results are of it and are cast back right after, so that the types of all activations stay.
3. A cast of the parameter to the low dtype is the parameter itself; to another dtype it starts from the low dtype.
4. Every other user gets the rounded parameter in the dtype it is stored in, cast once per phase.

A cast to the low dtype of what was widened from it is left out: widening loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from ...dialect.signature import body_of
from ...dialect.types import DTYPE_BYTES, FLOAT_DTYPES, TensorType, tensor_type
from ..build import Builder, Site, type_of
from ..phases import FORWARD, Phases, earlier
from ..views import CASTS, UNPACKING, VIEWS, holds_tensors, is_link, operator_name
from .parameter_chains import Use, uses_of
from .parameter_plan import ParameterPlan

MATMUL_FAMILY = frozenset(
    {
        "aten._convolution",
        "aten.addmm",
        "aten.addmv",
        "aten.baddbmm",
        "aten.bmm",
        "aten.conv1d",
        "aten.conv2d",
        "aten.conv3d",
        "aten.convolution",
        "aten.convolution_backward",
        "aten.dot",
        "aten.embedding",
        "aten.linear",
        "aten.linear_backward",
        "aten.matmul",
        "aten.mm",
        "aten.mv",
    }
)
"""Operators that compute in the dtype of the parameter they are given."""

_CARRIED = ("hp.module", "hp.recompute")


class LowPrecision:
    """Makes a function compute with its parameters in a low dtype.

    Args:
        builder: of the function.
        phases: of the function.
        dtype: the low dtype, a real floating one.
    """

    def __init__(self, builder: Builder, phases: Phases, dtype: str):
        self._builder = builder
        self._phases = phases
        self._dtype = dtype
        self._narrowed: dict[ir.Value, ir.Operation] = {}  # by result: an op's hash changes with its operands
        self._widened: list[ir.Operation] = []
        self._shared: dict[ir.Value, ir.Value] = {}

    def insert(self, plans: Sequence[ParameterPlan]) -> dict[int, ir.Value]:
        """Cast every parameter whose `compute_dtype` is not the one it is stored in, and rewrite its uses.

        Returns:
            Argument number to the value that now stands for the parameter: its cast, or the argument itself.
        """
        arguments = body_of(self._builder.function).arguments
        values = {}
        for plan in plans:
            value: ir.Value = arguments[plan.info.index]
            uses = uses_of(value)
            if plan.compute_dtype != plan.info.type.dtype and uses:
                value = self._builder.cast(self._builder.entry.marked(plan.place(FORWARD)), value, self._dtype)
                for use in uses:
                    use.feed(value)
                self._follow(value, plan.info.type.dtype)
            values[plan.info.index] = value
        self._simplify()
        return values

    def _follow(self, value: ir.Value, stored: str) -> None:
        pending = [value]
        for low in pending:  # grows on the way
            others: dict[str, list[Use]] = {}
            for use in uses_of(low):
                op = use.op
                if operator_name(op) in CASTS and is_link(op):
                    if op.results[0] not in self._narrowed:
                        self._fold_cast(op, low)
                elif (results := _view_results(op)) is not None:
                    for result, type_ in results:
                        self._retype(result, type_)
                        pending.append(result)
                elif _is_matmul(op):
                    self._lower(op)
                else:
                    others.setdefault(self._phases.of(op), []).append(use)
            for phase_uses in others.values():
                self._widen_for(low, stored, phase_uses)

    def _fold_cast(self, op: ir.Operation, low: ir.Value) -> None:
        if type_of(op.results[0]).dtype == self._dtype:
            op.results[0].replace_all_uses_with(low)
            op.erase()

    def _retype(self, value: ir.Value, type_: TensorType) -> None:
        with self._builder.function.context:
            value.set_type(type_.with_dtype(self._dtype).to_mlir())

    def _lower(self, op: ir.Operation) -> None:
        for number, operand in enumerate(op.operands):
            if _is_other_float(operand.type, self._dtype):
                op.operands[number] = self._narrow(operand, op)
        for result in op.results:
            type_ = tensor_type(result.type)
            if type_ is not None and _is_other_float(result.type, self._dtype):
                self._retype(result, type_)
                wide = self._builder.cast(Site.after(op, self._carried(op)), result, type_.dtype)
                made = wide.owner.operation
                result.replace_all_uses_except(wide, made)
                self._widened.append(made)

    def _narrow(self, value: ir.Value, user: ir.Operation) -> ir.Value:
        # One cast serves all operators of the phase that made the value (queries, keys, values); another phase makes
        # its own, so that none is kept alive from the forward to the backward.
        if value in self._shared and self._made_in(value) == self._phases.of(user):
            return self._shared[value]
        owner = value.owner
        share = self._made_in(value) == self._phases.of(user)
        if not share:
            site = Site.before(user, self._carried(user))
        elif isinstance(owner, ir.Block):
            site = self._builder.entry.marked({"hp.phase": ir.StringAttr.get(FORWARD, user.context)})
        else:
            site = Site.after(owner.operation, self._carried(owner.operation))
        low = self._builder.cast(site, value, self._dtype)
        self._narrowed[low] = low.owner.operation
        if share:
            self._shared[value] = low
        return low

    def _widen_for(self, low: ir.Value, stored: str, uses: Sequence[Use]) -> None:
        first = uses[0].op
        for use in uses[1:]:
            first = earlier(first, use.op) or first
        wide = self._builder.cast(Site.before(first, self._carried(first)), low, stored)
        for use in uses:
            use.feed(wide)

    def _carried(self, op: ir.Operation) -> dict[str, ir.Attribute]:
        carried = {name: op.attributes[name] for name in _CARRIED if name in op.attributes}
        return {**carried, "hp.phase": ir.StringAttr.get(self._phases.of(op), op.context)}

    def _made_in(self, value: ir.Value) -> str:
        return FORWARD if isinstance(value.owner, ir.Block) else self._phases.of(value.owner.operation)

    def _simplify(self) -> None:
        for op in self._narrowed.values():
            value = op.operands[0]
            if type_of(value).dtype != self._dtype:
                source = self._widened_from(value)
                if source is None:
                    continue
                value = source
            op.results[0].replace_all_uses_with(value)
            op.erase()
        for op in self._widened:
            if not uses_of(op.results[0]):
                op.erase()

    def _widened_from(self, value: ir.Value) -> ir.Value | None:
        owner = value.owner
        if isinstance(owner, ir.Block) or operator_name(owner.operation) not in CASTS:
            return None
        source = owner.operation.operands[0]
        type_ = tensor_type(source.type)
        if type_ is None or type_.dtype != self._dtype:
            return None
        return source if DTYPE_BYTES[type_of(value).dtype] > DTYPE_BYTES[self._dtype] else None


def _is_other_float(type_: ir.Type, dtype: str) -> bool:
    parsed = tensor_type(type_)
    return parsed is not None and parsed.dtype in FLOAT_DTYPES and parsed.dtype != dtype


def _is_matmul(op: ir.Operation) -> bool:
    if operator_name(op) not in MATMUL_FAMILY:
        return False
    for value in (*op.operands, *op.results):
        if holds_tensors(value.type):
            type_ = tensor_type(value.type)
            if type_ is None or type_.dtype.startswith("complex"):
                return False
    return True


def _view_results(op: ir.Operation) -> list[tuple[ir.Value, TensorType]] | None:
    """Return the tensors that a view makes, through a list where it makes one; None for what is no view of them."""
    if operator_name(op) not in VIEWS or not is_link(op):
        return None
    made = []
    for result in op.results:
        type_ = tensor_type(result.type)
        if type_ is not None:
            made.append((result, type_))
            continue
        if str(result.type) != "!torch.list<vtensor>":
            return None
        for use in uses_of(result):
            inner = _view_results(use.op) if operator_name(use.op) in UNPACKING else None
            if inner is None:
                return None
            made += inner
    return made
