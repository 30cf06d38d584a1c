"""Rules on reductions over data axes, V9 to V13, proved by `gradient_flow` on one function or those of all stages."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch_mlir import ir

from ...dialect.attributes import read_strings
from ...dialect.signature import Signature, ValueInfo, return_of
from ...mesh import Mesh
from .findings import Findings, place_in_model
from .gradient_flow import NEW, Fault, Flow, Flows, GradientFlow

Analysed = tuple[ir.Operation, Signature, GradientFlow]
"""A function, its signature, and what it returns."""


class ReductionProof:
    """Holds what the rules on reductions need.

    Args:
        flows: of the module.
        functions: all that return gradients, losses or weights, or take arguments that axes split.
        mesh: of the module.
        findings: gets what is wrong.
    """

    def __init__(self, flows: Flows, functions: Sequence[Analysed], mesh: Mesh, findings: Findings):
        self._flows = flows
        self._findings = findings
        self._expected = "avg"
        self._known = bool(flows.data_axes)
        self._split: set[str] = set()
        self._parameters: dict[str, ValueInfo] = {}
        candidates = dict.fromkeys(flows.data_axes)
        for _, signature, flow in functions:
            if signature.results_with_role("weight"):
                self._expected = "sum"
            self._split.update(axis for info in signature.arguments for axis in info.axes)
            self._parameters.update((name, info) for info in signature.with_role("param") for name in info.names)
            if not self._known:
                for info in signature.results_with_role("grad"):
                    reduced = sorted(flow.results[info.index].reduced)
                    candidates.update(dict.fromkeys(axis for axis, by in reduced if by != NEW))
        self.data_axes = [axis for axis in candidates if mesh.axis_size(axis) > 1]
        self._return: ir.Operation
        self._flow: GradientFlow

    def check_uses(self) -> None:
        """Check rule V9 on all functions that were swept."""
        for name, op in self._flows.misnamed.items():  # V9
            self._add(op, f"gathers '{name}'%s, but names {_named(op)} as what it gathers")
        for name, (op, shards) in self._flows.uses.items():
            for axis in self.data_axes:
                if axis in shards:  # V9
                    self._add(op, f"computes with '{name}'%s, which is split over data axis '{axis}': gather it first")

    def check(
        self,
        function: ir.Operation,
        signature: Signature,
        flow: GradientFlow,
        *,
        only: Collection[str] | None = None,
    ) -> None:
        """Check the rules V10 to V13 on what a function returns; with `only`, on the gradients of these names."""
        self._return = return_of(function)
        self._flow = flow
        for info in signature.results_with_role("grad"):
            if info.name in self._parameters and (only is None or info.name in only):
                self._check_gradient(info, self._parameters[info.name])
        for info in (*signature.results_with_role("loss"), *signature.results_with_role("weight")):
            self._check_kinds(info, f"the {info.role}", self._reduced(info))  # V12

    def check_loss(
        self, function: ir.Operation, signature: Signature, flow: GradientFlow, *, only: Collection[str]
    ) -> None:
        """Check that the loss and the weight of a whole step, where `only` has them, are reduced over the data axes."""
        self._return = return_of(function)
        self._flow = flow
        for info in (*signature.results_with_role("loss"), *signature.results_with_role("weight")):
            for axis in self.data_axes:
                if info.name in only and axis in flow.results[info.index].varies:  # V26
                    self._missing(info, f"the {info.role}", axis)

    def _reduced(self, info: ValueInfo) -> list[tuple[str, int]]:
        return sorted(self._flow.results[info.index].reduced)

    def _check_gradient(self, info: ValueInfo, parameter: ValueInfo) -> None:
        flow = self._flow.results[info.index]
        what = f"gradient of '{parameter.name}'"
        faults = self._first_faults(flow)
        for fault in faults.values():
            self._report(fault, what)
        reduced = [(axis, by) for axis, by in self._reduced(info) if axis not in faults and by != NEW]
        right = not faults
        for number in sorted({by for _, by in reduced}):
            op = self._flows.ops[number]
            told = _names(op)
            if told and not set(told).intersection(parameter.names):  # V10
                notes = [(self._return, f"returned here as result {info.index}")]
                self._add(op, f"what is returned as {what}%s is reduced for {_named(op)}", notes=notes)
                right = False
        for axis in self.data_axes:
            if axis in faults or axis in dict(flow.reduced):
                continue
            if axis in flow.varies or self._expected == "sum":  # V10
                self._missing(info, what, axis)
                right = False
        for axis, by in reduced:
            if self._known and axis not in self.data_axes and axis not in self._split:  # V11
                self._add(
                    self._flows.ops[by],
                    f"{what}%s is reduced over axis '{axis}', over which neither the batch nor an argument is split",
                )
                right = False
        self._check_kinds(info, what, [(axis, by) for axis, by in reduced if axis in self.data_axes])
        split = [axis for axis in self.data_axes if axis in flow.shards]
        expected = [axis for axis in self.data_axes if axis in parameter.axes]
        if right and split != expected:  # V13
            self._add(self._producer(info), f"{what}%s is split over data axes {split}, its parameter over {expected}")

    def _first_faults(self, flow: Flow) -> dict[str, Fault]:
        """Return one fault per axis, the first in the order of the ops."""
        first: dict[str, Fault] = {}
        for fault in sorted(flow.faults, key=lambda fault: fault.op):
            if fault.axis in self.data_axes or fault.kind == "twice":
                first.setdefault(fault.axis, fault)
        return first

    def _report(self, fault: Fault, what: str) -> None:
        op, axis = self._flows.ops[fault.op], fault.axis
        first = self._flows.ops[fault.first] if fault.first != NEW else None
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
            op = self._flows.ops[by]
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


def _names(op: ir.Operation) -> tuple[str, ...]:
    """Return the names of the parameters that a collective says it is for; none if it says nothing."""
    return (read_strings(op.attributes["hp.fqn"]) or ()) if "hp.fqn" in op.attributes else ()


def _named(op: ir.Operation) -> str:
    return ", ".join(f"'{name}'" for name in _names(op))
