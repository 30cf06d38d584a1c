"""A model's parameters, buffers and constants as a Program's arguments: the live model in place, sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..errors import RuntimeFault, nearest
from . import torch_compat
from .device import RankMesh
from .entries import all_state, positions_of, state_arguments
from .foreign_state import ForeignState, is_foreign
from .host_copies import copy_into, to_device
from .initial_state import compare_models
from .initialize import InitFunction, initialize_shards
from .live_modules import LiveModules
from .operators import tensor_type, torch_dtype
from .program import Argument, Function, Program, TensorType
from .shards import Owner, ParameterShard, placements_of, static_shape
from .shared_buffers import SharedBuffers
from .shared_faults import raise_together


class ModelState:
    """The state that a rank's functions read and change.

    Args:
        program: the Program.
        functions: the functions this rank enters; their arguments say what state it owns. What only other ranks'
            functions take goes to the meta device.
        model: the live model; its parameters are replaced in place by DTensors where there is a process group, unless
            the pipeline axis is the only one.
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
        arguments = state_arguments(functions)
        axes = tuple(axis for axis in program.mesh.axis_names if axis != program.pipeline_axis)
        shared = SharedBuffers(arguments.values(), ranks.device)
        foreign_parameters: list[tuple[Argument, Sequence[Owner]]] = []
        foreign_buffers: list[tuple[Argument, Owner]] = []
        whole = all_state(program)
        raise_together(_used_already(whole.values(), model), ranks)
        # On every rank all of it is checked, so that all ranks find what is wrong.
        for key, argument in whole.items():
            if argument.role == "param":
                owners = _parameter_owners(argument, model)
                if key in arguments:
                    self.parameters[argument.name] = _shard(arguments[key], owners, ranks, axes, shared)
                else:
                    foreign_parameters.append((argument, owners))
            elif argument.role == "buffer":
                owner = _buffer(argument, model)
                if key in arguments:
                    self.buffers[argument.name] = owner
                else:
                    foreign_buffers.append((argument, owner))
            elif key in arguments:
                self.constants[argument.name] = _constant(argument, constants or {}, ranks.device)
        self.foreign = ForeignState(foreign_parameters, foreign_buffers)
        self._modules = LiveModules(model, (n for a in arguments.values() if a.role in _LIVE for n in a.names))
        self._whole = whole
        _check_ties(whole.values(), model)
        self._install(program, ranks, axes, init)
        self.counted = counted_parameters(program, self.parameters, ranks)

    def _install(self, program: Program, ranks: RankMesh, axes: Sequence[str], init: InitFunction | None) -> None:
        names = [argument.name for argument in self._whole.values() if argument.role == "param"]
        owned = {name: shard.live for name, shard in self.parameters.items()}
        buffers = [_held(*owner) for owner in self.buffers.values()]
        initialises = compare_models(names, owned, buffers, ranks)
        del owned, buffers
        self.foreign.release()
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
            buffer = _held(module, key)
            if buffer.is_meta:
                missing.append(name)
            elif buffer.device != ranks.device:
                module._buffers[key] = to_device(buffer, ranks.device)
        if initialises:
            self._initialise(program, ranks, axes, made, missing, init)

    def _initialise(
        self,
        program: Program,
        ranks: RankMesh,
        axes: Sequence[str],
        made: Sequence[ParameterShard],
        missing: Sequence[str],
        init: InitFunction | None,
    ) -> None:
        buffers = {name: self.buffers[name] for name in missing}
        modules = {id(module) for shard in made for module, _ in shard.owners}
        modules |= {id(module) for module, _ in buffers.values()}
        # A module's other parameters are there while it draws, so that what it draws is what it always does.
        for argument, owners in self.foreign.beside(modules):
            guest = _shard(argument, owners, ranks, axes, None)
            guest.install(None, requires_grad=guest.live.requires_grad)
        try:
            initialize_shards(
                self.model, made, buffers, ranks, axes, list(self._whole.values()), seed=program.seed, init=init
            )
        finally:
            self.foreign.release()

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
        """Copy values into the live parameters and buffers that this rank owns.

        Args:
            values: by name; DTensors, or plain tensors of the whole shape. Those of other ranks' may be there too: with
                any of them, it is a whole model's state, on all ranks.
            strict: names that are missing or unknown are errors.

        Raises:
            RuntimeFault: they are, or a value has another shape.
        """
        own = self.model.state_dict()
        unknown = [name for name in values if name not in own]
        expected = own if any(name in self.foreign.names for name in values) else self.foreign.drop_from(own)
        missing = [name for name in expected if name not in values]
        if strict and unknown:
            raise RuntimeFault(f"state has no parameter or buffer '{unknown[0]}'{nearest(unknown[0], own)}")
        if strict and missing:
            raise RuntimeFault(f"state lacks '{missing[0]}'" + (f" and {len(missing) - 1} more" if missing[1:] else ""))
        shards = {name: shard for shard in self.parameters.values() for name in shard.argument.names}
        self.foreign.take_part(values)
        with torch.no_grad():
            for name, value in values.items():
                if name not in own:
                    continue
                target = own[name]
                if not isinstance(value, Tensor) or not isinstance(target, Tensor):
                    raise RuntimeFault(f"'{name}': expected a tensor, got: {type(value).__name__}")
                if value.shape != target.shape:
                    raise RuntimeFault(f"'{name}': expected shape {list(target.shape)}, got: {list(value.shape)}")
                if name in self.foreign.names:
                    continue
                if not isinstance(target, DTensor):
                    copy_into(target, value.full_tensor() if isinstance(value, DTensor) else value)
                elif isinstance(value, DTensor) and value.device_mesh == target.device_mesh:
                    moved = value.redistribute(target.device_mesh, target.placements)
                    copy_into(torch_compat.local_of(target), torch_compat.local_of(moved))
                else:
                    full = value.full_tensor() if isinstance(value, DTensor) else value
                    copy_into(torch_compat.local_of(target), shards[name].piece(full))


def _parameter_owners(argument: Argument, model: nn.Module) -> list[Owner]:
    """Return everywhere that the model holds a parameter of the Program, checked."""
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
    return owners


def _used_already(arguments: Iterable[Argument], model: nn.Module) -> RuntimeFault | None:
    """Return what is wrong with a model that is sharded or divided into stages; None for a whole one."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    for argument in arguments:
        kind, held = ("parameter", parameters) if argument.role == "param" else ("buffer", buffers)
        live = held.get(argument.name) if argument.role in _LIVE else None
        if isinstance(live, DTensor):
            return RuntimeFault(
                f"{kind} '{argument.name}' is a DTensor already: compile the model before it is sharded"
            )
        if live is not None and is_foreign(live):
            return RuntimeFault(
                f"{kind} '{argument.name}' is another rank's already: compile the model before it is divided into "
                "stages"
            )
    return None


def _shard(
    argument: Argument, owners: Sequence[Owner], ranks: RankMesh, axes: Sequence[str], shared: SharedBuffers | None
) -> ParameterShard:
    spec = None
    mesh = ranks.state_mesh(axes)
    if mesh is not None:
        shape = static_shape(TensorType(argument.full_shape, argument.type.dtype), argument.name)
        dtype = torch_dtype(argument.type.dtype)
        spec = torch_compat.tensor_spec(mesh, placements_of(argument, ranks.mesh, axes), shape, dtype)
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


def _check_ties(arguments: Iterable[Argument], model: nn.Module) -> None:
    seen: dict[int, str] = {}
    for argument in arguments:
        if argument.role != "param":
            continue
        module, key = _owner(argument.name, model, "_parameters", "parameter")
        other = seen.setdefault(id(module._parameters[key]), argument.name)
        if other != argument.name:
            raise RuntimeFault(
                f"parameters '{other}' and '{argument.name}' are one in the model but two in the Program"
            )


def counted_parameters(program: Program, names: Iterable[str], ranks: RankMesh) -> frozenset[str] | None:
    """Return which parameters of this rank no earlier pipeline coordinate has too; None where there is no pipeline."""
    axis = program.pipeline_axis
    if axis is None:
        return None
    return frozenset(name for name in names if positions_of(program, name)[:1] == (ranks.coordinate[axis],))


def _held(module: nn.Module, key: str) -> Tensor:
    buffer = module._buffers[key]
    assert buffer is not None
    return buffer
