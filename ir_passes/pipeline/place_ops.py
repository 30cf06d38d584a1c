"""Writing a placement into the IR: `hp.stage` on ops, a copy of each loose op per stage that uses it."""

from __future__ import annotations

from torch_mlir import ir

from ...dialect.attributes import i64_attr
from .placement import Placement
from .step_graph import Kind, StepGraph

STAGE = "hp.stage"


def write_placement(graph: StepGraph, placement: Placement, count: int) -> None:
    """Give every op that has a stage its `hp.stage` and make the copies of those that several stages use.

    The first of its stages gets the op itself. Lists of tensors are copied in the same way and get no attribute.

    Args:
        graph: of the function; its ops are changed.
        placement: what to write.
        count: of stages.
    """
    with graph.function.context:
        marks = [i64_attr(stage) for stage in range(count)]
        copies: dict[tuple[ir.Value, int], ir.Value] = {}
        for number, node in enumerate(graph.nodes):
            stages = placement.copies.get(number, ())
            own = stages[0] if stages else placement.stages[number]
            if own is None:
                own = placement.shared.get(number)
            op = node.op
            originals = list(op.operands) if len(stages) > 1 else []
            if own is not None and copies:
                _feed(op, own, copies)
            if own is not None and node.kind is not Kind.LIST and number not in placement.shared:
                op.attributes[STAGE] = marks[own]
            after = op
            for stage in stages[1:]:
                copy = op.clone(ip=ir.InsertionPoint.after(after)).operation
                for position, operand in enumerate(originals):
                    copy.operands[position] = copies.get((operand, stage), operand)
                if node.kind is Kind.LOOSE:
                    copy.attributes[STAGE] = marks[stage]
                for result, copied in zip(op.results, copy.results, strict=True):
                    copies[result, stage] = copied
                after = copy
        if copies:
            _feed_return(graph, placement, copies)


def _feed(op: ir.Operation, stage: int, copies: dict[tuple[ir.Value, int], ir.Value]) -> None:
    for position, operand in enumerate(op.operands):
        copied = copies.get((operand, stage))
        if copied is not None:
            op.operands[position] = copied


def _feed_return(graph: StepGraph, placement: Placement, copies: dict[tuple[ir.Value, int], ir.Value]) -> None:
    returned = graph.nodes[-1].op
    for position, (operand, stage) in enumerate(zip(returned.operands, placement.returned, strict=True)):
        if stage is not None and (operand, stage) in copies:
            returned.operands[position] = copies[operand, stage]
