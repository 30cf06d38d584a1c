"""Checks of tensors' values within a step (`torch._check`, `_assert_async`): a compiled step leaves them out.

They compute nothing. What is computed for them alone, sizes and truth values taken out of tensors among it, which the
IR has no types for, goes with them.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten

_CHECKS: frozenset[Any] = frozenset(
    {
        aten._assert_async.default,
        aten._assert_async.msg,
        aten._assert_scalar.default,
        aten._assert_tensor_metadata.default,
        aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
    }
)


def remove_value_checks(graph: Graph) -> None:
    """Remove the checks from a graph, and what nothing else uses."""
    pending = [node for node in graph.nodes if node.op == "call_function" and node.target in _CHECKS]
    while pending:
        node = pending.pop()
        if node.users or node._erased:
            continue
        inputs = node.all_input_nodes
        graph.erase_node(node)
        pending += [producer for producer in inputs if producer.op == "call_function" and _is_pure(producer)]


def _is_pure(node: Node) -> bool:
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return not target._schema.is_mutable
    # Sizes and truth values are computed by Python's own operators.
    return getattr(target, "__module__", "") in (operator.__name__, "_operator", "torch")
