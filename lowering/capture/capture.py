"""Capture: a model, its step function and one example batch become one joint forward and backward FX graph.

Dynamo turns the user's Python into a graph (and knows file and line of everything), AOTAutograd adds the backward and
takes out mutation. What comes out has one placeholder per distinct parameter and per size that changes, no tangent
input, and every argument and result described by a role and names. The same two steps are taken by torchtitan's graph
trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.functional_export import dynamo_graph_capture_for_export
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext, tracing

from .backward_changes import check_backward_changes
from .batch_inputs import batch_leaves, split_dims
from .batch_rebuild import rebuilder
from .capture_errors import DATA_DEPENDENT, capture_errors, quiet
from .checkpoint_regions import check_regions
from .dynamic_sizes import Dynamic, read_dynamic
from .effect_tokens import drop_tokens
from .grad_scaler import traceable_when_off
from .graph_checks import changed_before_backward, check_assignments, check_graph
from .joint_graph import JointGraph, assemble
from .meta_tensors import fake_where_meta
from .model_checks import check_arguments, check_model, unchanged
from .module_kinds import check_train_function
from .random_decompositions import DECOMPOSITIONS
from .random_ops import draw_attention_masks
from .source_places import definition_place
from .step_effects import watched
from .step_module import StepModule, TrainFunction, traces_dropped
from .step_results import StepResults
from .tracing_modes import check_autocast, tracing_modes


def capture(
    model: nn.Module,
    train_fn: TrainFunction,
    batch: Mapping[str, Any],
    batch_dims: int | Mapping[str, int | None],
    dynamic: Dynamic | None = None,
) -> JointGraph:
    """Capture one step; see `hpir.export` for the arguments.

    Raises:
        CaptureError: it cannot be captured; the text starts with the user's ``file:line``.
    """
    source = definition_place(train_fn)
    check_model(model, source)
    check_train_function(train_fn, source)
    leaves, static_inputs = batch_leaves(batch, source)
    check_arguments(train_fn, batch, source)
    dims = split_dims(leaves, batch_dims, source)
    sizes = read_dynamic(dynamic, leaves, dims, source)
    step = StepModule(model, train_fn, rebuilder(batch, leaves, source))
    with (
        capture_errors(source),
        quiet(),
        unchanged(model),
        traces_dropped(),
        tracing_modes(source),
        ExitStack() as stack,
    ):
        # Sizes and Python numbers are what they are, also where dynamo saw others in an earlier capture.
        stack.enter_context(dynamo_config.patch(specialize_float=True, automatic_dynamic_shapes=False))
        stack.enter_context(traceable_when_off())
        leaves = stack.enter_context(fake_where_meta(model, leaves))
        # In memory of their own and contiguous: the IR knows no strides, and no inputs that share memory.
        example = {n: torch.empty(leaf.shape, dtype=leaf.dtype, device=leaf.device) for n, leaf in leaves.items()}
        stack.enter_context(sizes.tracing(example))
        # Dynamo comes first: it runs none of the user's Python, and knows what the step does besides computing tensors.
        fault: Exception | None = None
        try:
            with watched(train_fn) as effects:
                captured = dynamo_graph_capture_for_export(step)(*example.values())
        except (AssertionError, SyntaxError) as error:
            fault = error
        if fault is not None:
            # A step that computes nothing fails within torch; running it tells what is wrong with what it returns.
            step.learn_results(source, leaves, dims, sizes.dims)
            raise fault
        if effects.of_model():
            with suppress(*DATA_DEPENDENT):
                lost = step.keep_assigned(leaves)
                with watched(train_fn) as effects:
                    captured = dynamo_graph_capture_for_export(step)(*example.values())
                effects.drop_kept(model, lost)
        effects.check(source)
        check_assignments(captured)
        check_regions(captured, source)
        check_autocast(captured, source)
        results = StepResults()
        try:
            results = step.learn_results(source, leaves, dims, sizes.dims)
        except DATA_DEPENDENT:
            # Dynamo had no use for the value, or reads it when the step runs: without outputs, no more is to be learnt.
            with watched(train_fn):
                loss_only = step.returns_loss_only(tuple(example.values()))
            if not loss_only:
                raise
        draw_attention_masks(captured)
        fake_mode = captured.meta["fake_mode"]
        with tracing(TracingContext(fake_mode)), changed_before_backward(captured):
            inputs = sizes.fake_inputs(fake_mode, example, captured)
            joint = aot_export_joint_with_descriptors(stack, captured, inputs, decompositions=DECOMPOSITIONS)
        graph_module = joint.graph_module
        guards = sizes.guards(fake_mode, source)
    drop_tokens(graph_module)
    check_backward_changes(graph_module, captured, source)
    check_graph(graph_module, list(leaves), results, source)
    assembled = assemble(graph_module, model, list(leaves), dims, results, source, sizes)
    assembled.guards = guards
    assembled.output_tree = results.tree
    assembled.static_inputs = static_inputs
    assembled.source = source
    return assembled
