"""Normal form of a joint FX graph before it is imported: what the IR has no use for is taken out.

- `detach`, `alias`: values have no autograd history and no aliases in the IR.
- ops that return a list of views (`split`, `unbind`, `chunk`, ...) become one `slice` or `select` per piece.
- checks of values (`torch._check`) are left out.
- every draw of random numbers gets its stream; what draws in another way is refused.
- every node gets ``hp.module``, ``hp.phase`` and one user source line in its `meta`.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...errors import CaptureError
from .checkpoint_regions import number_regions
from .random_ops import number_streams, refusal
from .size_arithmetic import use_scalar_operators
from .source_places import is_user_file, last_user_place
from .value_checks import remove_value_checks

_IDENTITIES = {torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default}

aten = torch.ops.aten

# The torch dialect has the first of these without optional indices only; unsafe ones only leave out the bounds check.
_CHECKED: dict[Any, Any] = {
    aten._unsafe_index_put.default: aten.index_put.default,
    aten._unsafe_index.Tensor: aten.index.Tensor,
}


def normalize(graph_module: GraphModule, rows: int | None) -> None:
    """Bring the graph of `graph_module` to normal form, in place; results stay bitwise the same.

    Args:
        graph_module: the joint graph.
        rows: of the batch it was traced for, None where there is no fixed number.

    Raises:
        CaptureError: it draws random numbers in a way that has no stream, at the user's line.
    """
    graph = graph_module.graph
    graph.set_codegen(torch.fx.graph.CodeGen())
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _IDENTITIES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target in _VIEW_LISTS:
            _expand_view_list(node)
        elif node.target in _CHECKED:
            node.target = _CHECKED[node.target]
        else:
            reason = refusal(node)
            if reason is not None:
                raise CaptureError(f"{place_of(node)}: {reason}")
    remove_value_checks(graph)
    use_scalar_operators(graph)
    number_streams(graph, rows)
    _annotate(graph)
    number_regions(graph)
    graph.eliminate_dead_code(lambda node: not _is_droppable(node))
    graph_module.recompile()


def _is_droppable(node: Node) -> bool:
    # Only what has no op in the IR goes here; dead compute is left for hp-simplify to see and remove.
    return node.op == "get_attr" or node.target is operator.getitem


def place_of(node: Node) -> str:
    """Return ``file:line`` of the user's code that made a node."""
    return last_user_place(node.meta.get("stack_trace") or "") or "<unknown>:0"


def _annotate(graph: torch.fx.Graph) -> None:
    """Reduce what torch knows of each node's origin to a module path, a phase and one source line."""
    lines: dict[str, str | None] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
        node.meta["hp.module"] = _module_path(list(stack.values())[-1][0]) if stack else ""
        # torch does not tag all that an autograd function's own backward computes.
        is_backward = node.meta.get("partitioner_tag") == "is_backward" or any(
            made_of.meta.get("hp.phase") == "backward" for made_of in node.all_input_nodes
        )
        node.meta["hp.phase"] = "backward" if is_backward else "forward"
        trace = node.meta.get("stack_trace")
        if trace is None:
            continue
        if trace not in lines:
            frames = [line.strip() for line in trace.splitlines() if line.strip().startswith('File "')]
            users = [frame for frame in frames if is_user_file(frame[6:].split('"')[0])]
            lines[trace] = users[-1] if users else None
        node.meta["stack_trace"] = lines[trace]


def _module_path(qualified: str) -> str:
    """Turn dynamo's ``L['self'].model.layers.0`` into ``layers.0``; the model itself is the empty path."""
    path = qualified.replace("L['self']", "").lstrip(".")
    path = path.removeprefix("_modules.").removeprefix("model").lstrip(".")
    return path


def _piece(node: Node, target: Any, args: tuple[Any, ...], value: torch.Tensor) -> Node:
    with node.graph.inserting_before(node):
        piece = node.graph.call_function(target, args)
    piece.meta = {**node.meta, "val": value}
    return piece


def _expand_view_list(node: Node) -> None:
    source = node.args[0]
    assert isinstance(source, Node)
    dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    if node.target is aten.unbind.int:
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    assert isinstance(dim, int)
    values = list(node.meta["val"])
    dim %= source.meta["val"].dim()
    pieces: list[tuple[Any, tuple[Any, ...], torch.Tensor]] = []
    if node.target is aten.unbind.int:
        pieces = [(aten.select.int, (source, dim, index), value) for index, value in enumerate(values)]
    else:
        ends = _ends(node, [value.shape[dim] for value in values])
        begins = [0, *ends[:-1]]
        pieces = [
            (aten.slice.Tensor, (source, dim, begin, end, 1), value)
            for begin, end, value in zip(begins, ends, values, strict=True)
        ]
    for user in list(node.users):
        if user.target is operator.getitem:
            position = user.args[1]
            assert isinstance(position, int)
            target, args, value = pieces[position]
            user.replace_all_uses_with(_piece(node, target, args, value))
            node.graph.erase_node(user)
    node.graph.erase_node(node)


def _ends(node: Node, sizes: Sequence[Any]) -> list[Any]:
    """Return where each piece of a split ends: integers, or nodes where sizes are known only at run time."""
    if all(isinstance(size, int) for size in sizes):
        return list(itertools.accumulate(sizes))
    given = node.args[1] if len(node.args) > 1 else next(iter(node.kwargs.values()))
    listed = given if isinstance(given, (list, tuple)) else [given] * len(sizes)
    ends: list[Any] = [listed[0]]
    for size in listed[1:]:
        # The last piece of equal ones may be shorter; a slice ends where the tensor does.
        ends.append(_sum(node, ends[-1], size))
    return ends


def _sum(node: Node, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    values = [item.meta["val"] if isinstance(item, Node) else item for item in (left, right)]
    with node.graph.inserting_before(node):
        total = node.graph.call_function(operator.add, (left, right))
    total.meta = {**node.meta, "val": values[0] + values[1]}
    return total


_VIEW_LISTS = {
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
    aten.unbind.int,
    aten.chunk.default,
}
