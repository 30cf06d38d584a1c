"""From AOTAutograd's joint graph to ours: arguments and results in order, ties merged, the tangent folded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    GradAOTOutput,
    InputMutationAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
    ViewBaseAOTInput,
)
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from ...errors import CaptureError
from ...runtime.program import Arg
from .checkpoint_regions import note_buffers
from .dynamic_sizes import DynamicSizes, lift_sizes
from .normalize import normalize, place_of
from .shared_memory import check_constant
from .source_places import last_user_place
from .step_results import StepResults


@dataclass(frozen=True)
class Described:
    """What a placeholder or an output of the joint graph is; fields as on the IR's arguments and results."""

    role: str
    names: tuple[str, ...]
    trainable: bool = False
    batch_dim: int | None = None
    dim_names: tuple[str, ...] = ()
    example: int | None = None


@dataclass
class JointGraph:
    """A captured step.

    Attributes:
        graph_module: placeholders in the order of `arguments`; returns a tuple in the order of `results`. Runs as it is
            on full tensors.
        arguments: one per placeholder: parameters, buffers, constants, inputs.
        results: loss, extra outputs, gradients, new buffers.
        state: every name of every parameter, buffer and constant to its tensor (the model's own storage).
        output_tree: structure of the extra outputs (see `runtime.trees`), None without any.
        static_inputs: the Python values of the batch by path, as a Program keeps them.
        source: ``file:line`` of the step function.
        guards: what is taken for granted of the dynamic sizes (see `runtime.size_guards`).
    """

    graph_module: GraphModule
    arguments: tuple[Described, ...]
    results: tuple[Described, ...]
    state: dict[str, torch.Tensor]
    output_tree: Any = None
    static_inputs: dict[str, Arg] = field(default_factory=dict)
    source: str = ""
    guards: tuple[str, ...] = ()


def assemble(
    graph_module: GraphModule,
    model: nn.Module,
    inputs: Sequence[str],
    dims: Mapping[str, int | None],
    step_results: StepResults,
    source: str,
    sizes: DynamicSizes | None = None,
) -> JointGraph:
    """Order placeholders and outputs, merge ties, fold the tangent, lift constants, drop what is None."""
    graph = graph_module.graph
    parameters = _by_identity(model.named_parameters(remove_duplicate=False))
    buffers = _by_identity(model.named_buffers(remove_duplicate=False))
    state = {name: tensor for names, tensor in (*parameters, *buffers) for name in names}
    canonical = {name: names[0] for names, _ in (*parameters, *buffers) for name in names}

    placeholders: dict[str, Node] = {}
    plain: dict[int, Node] = {}
    for node in graph.find_nodes(op="placeholder"):
        description = node.meta["desc"]
        if isinstance(description, (ParamAOTInput, BufferAOTInput)):
            name = canonical[_strip(description.target)]
            if name in placeholders:
                node.replace_all_uses_with(placeholders[name])
                graph.erase_node(node)
            else:
                placeholders[name] = node
        elif isinstance(description, PlainAOTInput):
            plain[description.idx] = node
        elif isinstance(description, TangentAOTInput):
            _fold_tangent(node, 1.0 if description.output == PlainAOTOutput(0) else 0.0)
        elif isinstance(description, ViewBaseAOTInput):
            name = _strip(getattr(description.base_of, "target", "an input"))
            raise CaptureError(
                f"{source}: '{name}' shares memory with another buffer, and the step changes it in place: "
                "give each its own memory (clone)"
            )
        else:
            raise CaptureError(f"{source}: cannot capture an input of kind {type(description).__name__}")
    sizes = sizes if sizes is not None else DynamicSizes()
    lifted = lift_sizes(graph_module, sizes)
    constants = _lift_constants(graph_module, model)
    state.update(constants.values_by_name)

    gradients, mutated, results = _read_outputs(graph_module, canonical, len(inputs), step_results, source)
    note_buffers(mutated, source)
    arguments: list[Described] = []
    order: list[Node] = []
    for names, tensor in parameters:
        if names[0] in placeholders:
            order.append(placeholders[names[0]])
            # One that is used and yet has no gradient is cut off from the loss (detached, under no_grad): it is not
            # trained, and saying otherwise would look like a gradient that got lost.
            trained = names[0] in gradients or not placeholders[names[0]].users
            arguments.append(Described("param", names, trainable=tensor.requires_grad and trained))
    for names, _ in buffers:
        if names[0] in placeholders:
            order.append(placeholders[names[0]])
            arguments.append(Described("buffer", names))
    for name, node in constants.nodes.items():
        order.append(node)
        arguments.append(Described("constant", (name,)))
    for name, node in lifted.items():
        order.append(node)
        arguments.append(Described("size", (name,), example=sizes.examples[name]))
    for index, name in enumerate(inputs):
        order.append(plain[index])
        names = sizes.dim_names(name, plain[index].meta["val"].dim())
        arguments.append(Described("input", (name,), batch_dim=dims[name], dim_names=names))
    for node in reversed(order):
        first = next(iter(graph.nodes))
        if node is not first:
            first.prepend(node)
    if not gradients:
        raise CaptureError(
            f"{source}: the loss does not depend on any trainable parameter: is it detached, or computed "
            "under torch.no_grad or torch.inference_mode, or are all frozen?"
        )

    values: list[Node] = [node for node, _ in results]
    described = [described for _, described in results]
    for names, _ in parameters:
        if names[0] in gradients:
            values.append(gradients[names[0]])
            described.append(Described("grad", names))
    for names, _ in buffers:
        if names[0] in mutated:
            values.append(mutated[names[0]])
            described.append(Described("buffer", names))
    graph.output_node().args = (tuple(values),)
    normalize(graph_module, _batch_rows(plain, inputs, dims))
    return JointGraph(graph_module, tuple(arguments), tuple(described), state)


def _read_outputs(
    graph_module: GraphModule, canonical: Mapping[str, str], inputs: int, step_results: StepResults, source: str
) -> tuple[dict[str, Node], dict[str, Node], list[tuple[Node, Described]]]:
    graph = graph_module.graph
    output_node = graph.output_node()
    gradients: dict[str, Node] = {}
    mutated: dict[str, Node] = {}
    plain: dict[int, Node] = {}
    returned: Any = output_node.args[0]
    for node, description in zip(returned, output_node.meta["desc"], strict=True):
        if node is None:
            continue
        if isinstance(description, GradAOTOutput):
            if not isinstance(description.grad_of, ParamAOTInput):
                continue
            name = canonical[_strip(description.grad_of.target)]
            if name in gradients:
                with graph.inserting_before(output_node):
                    total = graph.call_function(torch.ops.aten.add.Tensor, (gradients[name], node))
                total.meta.update(
                    {key: gradients[name].meta[key] for key in ("val", "stack_trace") if key in node.meta}
                )
                total.meta["partitioner_tag"] = "is_backward"
                gradients[name] = total
            else:
                gradients[name] = node
        elif isinstance(description, InputMutationAOTOutput):
            target = description.mutated_input
            assert isinstance(target, BufferAOTInput)  # `check_graph` has refused others
            mutated[canonical[_strip(target.target)]] = node
        elif isinstance(description, PlainAOTOutput):
            plain[description.idx] = node
        else:
            raise CaptureError(
                f"{_user_place(node, source)}: cannot capture an output of kind {type(description).__name__}"
            )
    described = [Described("loss", ("loss",))]
    if step_results.weighted:
        described.append(Described("weight", ("weight",)))
    for name, dim in zip(step_results.names, step_results.batch_dims, strict=True):
        described.append(Described("output", (name,), batch_dim=dim))
    results = [(plain[index], each) for index, each in enumerate(described)]
    return gradients, mutated, results


def _batch_rows(placeholders: Mapping[int, Node], inputs: Sequence[str], dims: Mapping[str, int | None]) -> int | None:
    """Return the rows of the batch that was traced, None where no input has a batch dim or its size is not fixed."""
    for index, name in enumerate(inputs):
        dim = dims[name]
        if dim is not None:
            rows = placeholders[index].meta["val"].shape[dim]
            return rows if isinstance(rows, int) else None
    return None


def _user_place(node: Node, source: str) -> str:
    return last_user_place(node.meta.get("stack_trace") or "") or source


def _strip(name: str) -> str:
    return name.removeprefix("model.")


def _by_identity(named: Iterator[tuple[str, Any]]) -> list[tuple[tuple[str, ...], torch.Tensor]]:
    groups: dict[int, tuple[list[str], torch.Tensor]] = {}
    for name, tensor in named:
        groups.setdefault(id(tensor), ([], tensor))[0].append(name)
    return [(tuple(names), tensor) for names, tensor in groups.values()]


def _fold_tangent(node: Node, seed: float) -> None:
    """Replace a tangent input by what the step seeds it with: one for the loss, zero for a buffer's new value."""
    value = node.meta["val"]
    graph = node.graph
    is_backward = (n for n in graph.nodes if n.meta.get("partitioner_tag") == "is_backward" and n.op == "call_function")
    first = next(is_backward, graph.output_node())
    with graph.inserting_before(first):
        ones = graph.call_function(
            torch.ops.aten.full.default, (list(value.shape), seed), {"dtype": value.dtype, "device": value.device}
        )
    ones.meta = {"val": value, "partitioner_tag": "is_backward", "stack_trace": first.meta.get("stack_trace")}
    node.replace_all_uses_with(ones)
    graph.erase_node(node)


@dataclass
class _Constants:
    nodes: dict[str, Node] = field(default_factory=dict)
    values_by_name: dict[str, torch.Tensor] = field(default_factory=dict)


LITERAL_ELEMENTS = 16
"""A tensor constant of at most this many elements is a literal in the IR; a larger one is an argument."""


def _lift_constants(graph_module: GraphModule, model: nn.Module) -> _Constants:
    constants = _Constants()
    lifted: dict[tuple[object, ...], Node] = {}
    graph = graph_module.graph
    for node in graph.find_nodes(op="get_attr"):
        tensor = getattr(graph_module, str(node.target))
        if not isinstance(tensor, torch.Tensor):
            raise CaptureError(f"cannot capture a constant of type {type(tensor).__name__}")
        node.meta.setdefault("val", tensor)
        if isinstance(tensor, FakeTensor):
            raise CaptureError(
                f"{place_of(node)}: a constant of shape {list(tensor.shape)} has no values: "
                "make it a buffer, or build the model on a device"
            )
        check_constant(tensor, model, place_of(node))
        if tensor.numel() <= LITERAL_ELEMENTS:
            continue
        # Forward and backward fetch the same tensor under different names.
        storage = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        placeholder = lifted.get(storage)
        if placeholder is None:
            name = f"constant.{len(constants.nodes)}"
            with graph.inserting_before(next(iter(graph.nodes))):
                placeholder = graph.placeholder(name.replace(".", "_"))
            placeholder.meta = dict(node.meta)
            lifted[storage] = placeholder
            constants.nodes[name] = placeholder
            constants.values_by_name[name] = tensor
        node.replace_all_uses_with(placeholder)
        graph.erase_node(node)
    return constants
