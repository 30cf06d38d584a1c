"""What hp-simplify folds of views: the strides that come out are those of the two views, on any memory layout."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from torch import Tensor

from hpir.ir_passes.cleanup.fold_views import only_splits

SHAPES = [(), (1,), (12,), (4, 6), (1, 12), (2, 1, 6), (2, 3, 4), (3, 1, 1, 8), (2, 2, 3, 2)]


def factorings(number: int, dims: int) -> list[tuple[int, ...]]:
    """Return all shapes of a number of dims and elements."""
    if dims == 0:
        return [()] if number == 1 else []
    found = []
    for size in range(1, number + 1):
        if number % size == 0:
            found += [(size, *rest) for rest in factorings(number // size, dims - 1)]
    return found


def layouts(shape: tuple[int, ...]) -> list[Tensor]:
    """Return tensors of a shape with dims in each order of memory, dense and with gaps."""
    tensors = []
    for order in itertools.permutations(range(len(shape))):
        back = [order.index(dim) for dim in range(len(shape))]
        dense = torch.arange(math.prod(shape)).reshape([shape[dim] for dim in order])
        tensors.append(dense.permute(back))
        if shape:
            tensors.append(torch.stack([dense, -dense], dim=-1)[..., 0].permute(back))
    return tensors


def layout_of(tensor: Tensor, below: Tensor) -> tuple[object, ...]:
    """Return whether memory is that of `below`, and the strides of dims that have several elements."""
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return (tensor.data_ptr() == below.data_ptr(), *strides)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_reshape_that_only_splits_is_passed_over(shape: tuple[int, ...]) -> None:
    shapes = [found for dims in range(5) for found in factorings(math.prod(shape), dims)]
    between = [found for found in shapes if only_splits(shape, found)]
    assert shape in between
    chosen = random.Random(0)
    for tensor, middle in itertools.product(layouts(shape), between):
        assert tensor.reshape(middle).data_ptr() == tensor.data_ptr()
        for after in chosen.sample(shapes, min(12, len(shapes))):
            twice, once = tensor.reshape(middle).reshape(after), tensor.reshape(after)
            assert torch.equal(twice, once)
            assert layout_of(twice, tensor) == layout_of(once, tensor)


def test_what_puts_dims_together_is_no_split() -> None:
    assert not only_splits((2, 6), (12,))
    assert not only_splits((2, 6), (3, 4))
    assert not only_splits((4, 6), (2, 4, 3))
    assert not only_splits((0, 3), (3, 0))
    assert only_splits((4, 6), (2, 2, 1, 3, 2))
    assert only_splits((4, 1, 6), (4, 6, 1))
    # It matters: a merge of dims that do not lie one behind the other is a copy, from where the way back is another.
    swapped = torch.arange(24).reshape(4, 6).t()
    assert swapped.reshape(24).reshape(6, 4).stride() != swapped.stride()
