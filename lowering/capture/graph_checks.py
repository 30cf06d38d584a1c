"""What a traced graph must not hold: outputs that are inputs, operands of mixed dtypes, regions, communication."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    InputMutationAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    PlainAOTOutput,
)
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ...errors import CaptureError
from .arrays import check_arrays
from .source_places import last_user_place
from .step_effects import remark
from .step_results import StepResults

aten = torch.ops.aten


def check_graph(graph_module: GraphModule, inputs: Sequence[str], results: StepResults, source: str) -> None:
    """Refuse what cannot be a step; make a remark of what is left out.

    Args:
        graph_module: the joint graph as AOTAutograd made it.
        inputs: names of the inputs, in the order of AOTAutograd's.
        results: what the step returns.
        source: where to say it that nothing has a place.

    Raises:
        CaptureError: at the user's line.
    """
    graph = graph_module.graph
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        name = str(node.target)
        if name.startswith("auto_functionalized"):
            raise CaptureError(
                f"{_place(node) or source}: custom operator '{node.args[0]}' changes an argument in place, which has "
                "no form in the IR: let it return the new tensor"
            )
        if isinstance(node.meta.get("val"), list) and not name.startswith(("aten.", "prims.")):
            raise CaptureError(
                f"{_place(node) or source}: custom operator '{name}' returns a list, which has no form in the IR: let "
                "it return a tuple of tensors"
            )
        if isinstance(node.target, torch._ops.HigherOrderOperator) and name != "with_effects":
            raise CaptureError(
                f"{_place(node) or source}: '{name}' has branches or loops, a step is a straight line of operators: "
                "compute both branches and choose with torch.where, and write loops of a fixed length in Python"
            )
        if name.startswith(("c10d.", "_c10d_functional.", "_c10d_functional_autograd.")):
            raise CaptureError(
                f"{_place(node) or source}: the step communicates by itself ('{name}'): leave it out, a plan says "
                "what is reduced over which ranks"
            )
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and name.rpartition(" ")[2].rstrip(">") in _ROUNDING:
            if not free_unbacked_symbols(value):
                raise CaptureError(
                    f"{_place(node) or source}: a number made of a dynamic size is rounded: divide with //, such as "
                    "x.shape[0] // 2"
                )
            raise CaptureError(
                f"{_place(node) or source}: a size or a count needs the values of a tensor, which are not known "
                "before the step runs: pass it as a Python number, or pad to a fixed size and mask"
            )
        if node.target in _ASSERTIONS:
            remark(_place(node) or source, "assert on a tensor's values is not checked by the compiled step")
        elif node.target in _PRODUCTS:
            _check_dtypes(node, source)
    _check_changes(graph_module, inputs, source)
    names = ["the loss", *(["the weight"] if results.weighted else []), *(f"output '{name}'" for name in results.names)]
    _check_aliases(graph_module, inputs, names, source)


def check_assignments(captured: GraphModule) -> None:
    """Refuse assignment to ``.data``, and changes of tensors that are the user's and no state, in dynamo's graph.

    Raises:
        CaptureError: at the user's line.
    """
    for node in captured.graph.find_nodes(op="call_function", target=torch.Tensor.set_):
        raise CaptureError(
            f"{_place(node)}: `.data` of a parameter, a buffer or an input is assigned; compute a new tensor instead"
        )

    check_arrays(captured.graph)
    for node in captured.graph.nodes:
        if not _is_in_place(node) or not node.args:
            continue
        base = node.args[0]
        while isinstance(base, Node) and base.op != "placeholder" and base.args:
            if not _shares(base):
                break
            base = base.args[0]
        if isinstance(base, Node) and base.op == "placeholder" and not _STATE.search(str(base.target)):
            raise CaptureError(
                f"{_place(node)}: a tensor that is no buffer, parameter or input is changed in place: make it a buffer "
                "of the model, or return the value beside the loss"
            )


# Dynamo's names of the step's inputs, and of parameters and buffers.
_STATE = re.compile(r"^L_leaves_|_parameters_|_buffers_", re.IGNORECASE)


def _shares(node: Node) -> bool:
    """Return whether a node of dynamo's graph may be a view of its first operand, by whether its memory is."""
    first = node.args[0]
    values = [node.meta.get("example_value"), first.meta.get("example_value") if isinstance(first, Node) else None]
    if not all(isinstance(value, torch.Tensor) for value in values):
        return False
    one, other = (value.untyped_storage() for value in values)  # type: ignore[union-attr]
    return bool(one._cdata == other._cdata)


# What makes an integer of a tensor's value: int(x), round(x), ...
_ROUNDING = {"trunc", "round", "ceil", "floor"}

_ASSERTIONS = {aten._assert_async.default, aten._assert_async.msg}

_PRODUCTS = {
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.baddbmm.default,
    aten.mv.default,
    aten.dot.default,
    aten.convolution.default,
}


def _place(node: Node) -> str:
    return last_user_place(node.meta.get("stack_trace") or "")


def _check_dtypes(node: Node, source: str) -> None:
    # On fake tensors these operators pass; on real ones they fail.
    operands = [argument.meta["val"] for argument in node.args if isinstance(argument, Node)]
    dtypes = list(dict.fromkeys(value.dtype for value in operands if isinstance(value, torch.Tensor)))
    if len(dtypes) > 1 and node.meta.get("partitioner_tag") != "is_backward":
        spelled = " and ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        operator = str(node.target).partition(".")[2].partition(".")[0]
        raise CaptureError(
            f"{_place(node) or source}: '{operator}' of {spelled} tensors: convert one, for example the batch with "
            "x.to(weight.dtype)"
        )


def _check_changes(graph_module: GraphModule, inputs: Sequence[str], source: str) -> None:
    output = graph_module.graph.output_node()
    returned: Any = output.args[0]
    for node, description in zip(returned, output.meta["desc"], strict=True):
        if isinstance(node, Node) and isinstance(description, InputMutationAOTOutput):
            target = description.mutated_input
            if isinstance(target, ParamAOTInput):
                what = f"parameter '{target.target.removeprefix('model.')}'"
            elif isinstance(target, PlainAOTInput):
                what = f"input '{inputs[target.idx]}'"
            else:
                continue
            raise CaptureError(f"{_place(node) or source}: {what} is changed in place; compute a new tensor instead")


def _check_aliases(graph_module: GraphModule, inputs: Sequence[str], names: Sequence[str], source: str) -> None:
    output = graph_module.graph.output_node()
    returned: Any = output.args[0]
    for node, description in zip(returned, output.meta["desc"], strict=True):
        if not isinstance(node, Node) or not isinstance(description, PlainAOTOutput):
            continue
        place, base = "", node
        while base.op == "call_function" and _is_view(base):
            place = place or _place(base)
            base = base.args[0]  # type: ignore[assignment]
        kind = base.meta.get("desc") if base.op == "placeholder" else None
        if isinstance(kind, PlainAOTInput):
            whose = f"input '{inputs[kind.idx]}'"
        elif isinstance(kind, (ParamAOTInput, BufferAOTInput)):
            what = "parameter" if isinstance(kind, ParamAOTInput) else "buffer"
            whose = f"{what} '{kind.target.removeprefix('model.')}'"
        else:
            continue
        what = names[description.idx] if description.idx < len(names) else "an output"
        raise CaptureError(
            f"{place or source}: {what} is {whose} or a view of it, which a step cannot hand out: return a copy, such "
            "as x.clone()"
        )


def _is_view(node: Node) -> bool:
    """Return whether an operator's result is its first operand's memory."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments or not node.args or not isinstance(node.args[0], Node):
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and not alias.is_write


_CHANGED = re.compile(
    r"modified by an inplace operation: \[[\w.]+ \[([\d, ]*)\]\], which is output \d+ of (\w+?)(?:Backward\d*)?,"
)


@contextlib.contextmanager
def changed_before_backward(captured: GraphModule) -> Iterator[None]:
    """Say where a tensor is changed in place that the backward needs, which autograd finds out too late to know.

    Raises:
        CaptureError: at the last change in place of a tensor of that shape.
    """
    try:
        yield
    except RuntimeError as error:
        found = _CHANGED.search(str(error))
        if found is None:
            raise
        shape = tuple(int(size) for size in found[1].split(",") if size.strip())
        places = [_place(node) for node in captured.graph.nodes if _changes(node, shape)]
        place = next(filter(None, reversed(places)), "")
        if not place:
            raise
        raise CaptureError(
            f"{place}: changes a tensor in place that the backward needs as it was: make a new one, such as "
            "y = y + 1 instead of y.add_(1)"
        ) from None


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_in_place(node: Node) -> bool:
    name = _name(node)
    in_place = node.op == "call_method" and name.endswith("_") and not name.startswith("__")
    return in_place or (node.op == "call_function" and name in _IN_PLACE_OPERATORS)


def _changes(node: Node, shape: tuple[int, ...]) -> bool:
    if not _is_in_place(node):
        return False
    value = node.meta.get("example_value")
    if _name(node) == "setitem":
        first = node.args[0]
        value = first.meta.get("example_value") if isinstance(first, Node) else None
    return isinstance(value, torch.Tensor) and tuple(value.shape) == shape


_IN_PLACE_OPERATORS = {"setitem", *(f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod"))}
