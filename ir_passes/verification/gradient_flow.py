"""What each value of a step function is on its data axes: the dataflow behind the proof on gradient reductions.

On each mesh axis a value either varies with the data of the ranks along it, or has been reduced over it, or is the
same on all ranks for want of any data in it (a parameter, a constant). The function is a straight line, so one sweep
decides:

- Inputs vary over the axes that split their batch dim, and what draws random numbers does over all. What is computed
  from a value that varies, varies.
- A reduction over an axis ends that. What is computed from reduced values only counts as reduced, but is a new value:
  it may be reduced again (a norm, summed over shards).
- Operators linear in a gradient (casts, views, pads, scaling, sums) do not make a new value: reducing their result
  again is a second reduction, and a sum of a reduced and a varying value can no longer be put right. Both are kept as
  faults of the value until an operator that is not linear; only those that reach a gradient matter.
- A packed tensor is what each of its members is: `hp.pack` puts them together, casts and collectives keep them apart,
  `hp.unpack` takes them out.
- A gather undoes a split, a reduce-scatter or `hp.shard_slice` makes one; the linear operators keep it.
- What a stage takes from another is what it was there; the results of a call are those of the function called, which is
  swept once, however often it is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from torch_mlir import ir

from ...dialect.attributes import read_strings
from ...dialect.signature import CROSSING_ROLES, Signature, body_of, function_name, return_of
from ...mesh import Mesh
from ..effects import Effect, effect_of, effect_of_name
from ..views import CASTS, VIEWS, operator_name

NEW = -1
"""In place of a reduction's number: the value is computed from reduced ones."""


@dataclass(frozen=True)
class Fault:
    """What went wrong with a value over one axis; ops by their number in `Flows.ops`.

    `kind` is "twice" (`op` reduces what `first` had reduced), "mixed" (`op` joins what `first` had reduced with what
    varies) or "split" (`op` reduces over an axis that splits its operand).
    """

    kind: str
    axis: str
    op: int
    first: int = NEW


@dataclass(frozen=True, eq=False)
class Flow:
    """What a value is, over axes of more than one rank; equal flows of a module are one object.

    Attributes:
        varies: axes along which each rank has a value from its own data.
        reduced: axes over which it was reduced, each with the number of the op, or `NEW`.
        shards: axes that split it: each rank has a piece.
        parameter: the parameter it is a shard of, seen through views and casts, or empty.
        faults: see `Fault`.
    """

    varies: frozenset[str]
    reduced: frozenset[tuple[str, int]]
    shards: frozenset[str]
    parameter: str
    faults: frozenset[Fault]


# Operators that add gradients, or put several into one tensor or list.
_SUMS = frozenset(
    {
        "aten.add.Scalar",
        "aten.add.Tensor",
        "aten.cat",
        "aten.slice_scatter",
        "aten.stack",
        "aten.sub.Scalar",
        "aten.sub.Tensor",
        "aten.where.self",
        "prim.ListConstruct",
    }
)
# Other operators that are linear in one operand; to multiply by what is reduced does not reduce.
_SCALES = frozenset(
    {
        "aten.constant_pad_nd",
        "aten.div.Scalar",
        "aten.div.Tensor",
        "aten.mul.Scalar",
        "aten.mul.Tensor",
        "aten.neg",
        "hp.microbatch",
        *VIEWS,
        *CASTS,
    }
)
# Operators that read no element of their operands.
_CONSTANTS = frozenset({"aten.empty_like", "aten.full_like", "aten.ones_like", "aten.zeros_like"})
_COLLECTIVES = frozenset({"hp.all_gather", "hp.all_reduce", "hp.all_to_all", "hp.broadcast", "hp.reduce_scatter"})
_RANDOM = frozenset({"hp.normal", "hp.uniform"})
_KINDS = {
    "func.call": "call",
    "hp.accumulate": "accumulate",
    "hp.pack": "pack",
    "hp.shard_slice": "slice",
    "hp.unpack": "unpack",
    "hp.wait": "wait",
}


class Flows:
    """The flows of a module, and what its functions have in common.

    Args:
        mesh: of the module.
        data_axes: axes that split the batch; none known: all axes may.
        updated: names of buffers that the step updates: each data rank's follow its own data.
        passed_over: axes that neither data nor parameters are split over.

    Attributes:
        ops: the ops that flows name by number.
        uses: by parameter name, the first op that computes with a shard of it, and the axes that split that.
        misnamed: by parameter name, an op that gathers a shard of it but names others.
        axes: axes of more than one rank.
        same: of what is the same on all ranks for want of any data in it.
        own: of what each rank has from its own data.
        crossing: by `hp.name`, what goes from one stage function to others.
        results: by function, what it returns.
    """

    def __init__(
        self, mesh: Mesh, data_axes: Sequence[str], updated: Iterable[str] = (), passed_over: Iterable[str] = ()
    ):
        self.ops: list[ir.Operation] = []
        self.uses: dict[str, tuple[ir.Operation, frozenset[str]]] = {}
        self.misnamed: dict[str, ir.Operation] = {}
        self.axes = frozenset(axis for axis in mesh.axis_names if mesh.axis_size(axis) > 1).difference(passed_over)
        self.data_axes = tuple(data_axes)
        self.updated = frozenset(updated)
        self.crossing: dict[str, Flow] = {}
        self.results: dict[str, list[Flow]] = {}
        # Flows are few (some per reduction), ops are many.
        self._made: dict[tuple[object, ...], Flow] = {}
        self.joined: dict[tuple[str, frozenset[Flow]], Flow] = {}
        self.same = self.make()
        self.own = self.make(varies=self.axes.intersection(data_axes) if data_axes else self.axes)

    def make(
        self,
        varies: Iterable[str] = (),
        reduced: Iterable[tuple[str, int]] = (),
        shards: Iterable[str] = (),
        parameter: str = "",
        faults: Iterable[Fault] = (),
    ) -> Flow:
        """Return the one flow that is this."""
        key = (frozenset(varies), frozenset(reduced), frozenset(shards), parameter, frozenset(faults))
        if key not in self._made:
            self._made[key] = Flow(*key)
        return self._made[key]

    def number(self, op: ir.Operation) -> int:
        """Return a new number for an op."""
        self.ops.append(op)
        return len(self.ops) - 1


class GradientFlow:
    """The flow of every value of a function, from one sweep over it.

    What it returns, and what of that crosses to other functions, is noted in `flows`.

    Args:
        function: at level "spmd", a stage function or a rank's.
        signature: of the function.
        flows: of the module; has those of what the function takes and of the functions it calls.

    Attributes:
        results: the flow of each value the function returns.
    """

    def __init__(self, function: ir.Operation, signature: Signature, flows: Flows):
        self._shared = flows
        self._axes = flows.axes
        self._make = flows.make
        self._joined = flows.joined
        self._same, self._own = flows.same, flows.own
        self._flows = self._arguments(function, signature)
        self._futures: dict[ir.Value, list[list[Flow]]] = {}
        self._members: dict[ir.Value, list[Flow]] = {}  # of packed tensors
        for view in body_of(function).operations:
            self._visit(view.operation)
        self.results = [self._flow(value) for value in return_of(function).operands]
        flows.results[function_name(function)] = self.results
        for info, flow in zip(signature.results, self.results, strict=True):
            if info.role in CROSSING_ROLES:
                flows.crossing[info.name] = flow

    def _flow(self, value: ir.Value) -> Flow:
        return self._flows.get(value, self._same)

    def _arguments(self, function: ir.Operation, signature: Signature) -> dict[ir.Value, Flow]:
        shared = self._shared
        flows = {}
        for argument, info in zip(body_of(function).arguments, signature.arguments, strict=True):
            if info.role == "size" or info.name in shared.updated:
                flows[argument] = self._own
            elif info.role == "input":
                if not shared.data_axes:
                    flows[argument] = self._own
                elif info.batch_dim is not None and info.sharding is not None:
                    flows[argument] = self._make(varies=set(info.sharding[info.batch_dim]) & self._axes)
            elif info.role == "param":
                flows[argument] = self._make(shards=set(info.axes) & self._axes, parameter=info.name)
            elif info.role in CROSSING_ROLES:
                flows[argument] = shared.crossing.get(info.name, self._own)
        return flows

    def _visit(self, op: ir.Operation) -> None:
        kind = _kind(op)
        if kind == "constant":
            return
        flows, operands = self._flows, op.operands
        if kind == "other" or kind == "scale" or kind == "sum":
            given = frozenset([flow for operand in operands if (flow := flows.get(operand)) is not None])
            if kind == "scale" and operands[0] in self._members:
                self._members[op.results[0]] = self._members[operands[0]]
            if kind == "scale" and len(given) > 1:
                given = self._without_factors(op, given)
            flow = self._join(op, kind, given) if given else self._same
            if flow is not self._same:
                for result in op.results:
                    flows[result] = flow
        elif kind == "collective":
            sent = [self._members.get(operand) or [self._flow(operand)] for operand in operands]
            self._futures[op.results[0]] = [self._collective(op, members) for members in sent]
        elif kind == "wait":
            arrived = self._futures.get(operands[0]) or [[self._own]] * len(op.results)
            for result, members in zip(op.results, arrived, strict=True):
                self._pack(op, result, members)
        elif kind == "pack":
            self._pack(op, op.results[0], [self._flow(operand) for operand in operands])
        elif kind == "unpack":
            members = self._members.get(operands[0], [])
            if len(members) != len(op.results):
                members = [self._flow(operands[0])] * len(op.results)
            flows.update(zip(op.results, members, strict=True))
        elif kind == "accumulate":
            half = len(operands) // 2
            for index, result in enumerate(op.results):
                pair = frozenset((self._flow(operands[index]), self._flow(operands[half + index])))
                flows[result] = self._join(op, "sum", pair)
        elif kind == "call":
            callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            flows.update(
                zip(op.results, self._shared.results.get(callee) or [self._own] * len(op.results), strict=True)
            )
        elif kind == "slice":
            flow = self._flow(operands[0])
            flows[op.results[0]] = self._make(
                flow.varies, flow.reduced, flow.shards | self._axes_of(op), flow.parameter, flow.faults
            )
        else:  # random
            for result in op.results:
                flows[result] = self._own

    def _pack(self, op: ir.Operation, value: ir.Value, members: list[Flow]) -> None:
        """Note what a tensor is that holds the `members`; as a whole it is all of them together."""
        if len(members) == 1:
            self._flows[value] = members[0]
            return
        self._members[value] = members
        self._flows[value] = self._join(op, "scale", frozenset(members))

    def _without_factors(self, op: ir.Operation, given: frozenset[Flow]) -> frozenset[Flow]:
        """Tell what is scaled, which has the result's type, from its factors; of these only what varies matters."""
        type_ = op.results[0].type
        scaled: list[Flow] = []
        factors: list[Flow] = []
        for operand in op.operands:
            flow = self._flows.get(operand)
            if flow is not None:
                (scaled if operand.type == type_ else factors).append(flow)
        if not scaled:
            return given
        return frozenset(scaled + [self._join(op, "other", frozenset((factor,))) for factor in factors])

    def _axes_of(self, op: ir.Operation) -> frozenset[str]:
        return self._axes.intersection(read_strings(op.attributes["axes"]) or ())

    def _join(self, op: ir.Operation, kind: str, flows: frozenset[Flow]) -> Flow:
        key = (kind, flows)
        known = self._joined.get(key)
        if known is not None:
            return known
        varies = frozenset().union(*[flow.varies for flow in flows])
        reduced = frozenset().union(*[flow.reduced for flow in flows])
        still = [(axis, number) for axis, number in reduced if axis not in varies]
        if kind == "other":
            for flow in flows:
                if flow.shards and flow.parameter and flow.parameter not in self._shared.uses:
                    self._shared.uses[flow.parameter] = (op, flow.shards)
            joined = self._make(varies, [(axis, NEW) for axis, _ in still])
            self._joined[key] = joined
            return joined
        shards = frozenset().union(*[flow.shards for flow in flows])
        parameter = min([flow.parameter for flow in flows if flow.parameter and flow.shards], default="")
        faults = set().union(*[flow.faults for flow in flows])
        mixed = [(axis, number) for axis, number in sorted(reduced) if axis in varies and number != NEW]
        if kind == "sum" and mixed:
            number = self._shared.number(op)
            faults.update(Fault("mixed", axis, number, first) for axis, first in mixed)
            return self._make(varies, still, shards, parameter, faults)
        joined = self._make(varies, still, shards, parameter, faults)
        self._joined[key] = joined
        return joined

    def _collective(self, op: ir.Operation, flows: Sequence[Flow]) -> list[Flow]:
        axes = self._axes_of(op)
        if op.name == "hp.all_gather":
            names = read_strings(op.attributes["hp.fqn"]) if "hp.fqn" in op.attributes else None
            for flow in flows if names else ():
                if flow.parameter and flow.parameter not in (names or ()):
                    self._shared.misnamed[flow.parameter] = op
            return [
                self._make(
                    flow.varies - axes,
                    flow.reduced | {(axis, NEW) for axis in flow.varies & axes},
                    flow.shards - axes,
                    flow.parameter,
                    flow.faults,
                )
                for flow in flows
            ]
        if op.name == "hp.reduce_scatter":
            return [self._reduce(op, flow, axes, splits=True) for flow in flows]
        if op.name == "hp.all_reduce" and "coordinates" not in op.attributes:
            return [self._reduce(op, flow, axes, splits=False) for flow in flows]
        return list(flows)

    def _reduce(self, op: ir.Operation, flow: Flow, axes: frozenset[str], *, splits: bool) -> Flow:
        number = self._shared.number(op)
        faults = set(flow.faults)
        for axis in axes:
            first = sorted(by for over, by in flow.reduced if over == axis and by != NEW)
            if first:
                faults.add(Fault("twice", axis, number, first[0]))
            elif axis in flow.shards:
                faults.add(Fault("split", axis, number))
        reduced = {(axis, by) for axis, by in flow.reduced if axis not in axes} | {(axis, number) for axis in axes}
        return self._make(flow.varies - axes, reduced, flow.shards | (axes if splits else frozenset()), "", faults)


def _kind(op: ir.Operation) -> str:
    name = op.name
    if name == "torch.operator":
        return "random" if effect_of(op) is Effect.RANDOM else _kind_of_operator(operator_name(op))
    return _kind_of_name(name)


@cache
def _kind_of_name(name: str) -> str:
    if name in _COLLECTIVES:
        return "collective"
    effect = effect_of_name(name)
    if name.startswith("torch.constant.") or effect is Effect.TERMINATOR:
        return "constant"
    if name in _RANDOM or effect is Effect.RANDOM:
        return "random"
    return _KINDS.get(name) or _kind_of_operator(name.removeprefix("torch.").removesuffix(".default"))


@cache
def _kind_of_operator(name: str) -> str:
    if name in _SUMS:
        return "sum"
    if name in _SCALES:
        return "scale"
    return "constant" if name in _CONSTANTS else "other"
