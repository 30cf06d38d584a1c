"""A copy of a model on fake tensors, to run the user's Python on without memory and without leaving a trace."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ...runtime import torch_compat
from .grad_scaler import refused_when_on


def fake_copy(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Return a copy of `model` on fake tensors of `mode`, ties kept.

    Tensors that are attributes and have a history, as the weight that old weight norm computes, are copied without it.
    """
    tensors = [*model.parameters(), *model.buffers()]
    memo: dict[int, Any] = {id(tensor): mode.from_tensor(tensor, static_shapes=True) for tensor in tensors}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = mode.from_tensor(value.detach(), static_shapes=True)
    return copy.deepcopy(model, memo)


@contextlib.contextmanager
def running_on(mode: FakeTensorMode) -> Iterator[None]:
    """Run the user's Python on fake tensors as eager torch would, with gradients and nothing compiled.

    Where it asks whether it is compiled, it takes the path that tracing takes.
    """
    stance = torch.compiler.set_stance("force_eager")
    with _caches_cleared(), mode, torch.enable_grad(), stance, torch_compat.compiling(), refused_when_on():
        yield


@contextlib.contextmanager
def _caches_cleared() -> Iterator[None]:
    """Clear each `functools.lru_cache` that the block puts something into: it may be a fake tensor.

    A cache gives what its function gives, so that one that is cleared is as good.
    """
    before = {id(cache): (cache, cache.cache_info().misses) for cache in _caches.find()}
    try:
        yield
    finally:
        for cache in _caches.find():
            known, misses = before.get(id(cache), (cache, 0))
            if known is not cache or cache.cache_info().misses != misses:
                cache.cache_clear()


class _Caches:
    """The process's `functools.lru_cache` objects, but those of torch and hpir.

    They are found among all objects there are, which takes a tenth of a second. As long as the garbage collector has
    not run since, new ones are found among the young.
    """

    _KIND = type(functools.lru_cache(lambda: None))

    def __init__(self) -> None:
        self._known: list[weakref.ref[Any]] = []
        self._collections: list[int] = []

    def find(self) -> list[Any]:
        """Return them."""
        collections = [generation["collections"] for generation in gc.get_stats()[1:]]
        if collections == self._collections:
            objects = gc.get_objects(0) + gc.get_objects(1)
        else:
            objects, self._known, self._collections = gc.get_objects(), [], collections
        caches = {id(cache): cache for reference in self._known if (cache := reference()) is not None}
        caches.update((id(found), found) for found in objects if type(found) is self._KIND and not _is_torch(found))
        self._known = [weakref.ref(cache) for cache in caches.values()]
        return list(caches.values())


_caches = _Caches()


def _is_torch(cache: Any) -> bool:
    return str(getattr(cache, "__module__", "")).partition(".")[0] in ("torch", "hpir")
