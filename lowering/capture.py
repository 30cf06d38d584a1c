"""Capture: a model, its step function and one example batch become one joint forward and backward FX graph.

Dynamo turns the user's Python into a graph (and knows file and line of everything), AOTAutograd adds the backward and
takes out mutation. What comes out has static shapes, one placeholder per distinct parameter, no tangent input, and
every argument and result described by a role and names. The same two steps are taken by torchtitan's graph trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch._dynamo.functional_export import dynamo_graph_capture_for_export
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext, tracing

from .batch_inputs import rebuilder, split_dims, tensor_leaves
from .capture_errors import capture_errors, quiet
from .checkpoint_regions import check_regions
from .joint_graph import JointGraph, assemble
from .model_checks import check_model, unchanged
from .module_kinds import check_train_function
from .source_places import definition_place
from .step_module import StepModule, TrainFunction


def capture(
    model: nn.Module, train_fn: TrainFunction, batch: Mapping[str, Any], batch_dims: int | Mapping[str, int | None]
) -> JointGraph:
    """Capture one step; see `hpir.export` for the arguments.

    Raises:
        CaptureError: it cannot be captured; the text starts with the user's ``file:line``.
    """
    source = definition_place(train_fn)
    check_model(model, source)
    check_train_function(train_fn, source)
    leaves = tensor_leaves(batch, source)
    dims = split_dims(leaves, batch_dims, source)
    step = StepModule(model, train_fn, rebuilder(batch))
    if any(parameter.is_meta for parameter in model.parameters()):
        leaves = {name: leaf.to("meta") for name, leaf in leaves.items()}
    example = tuple(leaf.detach() for leaf in leaves.values())
    with capture_errors(source), quiet(source), unchanged(model), torch.enable_grad(), ExitStack() as stack:
        results = step.learn_results(source, leaves, dims)
        captured = dynamo_graph_capture_for_export(step)(*example)
        if results.fault is not None and len(captured.graph.output_node().args[0]) > 1:
            raise results.fault  # its structure is not known
        check_regions(captured, source)
        fake_mode = captured.meta["fake_mode"]
        with tracing(TracingContext(fake_mode)):
            static = tuple(fake_mode.from_tensor(leaf, static_shapes=True) for leaf in example)
            joint = aot_export_joint_with_descriptors(stack, captured, static)
        graph_module = joint.graph_module
    assembled = assemble(graph_module, model, list(leaves), dims, results, source)
    assembled.output_tree = results.tree
    assembled.source = source
    return assembled
