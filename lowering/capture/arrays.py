"""NumPy arrays in a step: dynamo computes with them as tensors, and a change of one would stay in the graph."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from ...errors import CaptureError
from .source_places import last_user_place

_WRAPPED = "wrapped_"

# What gives a view of its first operand.
_VIEWS = frozenset({"getitem", "ravel", "reshape", "view", "transpose", "squeeze", "swapaxes", "diagonal", "asarray"})

_OPERATORS = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
    "matmul",
)
_CHANGES = frozenset(
    {"__setitem__", "setitem", "fill", "sort", "put", "partition", "resize", "itemset", "copyto", "fill_diagonal"}
    | {f"i{name}" for name in _OPERATORS}
    | {f"__i{name}__" for name in _OPERATORS}
)


def check_arrays(graph: Graph) -> None:
    """Refuse a step that changes an array which was there before it.

    Args:
        graph: as dynamo made it.

    Raises:
        CaptureError: at the user's line.
    """
    for node in graph.nodes:
        name = _name(node)
        if not name:
            continue
        changed: list[Any] = [node.args[0]] if name in _CHANGES and node.args else []
        if node.kwargs.get("out") is not None:
            changed.append(node.kwargs["out"])
        for value in changed:
            base = value
            while isinstance(base, Node) and _name(base) in _VIEWS and base.args:
                base = base.args[0]
            if isinstance(base, Node) and base.op == "placeholder":
                place = last_user_place(node.meta.get("stack_trace") or "") or "<unknown>:0"
                raise CaptureError(
                    f"{place}: a NumPy array is changed in place, which a compiled step would not do: keep state in a "
                    "buffer of the model and change it in place (copy_, add_)"
                )


def _name(node: Node) -> str:
    """Return what NumPy calls the function of a node, empty for one that is not NumPy's."""
    name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
    return name.removeprefix(_WRAPPED) if name.startswith(_WRAPPED) else ""
