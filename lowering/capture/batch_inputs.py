"""The inputs of a step: its leaves by path, which are tensors and which are values, which dim of each is split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from ...dialect.types import ELEMENT_TYPES
from ...errors import CaptureError, RuntimeFault, nearest
from ...runtime.operators import dtype_name
from ...runtime.program import Arg
from ...runtime.static_inputs import hint_for, static_value
from ...runtime.trees import flatten_batch
from .advice import unknown_dtype


def batch_leaves(batch: Mapping[str, Any], source: str) -> tuple[dict[str, torch.Tensor], dict[str, Arg]]:
    """Return the leaves of a batch by path: the tensors, and the Python values that are compiled in.

    Raises:
        CaptureError: one is neither, or a tensor that a step cannot be given; keys that cannot be a path.
    """
    try:
        leaves = flatten_batch(batch)
    except RuntimeFault as error:
        raise CaptureError(f"{source}: batch: {error}") from None
    tensors: dict[str, torch.Tensor] = {}
    static: dict[str, Arg] = {}
    for name, leaf in leaves.items():
        if isinstance(leaf, torch.Tensor):
            _check_tensor(name, leaf, source)
            tensors[name] = leaf
            continue
        kept = static_value(leaf)
        if kept is None:
            raise CaptureError(
                f"{source}: input '{name}' is a {type(leaf).__name__}, expected a tensor, a number, a string, None or "
                f"a dict, list, tuple or dataclass of these{hint_for(leaf)}"
            )
        static[name] = kept[0]
    return tensors, static


def _check_tensor(name: str, leaf: torch.Tensor, source: str) -> None:
    """Refuse tensors that are more than their values."""
    what = f"input '{name}'"
    where = f"{source}: {what}"
    if isinstance(leaf, DTensor):
        raise CaptureError(f"{where} is a DTensor: give this rank's own rows, as a plain tensor (to_local)")
    if type(leaf) not in (torch.Tensor, nn.Parameter, FakeTensor):
        raise CaptureError(
            f"{where} is a {type(leaf).__name__}, a kind of tensor of its own: give its values as plain tensors"
        )
    if leaf.layout != torch.strided or leaf.is_nested or leaf.is_quantized:
        kind = "nested" if leaf.is_nested else "quantized" if leaf.is_quantized else str(leaf.layout)
        raise CaptureError(f"{where} is a tensor of layout {kind}: give its values as dense tensors")
    if dtype_name(leaf.dtype) not in ELEMENT_TYPES:
        raise CaptureError(f"{source}: {unknown_dtype(what, leaf.dtype)}")
    if leaf.requires_grad:
        raise CaptureError(
            f"{where} requires gradients, which a compiled step gives to parameters only: give it detached, or make "
            "it a parameter of the model"
        )


def split_dims(
    leaves: Mapping[str, torch.Tensor], batch_dims: int | Mapping[str, int | None], source: str
) -> dict[str, int | None]:
    """Return the batch dim of every input, None for those given whole to each microbatch.

    A key of `batch_dims` is the path of an input or of a container, and then holds for all inputs below; the longest
    one that fits counts.

    Raises:
        CaptureError: a path is unknown, a dim out of range, or the inputs have different numbers of rows.
    """
    given: Mapping[str, int | None] = batch_dims if isinstance(batch_dims, Mapping) else {}
    default = 0 if isinstance(batch_dims, Mapping) else batch_dims
    _check_given(leaves, given, default, source)
    dims: dict[str, int | None] = {}
    sizes: dict[int, str] = {}
    for name, leaf in leaves.items():
        key = _nearest_above(name, given)
        dim = default if key is None else given[key]
        # No dim to split: given whole, unless it was asked for by its own name.
        if dim is None or (leaf.dim() == 0 and key != name):
            dims[name] = None
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


def _nearest_above(name: str, given: Mapping[str, int | None]) -> str | None:
    while name not in given:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return None
    return name


def _check_given(leaves: Iterable[str], given: Mapping[str, int | None], default: Any, source: str) -> None:
    paths: dict[str, None] = {}
    for name in leaves:
        parts = name.split(".")
        paths.update(dict.fromkeys(".".join(parts[:count]) for count in range(len(parts), 0, -1)))
    for name, dim in given.items():
        if name not in paths:
            raise CaptureError(f"{source}: batch_dims: no input '{name}'{nearest(str(name), paths)}")
        if dim is not None and type(dim) is not int:
            raise CaptureError(f"{source}: batch_dims: expected an int or None for '{name}', got: {dim!r}")
    if default is not None and type(default) is not int:
        raise CaptureError(f"{source}: batch_dims: expected an int or a dict by input, got: {default!r}")
