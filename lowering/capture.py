"""Capture: a model, its step function and one example batch become one joint forward and backward FX graph.

Dynamo turns the user's Python into a graph (and knows file and line of everything), AOTAutograd adds the backward and
takes out mutation. What comes out has static shapes, one placeholder per distinct parameter, no tangent input, and
every argument and result described by a role and names. The same two steps are taken by torchtitan's graph trainer.
"""

from __future__ import annotations

import ast
import contextlib
import logging
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.functional_export import dynamo_graph_capture_for_export
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.distributed.tensor import DTensor

from ..errors import CaptureError, nearest
from ..runtime.trees import flatten_batch
from .joint_graph import JointGraph, assemble
from .source_places import definition_place, is_user_file
from .step_module import StepModule, TrainFunction, output_structure, rebuilder


def capture(
    model: nn.Module, train_fn: TrainFunction, batch: Mapping[str, Any], batch_dims: int | Mapping[str, int | None]
) -> JointGraph:
    """Capture one step; see `hpir.export` for the arguments.

    Raises:
        CaptureError: it cannot be captured; the text starts with the user's ``file:line``.
    """
    source = definition_place(train_fn)
    _check_model(model, source)
    leaves = _tensor_leaves(batch, source)
    dims = _batch_dims(leaves, batch_dims, source)
    step = StepModule(model, train_fn, rebuilder(batch))
    if any(parameter.is_meta for parameter in model.parameters()):
        leaves = {name: leaf.to("meta") for name, leaf in leaves.items()}
    example = tuple(leaf.detach() for leaf in leaves.values())
    with _capture_errors(source), _quiet(source), _unchanged(model), torch.enable_grad(), ExitStack() as stack:
        tree, shapes = output_structure(step, source, leaves, dims)
        captured = dynamo_graph_capture_for_export(step)(*example)
        fake_mode = captured.meta["fake_mode"]
        with tracing(TracingContext(fake_mode)):
            static = tuple(fake_mode.from_tensor(leaf, static_shapes=True) for leaf in example)
            joint = aot_export_joint_with_descriptors(stack, captured, static)
        graph_module = joint.graph_module
    assembled = assemble(graph_module, model, list(leaves), dims, shapes, source)
    assembled.output_tree = tree
    assembled.source = source
    return assembled


def _check_model(model: nn.Module, source: str) -> None:
    if not isinstance(model, nn.Module):
        raise CaptureError(f"{source}: expected a torch.nn.Module, got: {type(model).__name__}")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise CaptureError(
                f"{source}: parameter '{name}' is a DTensor already: compile the model before it is sharded"
            )
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise CaptureError(
                f"{source}: parameter '{name}' has a gradient hook, which a compiled step would not call: remove "
                "it and change the gradient after the step"
            )


@contextlib.contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Put a model's own tensors back after the block: tracing swaps them, and loses count where modules are shared."""
    saved = [(module, dict(module._parameters), dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for module, parameters, buffers in saved:
            module._parameters.update(parameters)
            module._buffers.update(buffers)


def _tensor_leaves(batch: Mapping[str, Any], source: str) -> dict[str, torch.Tensor]:
    leaves = flatten_batch(batch)
    for name, leaf in leaves.items():
        if not isinstance(leaf, torch.Tensor):
            raise CaptureError(
                f"{source}: input '{name}' is a {type(leaf).__name__}, expected a tensor: bind Python values to the "
                "step function instead (functools.partial)"
            )
    return leaves


def _batch_dims(
    leaves: Mapping[str, torch.Tensor], batch_dims: int | Mapping[str, int | None], source: str
) -> dict[str, int | None]:
    """Return the batch dim of every input, None for those given whole to each microbatch."""
    if isinstance(batch_dims, Mapping):
        for name in batch_dims:
            if name not in leaves:
                raise CaptureError(f"{source}: batch_dims: no input '{name}'{nearest(name, leaves)}")
        dims = {name: batch_dims.get(name, 0 if leaf.dim() else None) for name, leaf in leaves.items()}
        wrong = [name for name, dim in dims.items() if dim is not None and type(dim) is not int]
        if wrong:
            raise CaptureError(
                f"{source}: batch_dims: expected an int or None for '{wrong[0]}', got: {dims[wrong[0]]!r}"
            )
    else:
        dims = {name: batch_dims if leaf.dim() else None for name, leaf in leaves.items()}
    sizes: dict[int, str] = {}
    for name, dim in dims.items():
        leaf = leaves[name]
        if dim is None:
            continue
        if not -leaf.dim() <= dim < leaf.dim():
            raise CaptureError(f"{source}: batch_dims: input '{name}' has {leaf.dim()} dims, got dim: {dim}")
        dims[name] = dim % leaf.dim()
        sizes.setdefault(leaf.shape[dim], name)
    if len(sizes) > 1:
        (size, name), (other_size, other) = list(sizes.items())[:2]
        raise CaptureError(
            f"{source}: input '{name}' has {size} rows along its batch dim but '{other}' has {other_size}: say which "
            f"inputs are split, such as batch_dims={{'{other}': None}}"
        )
    return dims


@contextlib.contextmanager
def _capture_errors(source: str) -> Iterator[None]:
    """Turn whatever torch says of a step it cannot trace into a `CaptureError` at the user's line."""
    try:
        yield
    except CaptureError:
        raise
    except (
        TorchDynamoException,
        RuntimeError,
        ValueError,
        TypeError,
        AssertionError,
        NotImplementedError,
        LookupError,
        AttributeError,
    ) as error:
        frames = list(getattr(error, "real_stack", None) or []) + list(traceback.extract_tb(error.__traceback__))
        places = [f"{frame.filename}:{frame.lineno}" for frame in frames if is_user_file(frame.filename)]
        raise CaptureError(f"{places[-1] if places else source}: cannot capture: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    """Return what went wrong in one line: torch's headline, its explanation and the advice that fits here."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if lines and not isinstance(error, (TorchDynamoException, RuntimeError)):
        text = f"{type(error).__name__}: {text}"
    found = [line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:")]
    hints = [line.removeprefix("Hint:").strip() for line in lines if line.startswith("Hint:")]
    hints = [hint for hint in hints if not any(word in hint for word in _NOT_ADVICE)]
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)) or _NO_DATA in text:
        what = f"'{error.func}'" if hasattr(error, "func") else "this"
        text = f"{what} needs the values of a tensor, which are not known before the step runs"
        hints = ["keep such values in tensors, with torch.where or a mask"]
    if found:
        text = f"{text}: {found[0]}"
    return f"{text} ({hints[0].rstrip('.')})" if hints else text


# What torch says when Python asks a fake tensor for its values: float(x), x.tolist(), x.numpy().
_NO_DATA = "data is not allocated yet"

# Advice about torch.compile's own switches, which have no say in an export.
_NOT_ADVICE = ("torch.compile", "torch._dynamo", "set_stance", "file an issue", "fullgraph")

_SIDE_EFFECTS = "While compiling, we found certain side effects"

_LOGGERS = ("torch._subclasses.fake_tensor", "torch._dynamo", "torch.fx.experimental.symbolic_shapes")


@contextlib.contextmanager
def _quiet(source: str) -> Iterator[None]:
    """Keep torch from logging tracebacks of what becomes a `CaptureError`; hear what it says of side effects.

    Raises:
        CaptureError: the forward assigns to an attribute of the model, which a compiled step would not do.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(record=True) as heard:
            warnings.filterwarnings("always", message=_SIDE_EFFECTS)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    for warning in heard:
        if str(warning.message).startswith(_SIDE_EFFECTS):
            _refuse_assignments(str(warning.message), source)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _refuse_assignments(message: str, source: str) -> None:
    """Refuse what dynamo heard the forward assign to the model; of a library's globals a step is better off without."""
    names = ast.literal_eval(message.partition("check: ")[2])
    changed = [name for name in names if name.startswith("L['self']")]
    if not changed:
        return
    path = ".".join(re.findall(r"_modules\['([^']+)'\]", changed[0])[1:])
    what = "a buffer" if "_buffers" in changed[0] else "an attribute"
    owner = f"module '{path}'" if path else "the model"
    raise CaptureError(
        f"{source}: the forward assigns to {what} of {owner}, which a compiled step would not do: "
        "keep state in a buffer and change it in place (copy_, add_)"
    )
