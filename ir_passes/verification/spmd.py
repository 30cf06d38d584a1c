"""Rules of level "spmd", besides those on signatures.

- V1: the module has one function, ``@joint``, of one block.
- V8: every `hp.sharding` names the module's mesh, and the local type is that of the largest shard: per axis, major to
  minor, ceil(rows / ranks) of `hp.full_shape`. What has no `hp.sharding` is whole.
- V9: no op computes with a parameter's shard over a data axis; it is gathered first.
- V10: every gradient is reduced exactly once over each data axis; what is the same on all ranks of it needs no
  averaging.
- V11: it is reduced over no other axis, unless that splits an argument.
- V12: the reduction is "avg" with a plain loss, "sum" where the function returns a weight; that of the loss too.
- V13: over the data axes a gradient is split as its parameter is.

The data axes are those that split the inputs' batch dims; where no input is split, those over which any gradient is
reduced. Axes of one rank need nothing and may have anything.
"""

from __future__ import annotations

from torch_mlir import ir

from ...dialect.attributes import find_mesh
from ...dialect.signature import Signature, ValueInfo, read_signature, return_of
from ...mesh import Mesh, local_shape
from .findings import Findings, place_in_model
from .gradient_flow import NEW, Fault, Flow, GradientFlow
from .joint import attribute_dictionaries, check_mesh_names, step_function
from .signature_rules import check_signature


def check_spmd(module: ir.Operation, findings: Findings) -> None:
    """Check the rules of level "spmd"."""
    function = step_function(module)  # V1
    found = find_mesh(module)
    signature = read_signature(function, found[1] if found else None)
    check_mesh_names(function, signature, found, findings)  # V8
    check_signature(function, signature, findings)
    if found is not None:
        _check_types(function, signature, found[1], findings)
        _Proof(function, signature, found[1], findings).check()


def _check_types(function: ir.Operation, signature: Signature, mesh: Mesh, findings: Findings) -> None:
    for where, info, _ in attribute_dictionaries(function, signature):
        sharding = info.sharding or ((),) * len(info.type.shape)
        full = [-1 if size is None else size for size in info.full_shape]
        local = local_shape(full, sharding, mesh)
        expected = tuple(
            size if full_size is not None and actual is not None else actual
            for size, full_size, actual in zip(local, info.full_shape, info.type.shape, strict=True)
        )
        if info.type.shape != expected:  # V8
            split = str([list(axes) for axes in sharding]) if info.sharding else "not split"
            findings.add(
                function,
                f"{where}: expected the local type of {full}, {split}, to be {info.type.with_shape(expected)}, "
                f"got: {info.type}",
            )


class _Proof:
    """Holds what the rules on reductions need."""

    def __init__(self, function: ir.Operation, signature: Signature, mesh: Mesh, findings: Findings):
        self._signature = signature
        self._findings = findings
        self._return = return_of(function)
        self._flow = GradientFlow(function, signature, mesh)
        self._expected = "sum" if signature.results_with_role("weight") else "avg"
        self._known = bool(signature.data_axes)
        self._data_axes = [axis for axis in self._candidates() if mesh.axis_size(axis) > 1]
        self._split = {axis for info in signature.arguments for axis in info.axes}

    def _candidates(self) -> list[str]:
        if self._known:
            return list(self._signature.data_axes)
        axes: dict[str, None] = {}
        for info in self._signature.results_with_role("grad"):
            axes.update(dict.fromkeys(axis for axis, by in self._reduced(info) if by != NEW))
        return list(axes)

    def _reduced(self, info: ValueInfo) -> list[tuple[str, int]]:
        return sorted(self._flow.results[info.index].reduced)

    def check(self) -> None:
        """Check the rules V9 to V13."""
        for name, (op, shards) in self._flow.uses.items():
            for axis in self._data_axes:
                if axis in shards:  # V9
                    self._add(op, f"computes with '{name}'%s, which is split over data axis '{axis}': gather it first")
        parameters = {name: info for info in self._signature.with_role("param") for name in info.names}
        for info in self._signature.results_with_role("grad"):
            if info.name in parameters:
                self._check_gradient(info, parameters[info.name])
        for info in (*self._signature.results_with_role("loss"), *self._signature.results_with_role("weight")):
            self._check_kinds(info, f"the {info.role}", self._reduced(info))  # V12

    def _check_gradient(self, info: ValueInfo, parameter: ValueInfo) -> None:
        flow = self._flow.results[info.index]
        what = f"gradient of '{parameter.name}'"
        faults = self._first_faults(flow)
        for fault in faults.values():
            self._report(fault, what)
        reduced = [(axis, by) for axis, by in self._reduced(info) if axis not in faults and by != NEW]
        right = not faults
        for axis in self._data_axes:
            if axis in faults or axis in dict(flow.reduced):
                continue
            if axis in flow.varies or self._expected == "sum":  # V10
                self._missing(info, what, axis)
                right = False
        for axis, by in reduced:
            if self._known and axis not in self._data_axes and axis not in self._split:  # V11
                self._add(
                    self._flow.ops[by],
                    f"{what}%s is reduced over axis '{axis}', over which neither the batch nor an argument is split",
                )
                right = False
        self._check_kinds(info, what, [(axis, by) for axis, by in reduced if axis in self._data_axes])
        split = [axis for axis in self._data_axes if axis in flow.shards]
        expected = [axis for axis in self._data_axes if axis in parameter.axes]
        if right and split != expected:  # V13
            self._add(self._producer(info), f"{what}%s is split over data axes {split}, its parameter over {expected}")

    def _first_faults(self, flow: Flow) -> dict[str, Fault]:
        """Return one fault per axis, the first in the order of the ops."""
        first: dict[str, Fault] = {}
        for fault in sorted(flow.faults, key=lambda fault: fault.op):
            if fault.axis in self._data_axes or fault.kind == "twice":
                first.setdefault(fault.axis, fault)
        return first

    def _report(self, fault: Fault, what: str) -> None:
        op, axis = self._flow.ops[fault.op], fault.axis
        first = self._flow.ops[fault.first] if fault.first != NEW else None
        if fault.kind == "twice" and first is not None:  # V10
            self._add(op, f"{what}%s is reduced twice over axis '{axis}'", notes=[(first, "first reduced here")])
        elif fault.kind == "mixed" and first is not None:  # V10
            self._add(
                op,
                f"{what}%s joins values that are reduced over axis '{axis}' and values that are not",
                notes=[(first, "reduced here")],
            )
        else:  # V10
            self._add(op, f"{what}%s is reduced over axis '{axis}', which splits it: each rank has another piece")

    def _check_kinds(self, info: ValueInfo, what: str, reduced: list[tuple[str, int]]) -> None:
        for axis, by in reduced:
            if by == NEW:
                continue
            op = self._flow.ops[by]
            reduce = ir.StringAttr(op.attributes["reduce"]).value
            if reduce != self._expected:  # V12
                why = "returns a weight" if self._expected == "sum" else "returns a mean loss"
                self._add(
                    op,
                    f"{what}%s is reduced over axis '{axis}' by '{reduce}', expected '{self._expected}': "
                    f"the function {why}",
                )

    def _missing(self, info: ValueInfo, what: str, axis: str) -> None:
        producer = self._producer(info)
        notes = [(self._return, f"returned here as result {info.index}")] if producer is not self._return else []
        self._add(producer, f"{what}%s is not reduced over axis '{axis}'", notes=notes)

    def _producer(self, info: ValueInfo) -> ir.Operation:
        owner = self._return.operands[info.index].owner
        return self._return if isinstance(owner, ir.Block) else owner.operation

    def _add(self, op: ir.Operation, message: str, notes: list[tuple[ir.Operation, str]] | None = None) -> None:
        """Note a broken rule; ``%s`` is where the user's module goes."""
        self._findings.add(op, message.replace("%s", place_in_model(op), 1), notes=notes or [])
