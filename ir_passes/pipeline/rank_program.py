"""The functions that the ranks of a pipeline enter: calls, messages and sums, in the order of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch_mlir import ir

from ...dialect.attributes import future_type, i64_attr
from ...dialect.signature import Signature, ValueInfo, write_signature
from ..build import Builder, Site
from ..stage_function import FORWARD
from .calls import Call, Place
from .messages import Message, Traffic, by_type
from .outputs import gather_output
from .rank_signature import RankArguments
from .staged import StagedModule
from .totals import StepShape, StepTotals

_COUNTED = ("loss", "weight")


@dataclass(frozen=True)
class RankPlan:
    """All there is to know of one rank's function before it is made.

    Attributes:
        kind: "train" or "evaluate".
        position: of the rank on the pipeline axis.
        arguments: of the function.
        calls: in order.
        traffic: messages of all ranks.
        shape: of the step.
    """

    kind: str
    position: int
    arguments: RankArguments
    calls: Sequence[Call]
    traffic: Traffic
    shape: StepShape

    @property
    def name(self) -> str:
        """The function's symbol."""
        return f"{'rank' if self.kind == 'train' else 'evaluate'}{self.position}"


def build_rank_function(staged: StagedModule, plan: RankPlan, block: ir.Block) -> None:
    """Make one rank's function.

    1. Before a call: receives that are due are started, those that it needs are waited for, and its parts of the inputs
       are taken.
    2. After a call: what other ranks take is sent; loss, weight and gradients are added to the sums so far, the first
       of which are the sums; new buffers take the place of the old.
    3. At the end: totals and, in an evaluation, the outputs.

    Args:
        staged: the module.
        plan: of the function.
        block: to put it in, at the end.
    """
    _RankFunction(staged, plan, block).build()


class _RankFunction:
    """One function in the making: the values that exist so far, by what they are."""

    def __init__(self, staged: StagedModule, plan: RankPlan, block: ir.Block):
        self._staged = staged
        self._plan = plan
        location = staged.module.location
        types = [ir.Type.parse("!torch.int") if i.role == "size" else i.type.to_mlir() for i in plan.arguments.infos]
        self._function = ir.Operation.create(
            "func.func",
            regions=1,
            attributes={
                "sym_name": ir.StringAttr.get(plan.name),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
                "hp.coordinate": i64_attr(plan.position),
                "hp.kind": ir.StringAttr.get(plan.kind),
            },
            loc=location,
            ip=ir.InsertionPoint(block),
        )
        body = ir.Block.create_at_start(self._function.regions[0], types, [location] * len(types))
        self._arguments = list(body.arguments)
        self._builder = Builder(self._function, staged.mesh_name, staged.mesh)
        self._site = Site(ir.InsertionPoint(body), location)
        self._totals = StepTotals(self._builder, self._site, plan.shape, plan.position)
        self._mesh = ir.FlatSymbolRefAttr.get(staged.mesh_name)
        self._values: dict[tuple[str, int], ir.Value] = {}
        self._futures: dict[Message, ir.Value] = {}
        self._parts: dict[tuple[str, int], ir.Value] = {}
        self._rows: dict[int, ir.Value] = {}
        self._buffers: dict[str, ir.Value] = {}
        self._before: dict[tuple[str, int], ir.Value] = {}
        self._sums: dict[str, ir.Value] = {}
        self._gradients: dict[tuple[str, int], ir.Value] = {}
        self._outputs: dict[str, tuple[ValueInfo, dict[int, ir.Value]]] = {}

    def build(self) -> None:
        """Make the function's body and write its signature."""
        plan, staged = self._plan, self._staged
        for index, call in enumerate(plan.calls):
            self._run(Place(plan.position, index), call)
        results = self._finish()
        self._builder.create(self._site, "func.return", [value for _, value in results], [])
        infos = tuple(replace(info, index=index) for index, (info, _) in enumerate(results))
        write_signature(self._function, Signature(plan.arguments.infos, infos), staged.mesh_name, staged.mesh)

    def _argument(self, role: str, name: str) -> ir.Value:
        return self._arguments[self._plan.arguments.places[role, name]]

    def _run(self, place: Place, call: Call) -> None:
        traffic = self._plan.traffic
        for message in traffic.posted.get(place, ()):
            self._post(message)
        for message in traffic.awaited.get(place, ()):
            self._await(message)
        signature = call.function.signature
        operands = [self._operand(call, info) for info in signature.arguments]
        op = self._builder.create(
            replace(self._site, location=call.function.op.location),
            "func.call",
            operands,
            call.function.result_types,
            {"callee": ir.FlatSymbolRefAttr.get(call.function.name), "hp.microbatch": i64_attr(call.microbatch)},
        )
        results = list(zip(signature.results, op.results, strict=True))
        for info, value in results:
            if info.role in ("outgoing", "saved"):
                self._values[info.name, call.microbatch] = value
        for message in traffic.sent.get(place, ()):
            self._send(message)
        if self._plan.kind == "train":
            self._count(call, [item for item in results if item[0].role in (*_COUNTED, "grad")])
            self._buffers.update((info.name, value) for info, value in results if info.role == "buffer")
            return
        self._count(call, [item for item in results if item[0].role in _COUNTED])
        for info, value in results:
            if info.role == "output":
                self._outputs.setdefault(info.name, (info, {}))[1][call.microbatch] = value

    def _operand(self, call: Call, info: ValueInfo) -> ir.Value:
        microbatch = call.microbatch
        if info.role in ("incoming", "saved"):
            return self._values[info.name, microbatch]
        if info.role == "buffer":
            # The backward is given what its forward was given.
            key = (info.name, microbatch)
            if call.function.task == FORWARD:
                self._before[key] = self._buffers.get(info.name, self._argument("buffer", info.name))
            return self._before.get(key, self._argument("buffer", info.name))
        if info.role == "input" and info.batch_dim is not None:
            return self._part(info, microbatch)
        if info.role == "size" and info.name == self._plan.shape.rows:
            return self._part_rows(microbatch)
        return self._argument(info.role, info.name)

    def _part(self, info: ValueInfo, microbatch: int) -> ir.Value:
        """Return a microbatch of an input; what needs it later is given the same one."""
        whole, count = self._argument("input", info.name), self._plan.shape.microbatches
        if count == 1:
            return whole
        key = (info.name, microbatch)
        if key not in self._parts:
            attributes = {"index": i64_attr(microbatch), "count": i64_attr(count), "dim": i64_attr(info.batch_dim or 0)}
            op = self._builder.create(self._site, "hp.microbatch", [whole], [info.type.to_mlir()], attributes)
            self._parts[key] = op.results[0]
        return self._parts[key]

    def _part_rows(self, microbatch: int) -> ir.Value:
        """Return the rows of a microbatch, `(rows + count - 1 - index) // count`: the larger ones come first."""
        builder, count = self._builder, self._plan.shape.microbatches
        rows = self._argument("size", self._plan.shape.rows)
        if count == 1:
            return rows
        if microbatch not in self._rows:
            for name, operand in (("add", count - 1 - microbatch), ("floordiv", count)):
                operands = [rows, builder.integer(operand)]
                rows = builder.create(self._site, f"torch.aten.{name}.int", operands, [rows.type]).results[0]
            self._rows[microbatch] = rows
        return self._rows[microbatch]

    def _channel(self, message: Message, peer: int) -> dict[str, ir.Attribute]:
        attributes = {
            "mesh": self._mesh,
            "axis": ir.StringAttr.get(self._plan.shape.axis),
            "peer": i64_attr(peer),
            "label": ir.StringAttr.get(message.label),
        }
        return attributes | ({"header": ir.UnitAttr.get()} if message.header else {})

    def _post(self, message: Message) -> None:
        types = [future_type([info.type.to_mlir() for info in message.values])]
        op = self._builder.create(self._site, "hp.recv", [], types, self._channel(message, message.sender))
        self._futures[message] = op.results[0]

    def _await(self, message: Message) -> None:
        types = [info.type.to_mlir() for info in message.values]
        attributes = {"label": ir.StringAttr.get(message.label)}
        op = self._builder.create(self._site, "hp.wait", [self._futures.pop(message)], types, attributes)
        for info, value in zip(message.values, op.results, strict=True):
            self._values[info.name, message.microbatch] = value

    def _send(self, message: Message) -> None:
        operands = [self._values[info.name, message.microbatch] for info in message.values]
        self._builder.create(self._site, "hp.send", operands, [], self._channel(message, message.receiver))

    def _count(self, call: Call, results: Sequence[tuple[ValueInfo, ir.Value]]) -> None:
        """Add loss, weight and gradients of a call to the sums."""
        sums: list[tuple[ValueInfo, ir.Value, ir.Value]] = []
        for info, value in results:
            if info.role == "grad":
                before = self._gradients.setdefault((info.name, call.function.stage), value)
            else:
                before = self._sums.get(info.role)
                if before is None:
                    dtype = self._plan.shape.sum_dtype(info.role, info.type.dtype)
                    before = self._sums[info.role] = self._builder.cast(self._site, value, dtype)
                    continue
            if before is not value:
                sums.append((info, before, value))
        if not sums:
            return
        sums = by_type(sums, lambda item: item[1].type)
        operands = [before for _, before, _ in sums] + [value for _, _, value in sums]
        op = self._builder.create(self._site, "hp.accumulate", operands, [before.type for _, before, _ in sums])
        for (info, _, _), total in zip(sums, op.results, strict=True):
            if info.role == "grad":
                self._gradients[info.name, call.function.stage] = total
            else:
                self._sums[info.role] = total

    def _finish(self) -> list[tuple[ValueInfo, ir.Value]]:
        """Return the results of the function, with what they are."""
        shape, totals = self._plan.shape, self._totals
        told = totals.tell(self._sums)
        gradients: dict[str, ir.Value] = {}
        if self._plan.kind == "train":
            parts: dict[str, list[ir.Value]] = {}
            for (name, _), value in self._gradients.items():
                parts.setdefault(name, []).append(value)
            parameters = {
                info.name: value
                for info, value in zip(self._plan.arguments.infos, self._arguments, strict=True)
                if info.role == "param"
            }
            gradients = totals.sum_owners(parts, parameters)
        told, gradients = totals.divide(told, gradients)
        results = [(entry.info, told[entry.info.role]) for entry in shape.told]
        infos = {gradient.info.name: gradient.info for gradient in shape.gradients}
        results += [(infos[name], value) for name, value in gradients.items()]
        results += [(self._new_buffer(name), value) for name, value in self._buffers.items()]
        for info, values in self._outputs.values():
            ordered = [values[microbatch] for microbatch in sorted(values)]
            results.append(gather_output(self._builder, self._site, info, ordered, shape.data_axes))
        return results

    def _new_buffer(self, name: str) -> ValueInfo:
        return replace(self._plan.arguments.infos[self._plan.arguments.places["buffer", name]], stages=())
