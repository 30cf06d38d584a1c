"""Takes out the tokens by which AOTAutograd keeps operators with effects in order.

In the IR their order is that of the text.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._functorch._aot_autograd import descriptors
from torch.fx import GraphModule, Node

_INPUTS = (descriptors.ForwardTokenAOTInput, descriptors.BackwardTokenAOTInput)
_OUTPUTS = (descriptors.ForwardTokenAOTOutput, descriptors.BackwardTokenAOTOutput)


def drop_tokens(graph_module: GraphModule) -> None:
    """Turn ``with_effects(token, op, ...)`` into a call of the operator, in place."""
    graph = graph_module.graph
    calls = graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)
    if not calls:
        return
    output = graph.output_node()
    returned: Any = output.args[0]
    kept = [
        (value, description)
        for value, description in zip(returned, output.meta["desc"], strict=True)
        if not isinstance(description, _OUTPUTS)
    ]
    output.args = (type(returned)(value for value, _ in kept),)
    output.meta["desc"] = [description for _, description in kept]
    for node in calls:
        _call_directly(node)
    for node in graph.find_nodes(op="placeholder"):
        if isinstance(node.meta.get("desc"), _INPUTS):
            node.replace_all_uses_with(None)
            graph.erase_node(node)


def _call_directly(node: Node) -> None:
    """Replace one call; the pieces of its result are counted from the token, which is the first."""
    graph = node.graph
    target: Any = node.args[1]
    count = len(target._schema.returns)
    with graph.inserting_before(node):
        call = graph.call_function(target, node.args[2:], node.kwargs)
    value: Any = node.meta.get("val")
    call.meta = dict(node.meta)
    if value is not None:
        call.meta["val"] = value[1] if count == 1 else tuple(value[1:])
    for piece in list(node.users):
        index: Any = piece.args[1]
        assert piece.target is operator.getitem
        if index == 0:
            piece.replace_all_uses_with(None)  # type: ignore[arg-type]
        elif count == 1:
            piece.replace_all_uses_with(call)
        else:
            piece.args = (call, index - 1)
            continue
        graph.erase_node(piece)
    graph.erase_node(node)
