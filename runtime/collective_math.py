"""What each collective computes, on one process: from every member's tensor to every member's result.

Each function takes one tensor per group member, in group order, and returns one result per member, in the same order.
Results may share memory among members. Sums are in group order, in the tensor's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import RuntimeFault
from ..mesh import padded_shard_size, shard_spans


def all_gather(inputs: Sequence[Tensor], dim: int) -> list[Tensor]:
    """Concatenate along `dim`; every member gets all of it."""
    return [torch.cat(list(inputs), dim)] * len(inputs)


def reduce_scatter(inputs: Sequence[Tensor], dim: int, reduce: str) -> list[Tensor]:
    """Reduce elementwise; member i gets the i-th of equal pieces along `dim`.

    Raises:
        RuntimeFault: the size does not divide by the members, or `reduce` is not meant for the dtype.
    """
    check_divisible(inputs[0].shape, dim, len(inputs))
    pieces = _reduced(inputs, reduce).chunk(len(inputs), dim)
    # Copies, so that a member that keeps its piece does not keep everyone's.
    return [piece.clone(memory_format=torch.contiguous_format) for piece in pieces]


def all_reduce(inputs: Sequence[Tensor], reduce: str) -> list[Tensor]:
    """Reduce elementwise; every member gets the result.

    Raises:
        RuntimeFault: `reduce` is not meant for the dtype.
    """
    return [_reduced(inputs, reduce)] * len(inputs)


def all_to_all(inputs: Sequence[Tensor], split_dim: int, concat_dim: int) -> list[Tensor]:
    """Split each along `split_dim` into equal pieces; member i gets everyone's i-th, concatenated along `concat_dim`.

    Raises:
        RuntimeFault: the size does not divide by the members.
    """
    count = len(inputs)
    check_divisible(inputs[0].shape, split_dim, count)
    pieces = [tensor.chunk(count, split_dim) for tensor in inputs]
    return [torch.cat([piece[member] for piece in pieces], concat_dim) for member in range(count)]


def broadcast(inputs: Sequence[Tensor], root: int) -> list[Tensor]:
    """Every member gets what the member at position `root` has."""
    return [inputs[root].clone(memory_format=torch.contiguous_format)] * len(inputs)


def shard_slice(tensor: Tensor, dim: int, counts: Sequence[int], position: int) -> Tensor:
    """Return the piece at `position` of a tensor split along `dim`, padded with zeros to the largest piece.

    Args:
        tensor: the whole tensor.
        dim: the dim that is split.
        counts: sizes of the mesh axes that split it, major to minor.
        position: index of the piece, major axis first.
    """
    rows = tensor.shape[dim]
    offset, size = shard_spans(rows, counts)[position]
    piece = tensor.narrow(dim, offset, size)
    padding = padded_shard_size(rows, counts) - size
    if not padding:
        return piece
    zeros = piece.new_zeros([padding if number == dim else extent for number, extent in enumerate(piece.shape)])
    return torch.cat([piece, zeros], dim)


def microbatch_slice(tensor: Tensor, index: int, count: int, dim: int) -> Tensor:
    """Return the `index`-th of `count` parts along `dim`, as a view; sizes differ by at most one, larger ones first."""
    size, larger = divmod(tensor.shape[dim], count)
    return tensor.narrow(dim, index * size + min(index, larger), size + (index < larger))


def check_divisible(shape: Sequence[int], dim: int, count: int) -> None:
    """Raise a `RuntimeFault` unless `count` members can take equal pieces of a tensor of this shape along `dim`."""
    if shape[dim] % count:
        raise RuntimeFault(f"expected dim {dim} to divide by the group's {count} ranks, got: {shape[dim]}")


def check_reduce(dtype: torch.dtype, reduce: str) -> None:
    """Raise a `RuntimeFault` unless `reduce` is "sum" or "avg" and meant for the dtype."""
    if reduce not in ("sum", "avg"):
        raise RuntimeFault(f"expected reduce to be 'sum' or 'avg', got: {reduce!r}")
    if reduce == "avg" and not (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeFault(f"expected floating tensors for reduce = 'avg', got: {dtype}")
    if dtype == torch.bool:
        raise RuntimeFault("expected numbers to reduce, got: torch.bool")


def _reduced(inputs: Sequence[Tensor], reduce: str) -> Tensor:
    check_reduce(inputs[0].dtype, reduce)
    total = inputs[0].clone(memory_format=torch.contiguous_format)
    for tensor in inputs[1:]:
        total += tensor
    if reduce == "avg":
        total /= len(inputs)
    return total
