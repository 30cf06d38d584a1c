"""Custom autograd functions whose backward changes tensors in place: never the results of the forward, nor its inputs.

In-place changes of what such a function saved, or of the gradient it is given, are taken out as all others are and give
eager torch's gradients. Where what it saved is a result of the step too, eager torch would change that result behind
the user's back, and an evaluation would have to run the backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    ParamAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch.fx import GraphModule, Node

from ...errors import CaptureError
from .source_places import last_user_place


def check_backward_changes(joint: GraphModule, captured: GraphModule, source: str) -> None:
    """Refuse backwards that change results or inputs of the forward.

    Args:
        joint: the graph as AOTAutograd made it.
        captured: the graph as dynamo made it.
        source: where to say it that no line is known of.

    Raises:
        CaptureError: at the user's line.
    """
    for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        target: Any = node.args[0]
        description = target.meta.get("desc")
        what = "an input"
        if isinstance(description, (ParamAOTInput, BufferAOTInput)):
            what = f"'{description.target.removeprefix('model.')}'"
        raise CaptureError(f"{_place(node) or source}: the backward changes {what} in place: {_ADVICE}")
    backward = _made_of_tangents(joint)
    if _changes_in_backward(captured):
        # Also what does not depend on a gradient: whatever was computed once the backward had begun.
        order = {node: index for index, node in enumerate(joint.graph.nodes)}
        begin = min((order[node] for node in backward if node.op != "placeholder"), default=len(order))
        backward |= {node for node, index in order.items() if index >= begin}
    output = joint.graph.output_node()
    returned: Any = output.args[0]
    for node, description in zip(returned, output.meta["desc"], strict=True):
        if isinstance(description, PlainAOTOutput) and node in backward:
            what = "an output of the step" if description.idx else "the loss"
            raise CaptureError(f"{_place(node) or source}: the backward changes {what} in place: {_ADVICE}")


_ADVICE = "compute a new tensor in the backward instead"


def _place(node: Node) -> str:
    return last_user_place(node.meta.get("stack_trace") or "")


def _made_of_tangents(joint: GraphModule) -> set[Node]:
    found: set[Node] = set()
    for node in joint.graph.nodes:
        if node.op == "placeholder":
            if isinstance(node.meta.get("desc"), TangentAOTInput):
                found.add(node)
        elif any(argument in found for argument in node.all_input_nodes):
            found.add(node)
    return found


def _changes_in_backward(captured: GraphModule) -> bool:
    """Return whether the backward of a custom function has operators that work in place."""
    for module in captured.modules():
        if not isinstance(module, GraphModule):
            continue
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.autograd_function_apply):
            backward: Any = node.args[1]
            body = module.get_submodule(backward.target)
            if isinstance(body, GraphModule) and any(_is_in_place(inner) for inner in body.graph.nodes):
                return True
    return False


def _is_in_place(node: Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op == "call_method":
        return name.endswith("_") and not name.startswith("__")
    return node.op == "call_function" and (name in _OPERATORS or (name.endswith("_") and not name.startswith("_")))


_OPERATORS = {
    "setitem",
    *(f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "and", "or")),
}
