"""Between global tensors and what each rank has of them: state and batch on the way in, results on the way out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import RuntimeFault, nearest
from ..mesh import Mesh, Sharding, shard_spans
from .collective_math import microbatch_slice, shard_slice
from .operators import describe, dtype_name, tensor_type, torch_dtype
from .program import Arg, Argument, Function, Result, TensorType
from .static_inputs import describe_leaf, refuse_gradients, refuse_kind, take_static
from .trees import flatten_batch

STATE_ROLES = frozenset({"param", "buffer", "constant"})


def dim_axes(value: Argument | Result) -> Sharding:
    """Return the mesh axes of every dim, also where none is written for a value that is not sharded."""
    return value.sharding or ((),) * len(value.type.shape)


def global_type(value: Argument | Result, mesh: Mesh) -> TensorType:
    """Return the type of the whole tensor; sizes known only at run time are None."""
    shape = value.full_shape
    if len(shape) != len(value.type.shape):
        sizes = zip(value.type.shape, dim_axes(value), strict=True)
        shape = tuple(None if size is None else size * mesh.count(axes) for size, axes in sizes)
    return TensorType(shape, value.type.dtype)


def _matches(actual: TensorType, expected: TensorType) -> bool:
    return (
        actual.dtype == expected.dtype
        and len(actual.shape) == len(expected.shape)
        and all(size is None or size == found for found, size in zip(actual.shape, expected.shape, strict=True))
    )


def _quoted(names: Iterable[str]) -> str:
    listed = list(names)
    text = ", ".join(f"'{name}'" for name in listed[:5])
    return text if len(listed) <= 5 else f"{text} and {len(listed) - 5} more"


def check_state(
    functions: Sequence[Function], mesh: Mesh, state: Mapping[str, Tensor], dtype: str | None
) -> dict[str, Tensor]:
    """Return the tensor of every parameter, buffer and constant that `functions` take, by first name.

    Args:
        functions: the entries that the ranks run.
        mesh: the ranks.
        state: full tensors by name; one of a tied parameter's names is enough.
        dtype: convert floating tensors to this; None: they must have the dtype of the argument.

    Raises:
        RuntimeFault: a name is missing or unknown, a shape or dtype is another, or the names of one parameter have
            different values.
    """
    if not isinstance(state, Mapping):
        raise RuntimeFault(f"expected the state to be a mapping of tensors, got: {describe(state)}")
    arguments = {
        argument.name: argument
        for function in functions
        for argument in function.arguments
        if argument.role in STATE_ROLES
    }
    known = {name for argument in arguments.values() for name in argument.names}
    unknown = [name for name in state if name not in known]
    missing = [name for name, argument in arguments.items() if not any(alias in state for alias in argument.names)]
    if missing:
        raise RuntimeFault(f"state lacks {_quoted(missing)}{nearest(missing[0], unknown)}")
    if unknown:
        raise RuntimeFault(f"state has {_quoted(unknown)}, which the program does not know{nearest(unknown[0], known)}")
    tensors = {}
    for name, argument in arguments.items():
        given = [alias for alias in argument.names if alias in state]
        for alias in given:
            _check_tensor(f"state '{alias}'", state[alias], global_type(argument, mesh), dtype)
            if state[alias] is not state[given[0]] and not bits_equal(state[alias], state[given[0]]):
                raise RuntimeFault(f"state '{given[0]}' and '{alias}' are one parameter but have different values")
        tensors[name] = state[given[0]]
    return tensors


def _check_tensor(where: str, value: Any, expected: TensorType, dtype: str | None) -> None:
    if not isinstance(value, Tensor):
        raise RuntimeFault(f"{where}: expected {expected}, got: {describe_leaf(value)}")
    actual, wanted = tensor_type(value), torch_dtype(expected.dtype)
    converted = value.is_complex() == wanted.is_complex and value.is_floating_point() == wanted.is_floating_point
    if dtype is not None and converted and (wanted.is_floating_point or wanted.is_complex):
        actual = TensorType(actual.shape, expected.dtype)
    if not _matches(actual, expected):
        raise RuntimeFault(f"{where}: expected {expected}, got: {tensor_type(value)}")


def check_batch(
    functions: Sequence[Function],
    mesh: Mesh,
    batch: Mapping[str, Any],
    dtype: str | None,
    static: Mapping[str, Arg] | None = None,
    unused: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the leaves of a global batch by name, checked: tensors, and integers for the sizes among the inputs.

    Args:
        functions: the entries that the ranks run.
        mesh: the ranks.
        batch: nested inputs.
        dtype: convert floating tensors to this; None: they must have the dtype of the argument.
        static: `Program.static_inputs`, which the batch must have too; they are not among what is returned.
        unused: inputs that the batch may have although no rank takes them; they are not among what is returned.

    Raises:
        RuntimeFault: a leaf is missing or unexpected, of another shape or dtype than compiled, or a Python value that
            has changed since.
    """
    if not isinstance(batch, Mapping):
        raise RuntimeFault(f"expected the batch to be a mapping of inputs, got: {describe(batch)}")
    leaves = take_static(static or {}, flatten_batch(batch))
    inputs = {
        argument.name: argument
        for function in functions
        for argument in function.arguments
        if argument.role not in STATE_ROLES
    }
    measured = {name for argument in inputs.values() for name in argument.dim_names}
    inputs = {name: argument for name, argument in inputs.items() if argument.role != "size" or name not in measured}
    unexpected = [name for name in leaves if name not in inputs and name not in unused]
    missing = [name for name in inputs if name not in leaves]
    if missing:
        raise RuntimeFault(f"batch lacks input {_quoted(missing)}{nearest(missing[0], unexpected)}")
    if unexpected:
        raise RuntimeFault(f"batch has unexpected input {_quoted(unexpected)}{nearest(unexpected[0], inputs)}")
    checked: dict[str, Any] = {}
    for name, argument in inputs.items():
        value = leaves[name]
        if argument.role == "size":
            if not isinstance(value, int) or isinstance(value, bool):
                raise RuntimeFault(f"size '{name}': expected an integer, got: {describe(value)}")
            checked[name] = value
            continue
        refuse_kind(name, value)
        expected = global_type(argument, mesh)
        tensor = _scalar_tensor(value, expected)
        _check_tensor(f"input '{name}'{_split(argument, mesh)}", tensor, expected, dtype)
        refuse_gradients(name, tensor)
        checked[name] = tensor
    return checked


def _scalar_tensor(value: Any, expected: TensorType) -> Any:
    """Return a Python number as a tensor where one without dims is expected and nothing is lost."""
    dtype = torch_dtype(expected.dtype)
    if expected.shape:
        return value
    if isinstance(value, bool):
        fits = dtype == torch.bool
    elif isinstance(value, int):
        fits = dtype != torch.bool
    else:
        fits = isinstance(value, float) and (dtype.is_floating_point or dtype.is_complex)
    return torch.tensor(value, dtype=dtype) if fits else value


def _split(argument: Argument, mesh: Mesh) -> str:
    axes = [axis for dim in dim_axes(argument) for axis in dim if mesh.axis_size(axis) > 1]
    return f" (of all ranks, over {_quoted(axes)})" if axes else ""


def local_positions(value: Argument | Result, mesh: Mesh, rank: int) -> tuple[int, ...]:
    """Return which piece of a value `rank` has, per dim."""
    return tuple(mesh.position(rank, axes) if axes else 0 for axes in dim_axes(value))


def local_piece(
    tensor: Tensor, argument: Argument, mesh: Mesh, positions: Sequence[int], device: torch.device
) -> Tensor:
    """Return one rank's piece of a global tensor in new memory, in the argument's dtype, padded with zeros."""
    piece = tensor.detach()
    for dim, (axes, position) in enumerate(zip(dim_axes(argument), positions, strict=True)):
        if axes and argument.type.shape[dim] is None:
            # Rows of a batch: nothing is padded, ranks have what there is.
            piece = microbatch_slice(piece, position, mesh.count(axes), dim)
        elif axes:
            piece = shard_slice(piece, dim, mesh.sizes(axes), position)
    return piece.to(device=device, dtype=torch_dtype(argument.type.dtype)).clone(memory_format=torch.contiguous_format)


def assemble(where: str, held: Sequence[tuple[int, Result, Tensor]], mesh: Mesh, *, compare: bool = True) -> Tensor:
    """Put a global tensor together from what ranks hold of it, without the padding.

    Args:
        where: what it is, for messages.
        held: rank, what the rank's function says of the result, and the result; not empty.
        mesh: the ranks.
        compare: refuse ranks that hold the same piece with different bits; otherwise the first one's counts.

    Raises:
        RuntimeFault: ranks disagree, a piece is missing or has another shape than stated.
    """
    first_rank, first, sample = held[0]
    sharding = dim_axes(first)
    stated = global_type(first, mesh)
    shape = tuple(
        size if size is not None else sample.shape[dim] * mesh.count(sharding[dim])
        for dim, size in enumerate(stated.shape)
    )
    spans = [shard_spans(size, mesh.sizes(axes)) for size, axes in zip(shape, sharding, strict=True)]
    pieces: dict[tuple[int, ...], tuple[int, Tensor]] = {}
    for rank, result, value in held:
        if not _matches(tensor_type(value), result.type):
            raise RuntimeFault(f"{where} on rank {rank}: expected {result.type}, got: {tensor_type(value)}")
        if dim_axes(result) != sharding or global_type(result, mesh) != stated:
            raise RuntimeFault(f"{where} is laid out differently on rank {first_rank} and rank {rank}")
        positions = local_positions(result, mesh, rank)
        for dim, position in enumerate(positions):
            value = value.narrow(dim, 0, spans[dim][position][1])
        known = pieces.setdefault(positions, (rank, value))
        if compare and known[1] is not value and not bits_equal(known[1], value):
            raise RuntimeFault(f"{where} differs between rank {known[0]} and rank {rank}{_difference(known[1], value)}")
    expected = math.prod(len(span) for span in spans)
    if len(pieces) != expected:
        raise RuntimeFault(f"{where}: {len(pieces)} of {expected} pieces are held by any rank")
    if expected == 1:
        return sample
    whole = sample.new_empty(shape)
    for positions, (_, value) in pieces.items():
        target = whole
        for dim, position in enumerate(positions):
            target = target.narrow(dim, *spans[dim][position])
        target.copy_(value)
    return whole


def bits_equal(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are the same bit for bit, NaNs and signs of zeros included."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    a, b = (tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second.to(first.device)))
    return torch.equal(a, b)


def _difference(first: Tensor, second: Tensor) -> str:
    if not (first.is_floating_point() and first.numel()):
        return ""
    gap = (first.double() - second.double()).abs().max().item()
    return f" by up to {gap:.3g} ({dtype_name(first.dtype)})"
