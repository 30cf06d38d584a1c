"""Torch operators, dtypes and constants by the names a Program spells them with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from ..errors import RuntimeFault, nearest
from .program import Arg, Named, Op, Ref, TensorType

# Registering these operators is a side effect of importing the module, which `import torch` need not have done.
_REGISTERED_BY = {"prims": "torch._prims", "_c10d_functional": "torch.distributed._functional_collectives"}


@cache
def _dtypes() -> dict[str, torch.dtype]:
    # Aliases (torch.float, torch.long) print as their canonical name, so each dtype appears once.
    found = (value for value in vars(torch).values() if isinstance(value, torch.dtype))
    return {str(value).removeprefix("torch."): value for value in found}


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a name such as ``float32``; a `RuntimeFault` names the nearest for an unknown one."""
    dtype = _dtypes().get(name)
    if dtype is None:
        raise RuntimeFault(f"torch {torch.__version__} has no dtype '{name}'{nearest(name, _dtypes())}")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name a Program spells a dtype with: ``float32``."""
    return str(dtype).removeprefix("torch.")


def tensor_type(tensor: torch.Tensor) -> TensorType:
    """Return shape and dtype of a tensor, as a Program spells them."""
    return TensorType(tuple(tensor.shape), dtype_name(tensor.dtype))


def describe(value: Any) -> str:
    """Return what `value` is, for a message: a tensor's type, else its Python type."""
    if isinstance(value, torch.Tensor):
        return str(tensor_type(value))
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe(item) for item in value) + "]"
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype)):
        return repr(value)
    return type(value).__name__


@cache
def resolve(target: str) -> torch._ops.OpOverload:
    """Return the torch operator named `target`, such as ``aten.mm.default``.

    Whether the operator may be called is `Program.validate`'s concern.

    Raises:
        RuntimeFault: this torch has no such operator; the text names it and the nearest.
    """
    parts = target.split(".")
    if len(parts) != 3:
        raise RuntimeFault(f"malformed operator '{target}', expected namespace.name.overload")
    namespace, name, overload = parts
    if namespace in _REGISTERED_BY:
        importlib.import_module(_REGISTERED_BY[namespace])
    operators = getattr(torch.ops, namespace)
    try:
        packet = getattr(operators, name)
    except AttributeError:
        known = (full.partition("::")[2].partition(".")[0] for full in _registered(namespace))
        hint = nearest(name, known)
        if not hint and not any(_registered(namespace)):
            hint = f": namespace '{namespace}' is empty; import the package that registers it"
        raise RuntimeFault(f"torch {torch.__version__} has no operator '{target}'{hint}") from None
    try:
        found = getattr(packet, overload)
    except AttributeError:
        known = packet.overloads()
        raise RuntimeFault(f"torch {torch.__version__} has no operator '{target}'{nearest(overload, known)}") from None
    assert isinstance(found, torch._ops.OpOverload)
    return found


def _registered(namespace: str) -> Iterator[str]:
    return (full for full in torch._C._dispatch_get_all_op_names() if full.startswith(namespace + "::"))


def materialize(arg: Arg, value: Callable[[int], Any], device: torch.device) -> Any:
    """Return what torch is given for an argument of an op.

    Args:
        arg: the argument as the Program has it.
        value: gives the run-time value of an SSA number.
        device: what ``Named("device", "")`` stands for.

    Raises:
        RuntimeFault: torch has no enumeration value of that name.
    """
    if isinstance(arg, Ref):
        return value(arg.index)
    if isinstance(arg, tuple):
        return [materialize(item, value, device) for item in arg]
    if isinstance(arg, Named):
        return named_value(arg, device)
    return arg


def named_value(named: Named, device: torch.device) -> torch.dtype | torch.layout | torch.memory_format | torch.device:
    """Return the torch object an enumeration value stands for."""
    if named.kind == "dtype":
        return torch_dtype(named.name)
    if named.kind == "device":
        return torch.device(named.name) if named.name else device
    found = getattr(torch, named.name, None)
    if named.kind == "layout" and isinstance(found, torch.layout):
        return found
    if named.kind == "memory_format" and isinstance(found, torch.memory_format):
        return found
    raise RuntimeFault(f"torch {torch.__version__} has no {named.kind} '{named.name}'")


def literal_tensor(op: Op, device: torch.device) -> torch.Tensor:
    """Return the tensor of a ``literal`` op; its only type gives shape and dtype.

    Raises:
        RuntimeFault: the data do not fill the type.
    """
    type_ = op.types[0] if op.types else None
    if type_ is None or None in type_.shape:
        raise RuntimeFault(f"literal of type {type_}, expected a tensor of static shape")
    shape = [size for size in type_.shape if size is not None]
    data = materialize(op.kwargs.get("data"), _no_value, device)
    try:
        return torch.tensor(data, dtype=torch_dtype(type_.dtype), device=device).reshape(shape)
    except (RuntimeError, TypeError, ValueError) as error:
        raise RuntimeFault(f"literal does not fill {type_}: {error}") from None


def _no_value(index: int) -> Any:
    raise RuntimeFault(f"literal refers to value {index}, expected data")


def recv_types(op: Op) -> tuple[TensorType, ...]:
    """Return the types of the tensors an ``hp.recv`` expects, from its ``types``: pairs of dtype name and sizes.

    Sizes that are known only at run time are None; they come before the tensors, in a header.

    Raises:
        RuntimeFault: they are missing or malformed, or a size is unknown and there is no header.
    """
    pairs = op.kwargs.get("types")
    types = []
    for pair in pairs if isinstance(pairs, tuple) else ():
        dtype, sizes = pair if isinstance(pair, tuple) and len(pair) == 2 else (None, None)
        if not isinstance(dtype, str) or not isinstance(sizes, tuple):
            raise RuntimeFault(f"malformed types: {pairs!r}")
        shape = tuple(size for size in sizes if size is None or isinstance(size, int))
        if shape != sizes:
            raise RuntimeFault(f"malformed types: {pairs!r}")
        if None in shape and not op.kwargs.get("header"):
            raise RuntimeFault(f"expected a header, as a size is not known: {TensorType(shape, dtype)}")
        torch_dtype(dtype)
        types.append(TensorType(shape, dtype))
    if not types:
        raise RuntimeFault(f"expected types to have a pair per tensor, got: {pairs!r}")
    return tuple(types)
