"""Python state that a model settles in its first step, such as what kind of problem its labels pose.

Libraries note things on their own objects when they first see data: the kind of loss, that hooks are installed, which
implementation was chosen. Dynamo would have such an assignment done in every step, or refuses how it is done (under a
lock). What stays as it is from the second step on, and makes no difference to what is computed, may as well be there
before the first one.

The model is rehearsed twice on fake tensors, on a copy. What the first rehearsal changes counts as settled where
the second changes nothing more and runs the same operators on the same operands.
"""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import CaptureError, RuntimeFault
from ...runtime.trees import flatten_batch
from .capture_errors import unheard
from .trial_copy import fake_copy, running_on

T = TypeVar("T")

# What a step may raise on fake tensors: whatever it is, the capture itself says it better.
_STEP_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    AssertionError,
    LookupError,
    AttributeError,
    ImportError,
    RuntimeFault,
)

_HOOKS = frozenset(
    {
        "_forward_hooks",
        "_forward_hooks_always_called",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
    }
)

_MOST_ANSWERS = 1000

_Path = tuple[str, ...]
_State = dict[_Path, Any]
_ABSENT = object()


def with_settled_state(
    model: nn.Module, train_fn: Callable[..., Any], batch: Mapping[str, Any], capture: Callable[[], T]
) -> T:
    """Capture a step; where it is refused, once more with the state that the model settles in its first step.

    Args:
        model: it has its own state back afterwards.
        train_fn: the step function.
        batch: an example of its inputs.
        capture: captures the step.

    Raises:
        CaptureError: as `capture` does.
    """
    try:
        return capture()
    except CaptureError as refusal:
        settled = _rehearse(model, train_fn, batch) if refusal.may_settle else {}
        if not settled:
            raise
    with _put(model, settled):
        return capture()


def _rehearse(model: Any, train_fn: Callable[..., Any], batch: Any) -> _State:
    """Return what the first step leaves behind for good."""
    if not isinstance(model, nn.Module) or not isinstance(batch, Mapping):
        return {}
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        leaves = [leaf for leaf in flatten_batch(batch).values() if isinstance(leaf, torch.Tensor)]
        inputs = copy.deepcopy(dict(batch), {id(leaf): mode.from_tensor(leaf, static_shapes=True) for leaf in leaves})
        rehearsed = fake_copy(model, mode)
        states, runs = [_state(rehearsed)], []
        for _ in range(2):
            recorder = _Recorder()
            with unheard(), running_on(mode), recorder:
                train_fn(rehearsed, **inputs)
            runs.append(recorder.calls)
            states.append(_state(rehearsed))
            if states[0] == states[-1]:
                return {}
    except _STEP_ERRORS:
        return {}
    if runs[0] != runs[1] or states[1] != states[2]:
        return {}
    return {path: value for path, value in states[1].items() if states[0].get(path, _ABSENT) != value}


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's is untyped
    """Keeps the operators that run and their operands: tensors numbered in the order met, other values spelled."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's is untyped
        self.calls: list[str] = []
        self.answers = 0
        self._met: dict[int, tuple[int, torch.Tensor]] = {}  # Holds the tensors too: an id is unique while they live.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(f"{func} {self._spelled((args, kwargs or {}))}")
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype == torch.bool:
            self.answers += 1
            if self.answers > _MOST_ANSWERS:
                raise RuntimeError("a loop on the values of a tensor")
            return True  # A check of the inputs; where it is a branch, dynamo refuses it in any case.
        return func(*args, **kwargs or {})

    def _spelled(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            number, _ = self._met.setdefault(id(value), (len(self._met), value))
            return f"%{number}:{tuple(value.shape)}:{value.dtype}"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self._spelled, value))}]"
        if isinstance(value, dict):
            return f"[{', '.join(f'{key}={self._spelled(item)}' for key, item in value.items())}]"
        return repr(value)


def _state(model: nn.Module) -> _State:
    """Return the plain attributes and the hooks of all modules, and of the objects they hold, by path."""
    state: _State = {}
    seen: set[int] = set()
    pending: list[tuple[_Path, Any]] = [((), model)]
    while pending:
        path, owner = pending.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        if isinstance(owner, nn.Module):
            pending += [((*path, name), module) for name, module in owner._modules.items() if module is not None]
        for name, value in vars(owner).items():
            if isinstance(owner, nn.Module) and name in _HOOKS:
                state[(*path, name)] = dict(value)
            elif value is None or isinstance(value, (bool, int, float, str)):
                state[(*path, name)] = value
            elif _is_plain_object(value):
                pending.append(((*path, name), value))
    return state


def _is_plain_object(value: Any) -> bool:
    """Return whether `value` holds attributes of its own, as a configuration does."""
    if isinstance(value, (type, nn.Module, torch.Tensor, ModuleType)) or callable(value):
        return False
    return isinstance(getattr(value, "__dict__", None), dict)


@contextlib.contextmanager
def _put(model: nn.Module, state: _State) -> Iterator[None]:
    """Give the model's objects the attributes in `state` for the length of the block."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    for path, value in state.items():
        attributes = _attributes(model, path[:-1])
        before.append((attributes, path[-1], attributes.get(path[-1], _ABSENT)))
        attributes[path[-1]] = OrderedDict(value) if isinstance(value, dict) else value
    try:
        yield
    finally:
        for attributes, name, value in before:
            if value is _ABSENT:
                del attributes[name]
            else:
                attributes[name] = value


def _attributes(model: nn.Module, path: _Path) -> dict[str, Any]:
    owner: Any = model
    for name in path:
        modules = owner._modules if isinstance(owner, nn.Module) else {}
        owner = modules[name] if name in modules else vars(owner)[name]
    attributes: dict[str, Any] = vars(owner)
    return attributes
