"""Devices, process groups, and the mesh of a Program on real ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..errors import RuntimeFault
from ..mesh import Mesh
from . import torch_compat
from .program import COLLECTIVES, Program

_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl", "xpu": "xccl"}

GroupKey = tuple[tuple[str, ...], tuple[int, ...] | None]
"""What names a process group: mesh axes in mesh order, and the positions on the one axis that take part, or None."""


def default_device_type() -> str:
    """Return the accelerator's type, such as ``cuda`` or ``npu``; ``cpu`` where there is none."""
    return torch_compat.accelerator_type() or "cpu"


def backend_for(device_type: str) -> str:
    """Return the process group backend of a device type: gloo on cpu, nccl on cuda, hccl on npu.

    Raises:
        RuntimeFault: there is none, or this torch was built without it.
    """
    backend = _BACKENDS.get(device_type)
    if backend is None:
        raise RuntimeFault(f"no process group backend is known for device type '{device_type}'")
    if not dist.is_available() or not dist.is_backend_available(backend):
        raise RuntimeFault(
            f"device type '{device_type}' needs the process group backend '{backend}', which this torch does not have"
        )
    return backend


def rank_device(device_type: str | None = None) -> torch.device:
    """Return this process's device and make it the current one.

    With several devices per machine it is the one numbered LOCAL_RANK, as torchrun sets it, or the rank modulo their
    number.
    """
    kind = device_type or default_device_type()
    if kind == "cpu":
        return torch.device("cpu")
    count = max(torch.accelerator.device_count(), 1)
    index = int(os.environ.get("LOCAL_RANK", (dist.get_rank() if dist.is_initialized() else 0) % count))
    torch.accelerator.set_device_index(index)
    return torch.device(kind, index)


def numbered(device: torch.device) -> torch.device:
    """Return a device as tensors on it say theirs is: ``cuda`` is the current one, such as ``cuda:0``."""
    if device.type in ("cpu", "meta") or ":" in str(device):
        return device
    return torch.device(device.type, torch.accelerator.current_device_index())


def init_process_group(
    device_type: str | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    init_method: str | None = None,
    timeout: float = 600.0,
) -> bool:
    """Make the default process group unless there is one.

    Rank and world size come from the arguments or from torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR,
    MASTER_PORT); the address defaults to this machine. A world of one rank needs no process group and gets none.

    Args:
        device_type: decides the backend; the accelerator's by default.
        rank: of this process.
        world_size: number of processes.
        init_method: as for `torch.distributed.init_process_group`.
        timeout: seconds after which a collective that does not complete is an error.

    Returns:
        Whether this call made the process group.

    Raises:
        RuntimeFault: the environment is inconsistent, the backend is missing, or the ranks cannot meet.
    """
    if dist.is_available() and dist.is_initialized():
        return False
    size = _number("WORLD_SIZE", world_size, 1)
    own = _number("RANK", rank, 0)
    if size <= 1:
        return False
    if not 0 <= own < size:
        raise RuntimeFault(f"rank {own} is not within 0 to {size - 1}")
    backend = backend_for(device_type or default_device_type())
    address = os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    if address in ("127.0.0.1", "localhost", "::1"):
        # Otherwise gloo asks for the address of the host's name, which need not resolve.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform.startswith("linux") else "lo0")
    if backend != "gloo" and "LOCAL_RANK" in os.environ:
        # Before the backend's first message: it would take a device by the rank's number in the whole world.
        torch.accelerator.set_device_index(_number("LOCAL_RANK", None, 0))
    try:
        dist.init_process_group(
            backend,
            init_method=init_method or "env://",
            rank=own,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
    except (RuntimeError, ValueError) as error:
        raise RuntimeFault(f"rank {own} of {size} cannot join the process group '{backend}': {error}") from None
    return True


def _number(variable: str, given: int | None, default: int) -> int:
    if given is not None:
        return given
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        raise RuntimeFault(f"environment variable {variable}: expected a number, got: '{text}'") from None


@dataclass(frozen=True)
class Group:
    """The ranks that take part in a collective, as this rank sees them.

    Positions count members by coordinate, first of the asked-for axes major. torch counts them by rank, which is the
    same where the axes are in mesh order.

    Attributes:
        name: what ``_c10d_functional`` operators call it; empty for a group of one.
        size: number of members.
        position: this rank's.
        order: torch's number of the member at each position; None where they are equal.
    """

    name: str
    size: int
    position: int
    order: tuple[int, ...] | None = None


def required_groups(program: Program) -> list[GroupKey]:
    """Return the keys of all process groups that a Program's collectives need, in an order all ranks agree on."""
    keys: set[GroupKey] = set()
    for function in program.functions.values():
        for op in function.ops:
            if op.target in COLLECTIVES:
                positions = op.kwargs.get("coordinates")
                axes = program.mesh.in_mesh_order(_names(op.kwargs["axes"]))
                keys.add((axes, None if positions is None else _positions(positions)))
    return sorted(keys, key=lambda key: (key[0], key[1] or ()))


def required_channels(program: Program) -> list[str]:
    """Return the axes that a Program sends along, in an order all ranks agree on."""
    axes = {
        str(op.kwargs["axis"])
        for function in program.functions.values()
        for op in function.ops
        if op.target in ("hp.send", "hp.recv")
    }
    return sorted(axes)


def required_messages(program: Program) -> set[tuple[str, int, int]]:
    """Return axis, sender's and receiver's position of the channels along the pipeline axis that a Program uses."""
    axis = program.pipeline_axis
    return {
        (str(axis), position, int(str(op.kwargs["peer"])))
        for names in (program.train, program.evaluate)
        for position, name in enumerate(names)
        for op in program.functions[name].ops
        if op.target == "hp.send" and op.kwargs["axis"] == axis
    }


def _names(axes: object) -> tuple[str, ...]:
    assert isinstance(axes, tuple)
    return tuple(str(axis) for axis in axes)


def _positions(positions: object) -> tuple[int, ...]:
    assert isinstance(positions, tuple)
    return tuple(int(position) for position in positions)


class RankMesh:
    """A Program's mesh on this process's ranks: one process group per set of axes, made once, in one order everywhere.

    Args:
        mesh: of the Program. Its ranks are the default process group's; a mesh of one rank needs no process group.
        device: of this rank; by default the accelerator numbered as `rank_device` says.
        groups: keys of the groups to make, as `required_groups` gives them.
        channels: axes to send along; each gets a group for sends to higher ranks and one for sends to lower ones, so
            that two ranks that both send first do not block each other.

    Raises:
        RuntimeFault: the process group's size is not the mesh's, or there is none.
    """

    def __init__(
        self,
        mesh: Mesh,
        device: torch.device | None = None,
        *,
        groups: Iterable[GroupKey] = (),
        channels: Iterable[str] = (),
    ):
        self.mesh = mesh
        self.distributed = dist.is_available() and dist.is_initialized()
        world = dist.get_world_size() if self.distributed else 1
        if world != mesh.size:
            have = f"the process group has {world}" if self.distributed else "there is no process group"
            hint = "" if self.distributed else f"; start {mesh.size} processes, for example with torchrun"
            raise RuntimeFault(f"mesh {mesh} has {mesh.size} ranks but {have}{hint}")
        self.rank = dist.get_rank() if self.distributed else 0
        self.device = device if device is not None else rank_device()
        self.backend = str(dist.get_backend()) if self.distributed else ""
        self.coordinate = mesh.coordinate(self.rank)
        self.device_mesh: DeviceMesh | None = None
        self._process_groups: dict[GroupKey, dist.ProcessGroup] = {}
        self._channels: dict[tuple[str, str], dist.ProcessGroup] = {}
        self._groups: dict[tuple[tuple[str, ...], tuple[int, ...] | None], Group] = {}
        if self.distributed:
            self._make_groups(groups, channels)

    def _make_groups(self, groups: Iterable[GroupKey], channels: Iterable[str]) -> None:
        self._timeout = torch_compat.default_timeout(self.device)
        for axis in self.mesh.axis_names:
            made = self._make_group((axis,), None, axis, single=True)
            assert made is not None
            self._process_groups[(axis,), None] = made
        self.device_mesh = self._make_device_mesh()
        for axes, positions in groups:
            if (axes, positions) not in self._process_groups:
                made = self._make_group(axes, positions, ",".join(axes))
                if made is not None:
                    self._process_groups[axes, positions] = made
        for axis in channels:
            for direction in ("up", "down"):
                made = self._make_group((axis,), None, f"{axis} {direction}", alone=True)
                if made is not None:
                    self._channels[axis, direction] = made

    def _make_device_mesh(self) -> DeviceMesh:
        """Return the mesh as torch has it, of groups that are there: those it makes itself have torch's timeout."""
        mesh = self.mesh
        groups = [self._process_groups[(axis,), None] for axis in mesh.axis_names]
        numbers = torch.arange(mesh.size, dtype=torch.int).view(mesh.axis_sizes)
        if len(groups) == 1:
            return DeviceMesh.from_group(groups[0], self.device.type, numbers, mesh_dim_names=mesh.axis_names)
        return DeviceMesh.from_group(groups, self.device.type, numbers, mesh_dim_names=mesh.axis_names)

    def _make_group(
        self,
        axes: tuple[str, ...],
        positions: tuple[int, ...] | None,
        description: str,
        *,
        alone: bool = False,
        single: bool = False,
    ) -> dist.ProcessGroup | None:
        """Make the groups over `axes` of all ranks and return this rank's; None where it is in none or alone.

        Every rank takes part in making every group, in the same order: torch names groups by counting them. `alone`: do
        not use the default group even where it has the same members. `single`: make one where it is alone, too.
        """
        own: dist.ProcessGroup | None = None
        for members in self.mesh.groups(axes):
            if positions is not None:
                members = tuple(members[position] for position in positions)
            if len(members) == 1 and not single:
                continue
            if len(members) == self.mesh.size and not alone:
                return dist.group.WORLD
            made = dist.new_group(list(members), timeout=self._timeout, group_desc=f"hpir {description}")
            if self.rank in members:
                own = made
        return own

    def _members(self, axes: Sequence[str], positions: tuple[int, ...] | None) -> tuple[int, ...]:
        members = self.mesh.group(self.rank, axes)
        return members if positions is None else tuple(members[position] for position in positions)

    def group(self, axes: Sequence[str], positions: Sequence[int] | None = None) -> Group:
        """Return this rank's group over `axes` (in the order asked for), or over some positions on one axis.

        Raises:
            RuntimeFault: this rank is not in it, or the Program did not declare it.
        """
        key = tuple(axes), None if positions is None else tuple(positions)
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = self._describe(*key)
        return found

    def _describe(self, axes: tuple[str, ...], positions: tuple[int, ...] | None) -> Group:
        mesh = self.mesh
        if positions is not None and self.coordinate[axes[0]] not in positions:
            raise RuntimeFault(
                f"rank {self.rank} is at position {self.coordinate[axes[0]]} of axis '{axes[0]}', "
                f"which takes no part in a collective over positions {list(positions)}"
            )
        members = self._members(axes, positions)
        position = members.index(self.rank)
        if len(members) == 1:
            return Group("", 1, 0)
        process_group = self._process_groups.get((mesh.in_mesh_order(axes), positions))
        if process_group is None:
            raise RuntimeFault(f"no process group was made for mesh axes {list(axes)}")
        ranked = sorted(members)
        order = tuple(ranked.index(member) for member in members)
        return Group(
            process_group.group_name, len(members), position, None if order == tuple(range(len(order))) else order
        )

    def state_mesh(self, axes: Sequence[str]) -> DeviceMesh | None:
        """Return the DeviceMesh over some axes, in mesh order; None without a process group or without axes."""
        if self.device_mesh is None or not axes:
            return None
        return self.device_mesh if tuple(axes) == self.mesh.axis_names else self.device_mesh[tuple(axes)]

    def channel(self, axis: str, sender: int, receiver: int) -> dist.ProcessGroup:
        """Return the process group for messages along `axis` from one rank to another."""
        found = self._channels.get((axis, "up" if receiver > sender else "down"))
        if found is None:
            raise RuntimeFault(f"no process group was made for messages along mesh axis '{axis}'")
        return found

    def open_channels(self, pairs: Iterable[tuple[str, int, int]]) -> None:
        """Send one message along each channel that will be used, all ranks in one order.

        Backends on accelerators connect two ranks at their first message, and both wait for that: two that both send
        first would wait for each other.

        Args:
            pairs: axis, and the positions of sender and receiver on it.
        """
        for axis, sender, receiver in sorted(pairs):
            here = self.coordinate[axis]
            if here == sender:
                other = self.neighbour(axis, receiver)
                dist.send(torch.zeros(1, device=self.device), other, self.channel(axis, self.rank, other))
            elif here == receiver:
                other = self.neighbour(axis, sender)
                dist.recv(torch.zeros(1, device=self.device), other, self.channel(axis, other, self.rank))

    def host_group(self) -> dist.ProcessGroup | None:
        """Return a process group of all ranks for tensors in host memory, made now; None where there can be none.

        All ranks call this together.
        """
        if not self.distributed:
            return None
        if self.backend == "gloo":
            world: dist.ProcessGroup | None = dist.group.WORLD
            return world
        if not dist.is_gloo_available():
            return None
        made: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=self._timeout, group_desc="hpir hosts")
        return made

    def number_in(self, group: dist.ProcessGroup, rank: int) -> int:
        """Return the number that a process group has for a rank."""
        return dist.get_group_rank(group, rank)

    def neighbour(self, axis: str, position: int) -> int:
        """Return the rank at `position` on `axis`, all other coordinates being this rank's."""
        return self.mesh.rank({**self.coordinate, axis: position})
