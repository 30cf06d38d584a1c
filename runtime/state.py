"""A model's parameters, buffers and constants as a Program's arguments: the live model in place, sharded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..errors import RuntimeFault, nearest
from . import torch_compat
from .device import RankMesh
from .host_copies import copy_into, to_device
from .initialize import InitFunction, initialize_shards
from .live_modules import LiveModules
from .operators import tensor_type, torch_dtype
from .program import Argument, Function, Program, TensorType
from .shards import Owner, ParameterShard, placements_of
from .shared_buffers import SharedBuffers


class ModelState:
    """The state that a rank's functions read and change.

    Args:
        program: the Program.
        functions: the functions this rank enters; their arguments say what state there is.
        model: the live model; its parameters are replaced in place by DTensors where there is a process group.
        ranks: the mesh.
        constants: the Program's tensor constants by name.
        init: for modules with parameters on the meta device, in place of their own ``reset_parameters``.

    Raises:
        RuntimeFault: the model is not the Program's, the ranks' models differ, or a meta tensor cannot be initialised.
    """

    def __init__(
        self,
        program: Program,
        functions: Sequence[Function],
        model: nn.Module,
        ranks: RankMesh,
        *,
        constants: Mapping[str, Tensor] | None = None,
        init: InitFunction | None = None,
    ):
        self.model = model
        self.parameters: dict[str, ParameterShard] = {}
        self.buffers: dict[str, Owner] = {}
        self.constants: dict[str, Tensor] = {}
        arguments = {
            (argument.role, argument.name): argument for function in functions for argument in function.arguments
        }
        axes = tuple(axis for axis in program.mesh.axis_names if axis != program.pipeline_axis)
        shared = SharedBuffers(arguments.values(), ranks.device)
        for argument in arguments.values():
            if argument.role == "param":
                self.parameters[argument.name] = _parameter(argument, model, ranks, axes, shared)
            elif argument.role == "buffer":
                self.buffers[argument.name] = _buffer(argument, model)
            elif argument.role == "constant":
                self.constants[argument.name] = _constant(argument, constants or {}, ranks.device)
        names = (name for argument in arguments.values() if argument.role in _LIVE for name in argument.names)
        self._modules = LiveModules(model, names)
        _check_ties(self.parameters.values())
        compare_models(self.parameters.values(), ranks)
        self._install(ranks, axes, program.seed, init)

    def _install(self, ranks: RankMesh, axes: Sequence[str], seed: int, init: InitFunction | None) -> None:
        made: list[ParameterShard] = []
        for shard in self.parameters.values():
            live = shard.live
            if live.is_meta:
                made.append(shard)
                shard.install(None, requires_grad=live.requires_grad)
            else:
                shard.install(live, requires_grad=live.requires_grad)
            del live
        missing = []
        for name, (module, key) in self.buffers.items():
            buffer = module._buffers[key]
            assert buffer is not None
            if buffer.is_meta:
                missing.append(name)
            elif buffer.device != ranks.device:
                module._buffers[key] = to_device(buffer, ranks.device)
        if made or missing:
            buffers = {name: self.buffers[name] for name in missing}
            initialize_shards(self.model, made, buffers, ranks, axes, seed=seed, init=init)

    def reader(self, function: Function) -> Callable[[Mapping[str, Tensor]], list[Any]]:
        """Return what makes the argument list of `function` from the inputs by name."""
        sources: list[tuple[str, Any]] = []
        for argument in function.arguments:
            if argument.role == "param":
                sources.append(("param", self.parameters[argument.name]))
            elif argument.role == "buffer":
                sources.append(("buffer", (argument, *self.buffers[argument.name])))
            elif argument.role == "constant":
                sources.append(("constant", self.constants[argument.name]))
            elif argument.role in ("input", "size"):
                sources.append(("input", argument.name))
            else:
                raise RuntimeFault(f"{function.name}: argument '{argument.name}' has unknown role '{argument.role}'")

        def read(inputs: Mapping[str, Tensor]) -> list[Any]:
            self._modules.check()
            values: list[Any] = []
            for role, source in sources:
                if role == "param":
                    values.append(source.padded())
                elif role == "input":
                    values.append(inputs[source])
                elif role == "buffer":
                    values.append(_live_buffer(*source))
                else:
                    values.append(source)
            return values

        return read

    def set_buffers(self, values: Mapping[str, Tensor]) -> None:
        """Write new values into the live buffers."""
        # Copies of what may be another buffer's memory were made by the caller.
        for name, value in values.items():
            module, key = self.buffers[name]
            buffer = module._buffers[key]
            assert buffer is not None
            buffer.copy_(value)

    def add_gradients(self, values: Sequence[tuple[str, Tensor, bool]]) -> None:
        """Add gradients to those of the live parameters, as a backward pass does.

        Args:
            values: name of the parameter, padded local gradient, and whether its memory is nobody else's.
        """
        sums: list[Tensor] = []
        terms: list[Tensor] = []
        for name, value, owned in values:
            shard = self.parameters[name]
            live = shard.live
            if not live.requires_grad:
                continue
            local = shard.trimmed(value)
            if live.grad is not None:
                sums.append(shard.local(live.grad))
                terms.append(local)
                continue
            if not owned or not value.is_contiguous():
                local = local.clone(memory_format=torch.contiguous_format)
            live.grad = shard.wrapped(local)
        if sums:
            torch._foreach_add_(sums, terms)

    def load(self, values: Mapping[str, Any], *, strict: bool = True) -> None:
        """Copy values into the live parameters and buffers.

        Args:
            values: by name; DTensors, or plain tensors of the whole shape.
            strict: names that are missing or unknown are errors.

        Raises:
            RuntimeFault: they are, or a value has another shape.
        """
        own = self.model.state_dict()
        missing, unknown = [name for name in own if name not in values], [name for name in values if name not in own]
        if strict and unknown:
            raise RuntimeFault(f"state has no parameter or buffer '{unknown[0]}'{nearest(unknown[0], own)}")
        if strict and missing:
            raise RuntimeFault(f"state lacks '{missing[0]}'" + (f" and {len(missing) - 1} more" if missing[1:] else ""))
        shards = {name: shard for shard in self.parameters.values() for name in shard.argument.names}
        with torch.no_grad():
            for name, value in values.items():
                if name not in own:
                    continue
                target = own[name]
                if not isinstance(value, Tensor) or not isinstance(target, Tensor):
                    raise RuntimeFault(f"'{name}': expected a tensor, got: {type(value).__name__}")
                if value.shape != target.shape:
                    raise RuntimeFault(f"'{name}': expected shape {list(target.shape)}, got: {list(value.shape)}")
                if not isinstance(target, DTensor):
                    copy_into(target, value.full_tensor() if isinstance(value, DTensor) else value)
                elif isinstance(value, DTensor) and value.device_mesh == target.device_mesh:
                    moved = value.redistribute(target.device_mesh, target.placements)
                    copy_into(torch_compat.local_of(target), torch_compat.local_of(moved))
                else:
                    full = value.full_tensor() if isinstance(value, DTensor) else value
                    copy_into(torch_compat.local_of(target), shards[name].piece(full))


def _parameter(
    argument: Argument, model: nn.Module, ranks: RankMesh, axes: Sequence[str], shared: SharedBuffers
) -> ParameterShard:
    owners = [_owner(name, model, "_parameters", "parameter") for name in argument.names]
    live = owners[0][0]._parameters[owners[0][1]]
    assert live is not None
    for name, (module, key) in zip(argument.names, owners, strict=True):
        if module._parameters[key] is not live:
            raise RuntimeFault(f"parameters '{argument.name}' and '{name}' are one in the Program but two in the model")
    expected = TensorType(argument.full_shape, argument.type.dtype)
    if tensor_type(live) != expected:
        raise RuntimeFault(
            f"parameter '{argument.name}': the Program was compiled for {expected}, got: {tensor_type(live)}"
        )
    if isinstance(live, DTensor):
        raise RuntimeFault(f"parameter '{argument.name}' is a DTensor already: compile the model before it is sharded")
    spec = None
    mesh = ranks.state_mesh(axes)
    if mesh is not None:
        shape = tuple(live.shape)
        spec = torch_compat.tensor_spec(mesh, placements_of(argument, ranks.mesh, axes), shape, live.dtype)
    return ParameterShard(argument, owners, ranks, spec, axes, shared)


_LIVE = ("param", "buffer")


def _live_buffer(argument: Argument, module: nn.Module, key: str) -> Tensor:
    buffer = module._buffers.get(key)
    if buffer is None or buffer.dtype is not torch_dtype(argument.type.dtype):
        found = "None" if buffer is None else str(tensor_type(buffer))
        raise RuntimeFault(
            f"buffer '{argument.name}': the step was compiled for {argument.type}, got: {found}: it was changed after "
            "compile; change it back, or compile again"
        )
    return buffer


def _buffer(argument: Argument, model: nn.Module) -> Owner:
    owner = _owner(argument.name, model, "_buffers", "buffer")
    buffer = owner[0]._buffers[owner[1]]
    expected = TensorType(argument.full_shape, argument.type.dtype)
    if buffer is None or tensor_type(buffer) != expected:
        found = "None" if buffer is None else str(tensor_type(buffer))
        raise RuntimeFault(f"buffer '{argument.name}': the Program was compiled for {expected}, got: {found}")
    return owner


def _owner(name: str, model: nn.Module, kind: str, what: str) -> Owner:
    path, _, key = name.rpartition(".")
    module: nn.Module | None = model
    for part in path.split(".") if path else ():
        module = module._modules.get(part) if module is not None else None
    if module is None or key not in getattr(module, kind):
        named = model.named_parameters if kind == "_parameters" else model.named_buffers
        known = [known for known, _ in named(remove_duplicate=False)]
        raise RuntimeFault(f"the model has no {what} '{name}', which the Program needs{nearest(name, known)}")
    return module, key


def _constant(argument: Argument, constants: Mapping[str, Tensor], device: torch.device) -> Tensor:
    for name in argument.names:
        if name in constants:
            value = to_device(constants[name].detach(), device)
            if tensor_type(value) != argument.type:
                raise RuntimeFault(
                    f"constant '{name}': the Program was compiled for {argument.type}, got: {tensor_type(value)}"
                )
            return value
    raise RuntimeFault(f"the Program needs the constant '{argument.name}'{nearest(argument.name, constants)}")


def _check_ties(shards: Any) -> None:
    seen: dict[int, str] = {}
    for shard in shards:
        other = seen.setdefault(id(shard.live), shard.name)
        if other != shard.name:
            raise RuntimeFault(f"parameters '{other}' and '{shard.name}' are one in the model but two in the Program")


def compare_models(shards: Any, ranks: RankMesh) -> None:
    """Check that all ranks start from equal parameters.

    Raises:
        RuntimeFault: they do not; the text names the first parameter that differs, and ranks.
    """
    plain = [shard for shard in shards if not shard.live.is_meta]
    if not ranks.distributed or ranks.mesh.size == 1:
        return
    sums = torch.tensor(
        [0, *(checksum(shard.live.detach()) for shard in plain)], dtype=torch.int64, device=ranks.device
    )
    sums[0] = len(plain)
    everyone = torch_compat.gather_rows(sums[:1]).cpu()
    _report_difference(everyone[:, 0], "the number of parameters on the meta device")
    everyone = torch_compat.gather_rows(sums).cpu()
    for column, shard in enumerate(plain, start=1):
        _report_difference(everyone[:, column], f"parameter '{shard.name}'")


def _report_difference(column: Tensor, what: str) -> None:
    values = column.tolist()
    others = [rank for rank, value in enumerate(values) if value != values[0]]
    if others:
        shown = ", ".join(map(str, others[:8])) + (", ..." if len(others) > 8 else "")
        raise RuntimeFault(
            f"{what} differs between rank 0 and rank {shown}: build the model from the same seed on every rank"
        )


_CHUNK = 1 << 20


def checksum(tensor: Tensor) -> int:
    """Return a number that depends on every bit of `tensor` and its place; equal tensors have equal ones."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.resolve_conj())
    bits = tensor.contiguous().reshape(-1).view(width[tensor.dtype.itemsize])
    # Odd multipliers, so that no bit of an element is lost; sums wrap around.
    factors = torch.arange(1, 2 * min(_CHUNK, max(bits.numel(), 1)), 2, dtype=torch.int64, device=tensor.device)
    total = 0
    for begin in range(0, bits.numel(), _CHUNK):
        part = bits[begin : begin + _CHUNK].to(torch.int64)
        total = (total * 31 + int((part * factors[: part.numel()]).sum())) % (1 << 62)
    return total
