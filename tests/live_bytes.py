"""Bytes of live tensors while a piece of code runs, measured on what is allocated: one measure for any torch code."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch is untyped here
    """Counts the memory of tensors that operators make within the block, from when it is made until it is freed.

    Attributes:
        now: bytes alive.
        peak: the most that was alive at once.
        calls: number of calls of each operator.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch is untyped here
        self.now = self.peak = 0
        self.calls: dict[str, int] = {}
        self._seen: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = {
            tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)
        }
        result = function(*args, **(kwargs or {}))
        self.calls[str(function)] = self.calls.get(str(function), 0) + 1
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage(), before)
        return result

    def _add(self, storage: torch.UntypedStorage, before: set[int]) -> None:
        key = storage._cdata
        if key in self._seen or key in before:
            return
        size = storage.nbytes()

        def freed(_: object) -> None:
            self.now -= size
            del self._seen[key]

        self._seen[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)
