"""What a step function returns: the loss, plain or weighted, and extra outputs; checked, and taken apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import CaptureError, RuntimeFault
from ...runtime.trees import BARE_OUTPUT, output_tree
from ...runtime.weighted_loss import WeightedLoss


@dataclass
class StepResults:
    """What a step function returns, beside the gradients.

    Attributes:
        weighted: whether the loss comes with a weight.
        names: paths of the extra outputs that are tensors, in flat order.
        batch_dims: the batch dim of each, None for one without.
        tree: structure of the extra outputs (see `runtime.trees`), None without any.
    """

    weighted: bool = False
    names: list[str] = field(default_factory=list)
    batch_dims: list[int | None] = field(default_factory=list)
    tree: Any = None


def loss_and_outputs(result: Any) -> tuple[Any, Any]:
    """Take apart what a step function returned; of extra outputs that are absent None is left."""
    return result if isinstance(result, tuple) and len(result) == 2 else (result, None)


def flat_results(result: Any) -> tuple[Tensor, ...]:
    """Return the loss, its weight if it has one, and the extra outputs that are tensors: all that the graph returns.

    Dynamo traces through this. Only the loss carries a gradient. The order is that of `output_tree`.
    """
    loss, outputs = loss_and_outputs(result)
    head = (loss.sum, _weight_tensor(loss)) if isinstance(loss, WeightedLoss) else (loss,)
    return (*head, *[leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in _tensors(outputs)])


def whether_outputs(result: Any) -> tuple[Tensor, ...]:
    """Return one tensor for a plain loss alone, two where a step function returns anything more; dynamo traces it."""
    loss, outputs = loss_and_outputs(result)
    if isinstance(loss, Tensor) and outputs is None:
        return (loss + 0,)
    plain = loss.sum if isinstance(loss, WeightedLoss) else torch.zeros(())
    return (plain + 0, plain + 1)


def _tensors(value: Any) -> list[Any]:
    # Numbers of the user's stay in the structure; what dynamo made a number of a tensor's values is refused later.
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in _tensors(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _tensors(item)]
    if isinstance(value, Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        return [leaf for field in dataclasses.fields(value) for leaf in _tensors(getattr(value, field.name))]
    return []


def _weight_tensor(loss: WeightedLoss) -> Tensor:
    """Return the weight in a dtype that sums of many do not overflow or round away in."""
    weight, total = loss.weight, loss.sum
    if isinstance(weight, Tensor) and weight.numel() == 1:
        dtype = torch.promote_types(weight.dtype, torch.float32) if weight.is_floating_point() else torch.int64
        return weight.detach().reshape(()).to(dtype, copy=True)  # it may be an input
    if isinstance(total, Tensor) and isinstance(weight, (int, float)):
        dtype = torch.int64 if isinstance(weight, int) else torch.promote_types(total.dtype, torch.float32)
        return torch.full((), weight, dtype=dtype, device=total.device)
    return torch.zeros(())  # `read_results`, which comes after dynamo, refuses it


def read_results(result: Any, source: str) -> tuple[StepResults, dict[str, Tensor]]:
    """Check what a step function returned and learn its structure.

    Returns:
        The structure, no output having a batch dim yet, and the outputs that are tensors by path.

    Raises:
        CaptureError: the loss or an output is not what it should be.
    """
    loss, outputs = loss_and_outputs(result)
    _check_loss(result, loss, outputs, source)
    try:
        tree, leaves = output_tree(outputs)
    except RuntimeFault as error:
        raise CaptureError(f"{source}: {error}") from None
    return StepResults(isinstance(loss, WeightedLoss), list(leaves), [None] * len(leaves), tree), leaves


def number_leaves(tree: Any, path: str = "") -> dict[str, object]:
    """Return the numbers among the constants of an output tree, by path; truth values are none."""
    if not isinstance(tree, dict):
        return {}
    ((kind, children),) = tree.items()
    if kind in ("constant", "float"):
        return {path or BARE_OUTPUT: children} if type(children) in (int, float) or kind == "float" else {}
    items = children.items() if kind == "dict" else enumerate(children)
    found: dict[str, object] = {}
    for key, child in items:
        found.update(number_leaves(child, f"{path}.{key}" if path else str(key)))
    return found


def check_numbers(tree: Any, again: Any, source: str) -> None:
    """Refuse numbers among the outputs that follow a dynamic size, for they are compiled in.

    Args:
        tree: the outputs' structure.
        again: the same with other dynamic sizes, None where that is not known.
        source: ``file:line`` of the step function.

    Raises:
        CaptureError: a number differs, or may.
    """
    others = number_leaves(again)
    for name, number in number_leaves(tree).items():
        if again is None or others.get(name) != number:
            raise CaptureError(
                f"{source}: output '{name}' is a number that {'may follow' if again is None else 'follows'} a dynamic "
                "size, and numbers are compiled in: return a tensor, such as torch.full((), x.shape[1])"
            )


def _check_loss(result: Any, loss: Any, outputs: Any, source: str) -> None:
    what = "the loss"
    if isinstance(loss, WeightedLoss):
        _check_weight(loss.weight, source)
        what, loss = "the sum of the WeightedLoss", loss.sum
    if not isinstance(loss, Tensor):
        raise CaptureError(
            f"{source}: the step function returned a {_kind(result)}, expected {what} as a tensor{_advice(result)}"
        )
    if isinstance(loss, nn.Parameter):
        raise CaptureError(f"{source}: {what} is a parameter itself, expected something computed")
    if loss.numel() != 1 or loss.dim() > 1:
        hint = ""
        if isinstance(result, tuple):
            hint = " in the first of the two values returned"
            hint += ": return (loss, outputs), the loss first" if _may_be_loss(outputs) else ""
        raise CaptureError(f"{source}: expected {what} to have shape [] or [1], got: {list(loss.shape)}{hint}")
    if not loss.is_floating_point():
        raise CaptureError(f"{source}: expected {what} to be a floating tensor, got: {loss.dtype}")


def _check_weight(weight: Any, source: str) -> None:
    expected = "expected the weight of the WeightedLoss to be"
    if not isinstance(weight, (Tensor, int, float)) or isinstance(weight, bool):
        raise CaptureError(f"{source}: {expected} a tensor or a number, got: {type(weight).__name__}")
    if not isinstance(weight, Tensor):
        return
    if weight.numel() != 1 or weight.dim() > 1:
        raise CaptureError(f"{source}: {expected} of shape [] or [1], got: {list(weight.shape)}: sum it")
    if weight.dtype == torch.bool or weight.is_complex():
        raise CaptureError(f"{source}: {expected} an integer or floating tensor, got: {weight.dtype}")


def _may_be_loss(value: Any) -> bool:
    return isinstance(value, WeightedLoss) or (
        isinstance(value, Tensor) and value.is_floating_point() and value.numel() == 1 and value.dim() < 2
    )


def _kind(result: Any) -> str:
    if isinstance(result, WeightedLoss):
        return f"WeightedLoss of a {type(result.sum).__name__}"
    if isinstance(result, tuple) and result:
        first = "tensor" if isinstance(result[0], Tensor) else type(result[0]).__name__
        return f"tuple of {len(result)} whose first value is a {first}"
    return type(result).__name__


def _advice(result: Any) -> str:
    """Return what to return instead, where that can be told."""
    if isinstance(result, tuple):
        first = result[0] if result else None
        if len(result) == 2 and _may_be_loss(result[1]):
            return ": return (loss, outputs), the loss first"
        if isinstance(first, (Tensor, WeightedLoss)):
            return ": return (loss, outputs), with all further values in one dict or tuple"
        return ""
    if isinstance(result, list):
        return ": return a tuple (loss, outputs)"
    if isinstance(result, Mapping) and isinstance(result.get("loss"), Tensor):
        return ": return its 'loss', or the pair of it and the whole"
    if isinstance(getattr(result, "loss", None), Tensor):
        return ": return its .loss, or the pair of it and the whole"
    return ""
