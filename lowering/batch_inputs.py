"""The inputs of a step: leaves of the batch by path, how to put them back together, which dim of each is split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..errors import CaptureError, nearest
from ..runtime.trees import flatten_batch


def tensor_leaves(batch: Mapping[str, Any], source: str) -> dict[str, torch.Tensor]:
    """Return the leaves of a batch by path.

    Raises:
        CaptureError: one is no tensor.
    """
    leaves = flatten_batch(batch)
    for name, leaf in leaves.items():
        if not isinstance(leaf, torch.Tensor):
            raise CaptureError(
                f"{source}: input '{name}' is a {type(leaf).__name__}, expected a tensor: bind Python values to the "
                "step function instead (functools.partial)"
            )
    return leaves


def split_dims(
    leaves: Mapping[str, torch.Tensor], batch_dims: int | Mapping[str, int | None], source: str
) -> dict[str, int | None]:
    """Return the batch dim of every input, None for those given whole to each microbatch.

    Raises:
        CaptureError: a path is unknown, a dim out of range, or the inputs have different numbers of rows.
    """
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


def rebuilder(batch: Mapping[str, Any]) -> Callable[[Sequence[Any]], dict[str, Any]]:
    """Return the function that puts flat leaves back into the structure of `batch`."""

    def build(template: Any, leaves: Iterator[Any]) -> Any:
        if isinstance(template, dict):
            return {key: build(item, leaves) for key, item in template.items()}
        if isinstance(template, list):
            return [build(item, leaves) for item in template]
        if isinstance(template, tuple):
            return tuple([build(item, leaves) for item in template])
        return None if template is None else next(leaves)

    def skeleton(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): skeleton(item) for key, item in value.items()}
        if isinstance(value, list):
            return [skeleton(item) for item in value]
        if isinstance(value, tuple):
            return tuple(skeleton(item) for item in value)
        return None if value is None else True

    template = skeleton(batch)
    return lambda leaves: dict(build(template, iter(leaves)))
