"""What the modules of a step cost: operations by their ops, and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch_mlir import ir

from ...dialect.signature import Signature
from ...dialect.types import tensor_type
from ...operator_costs import op_flops
from ..views import operator_name
from .placement import FOLLOWING
from .stage_cuts import ModuleNode
from .step_graph import Kind, StepGraph


def module_costs(graph: StepGraph, signature: Signature) -> ModuleNode:
    """Return the root module with the costs of all modules below it."""
    root = ModuleNode("")
    for number, flops in _op_costs(graph):
        node = graph.nodes[number]
        root.add_op(node.module, flops, None if node.backward else number)
    for info in signature.with_role("param"):
        elements = 1
        for size in info.full_shape:
            elements *= size or 1
        root.add_parameter(info.name, elements)
    return root


def forward_costs(graph: StepGraph) -> list[tuple[int, int]]:
    """Return number and operations of each op of the forward that a stage may begin with."""
    nodes = graph.nodes
    return [
        (number, flops)
        for number, flops in _op_costs(graph)
        if not nodes[number].backward and nodes[number].op.name not in FOLLOWING
    ]


def _op_costs(graph: StepGraph) -> Iterator[tuple[int, int]]:
    known: dict[tuple[str, tuple[ir.Type, ...], tuple[ir.Type, ...]], int] = {}
    for number, node in enumerate(graph.nodes):
        if node.kind is not Kind.FIXED:
            continue
        op = node.op
        key = (
            operator_name(op),
            tuple(operand.type for operand in op.operands),
            tuple(result.type for result in op.results),
        )
        flops = known.get(key)
        if flops is None:  # ops of the same name and types, of which there are many, are looked at once
            flops = known[key] = op_flops(key[0], _shapes(key[1]), _shapes(key[2]))
        yield number, flops


def _shapes(types: Sequence[ir.Type]) -> list[tuple[int | None, ...]]:
    return [found.shape for found in map(tensor_type, types) if found is not None]
