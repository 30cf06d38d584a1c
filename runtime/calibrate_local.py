"""Calibration on processes of this machine, or on those that torchrun has started."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from ..costs import Costs
from ..errors import RuntimeFault
from ..mesh import Mesh
from .calibration import Calibrator
from .device import backend_for, default_device_type, init_process_group, rank_device


def calibrate(mesh: Mesh, *, device_type: str | None = None, timeout: float = 600.0) -> tuple[Costs, list[str]]:
    """Measure the rates of this machine on one process per rank.

    Args:
        mesh: the ranks and the axes between them.
        device_type: such as ``cpu``; by default the accelerator's where there is one for each rank.
        timeout: seconds after which a collective that does not complete is an error.

    Returns:
        The costs, and what was found as lines for people.

    Raises:
        RuntimeFault: a rank failed; the text is its own.
    """
    kind = device_type or _device_for(mesh.size)
    launch: Callable[..., object] = spawn
    with tempfile.TemporaryDirectory() as folder:
        try:
            launch(_rank_main, (mesh, kind, folder, timeout), nprocs=mesh.size)
        except (ProcessRaisedException, ProcessExitedException) as error:
            last = [line for line in str(error).splitlines() if line.strip()][-1]
            raise RuntimeFault(f"calibration failed: {last}") from None
        return Costs.load(Path(folder) / "costs.toml"), (Path(folder) / "lines").read_text().splitlines()


def calibrate_here(mesh: Mesh, device_type: str | None = None) -> tuple[Costs, list[str], bool]:
    """Measure as one of the ranks that torchrun has started; all of them call this.

    Returns:
        The costs, what was found as lines for people, and whether this is the rank to write them.

    Raises:
        RuntimeFault: the mesh is not that of the process group, or the ranks cannot meet.
    """
    kind = device_type or default_device_type()
    made = init_process_group(kind)
    try:
        calibrator = Calibrator(mesh, rank_device(kind))
        costs = calibrator.measure()
        return costs, calibrator.lines, not dist.is_initialized() or dist.get_rank() == 0
    finally:
        if made:
            dist.destroy_process_group()


def started_by_torchrun() -> bool:
    """Return whether this process is one of several that a launcher started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _device_for(ranks: int) -> str:
    kind = default_device_type()
    return kind if kind == "cpu" or torch.accelerator.device_count() >= ranks else "cpu"


def _rank_main(rank: int, mesh: Mesh, kind: str, folder: str, timeout: float) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    if mesh.size > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform.startswith("linux") else "lo0")
        dist.init_process_group(
            backend_for(kind),
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=mesh.size,
            timeout=timedelta(seconds=timeout),
        )
    calibrator = Calibrator(mesh, rank_device(kind))
    costs = calibrator.measure()
    if rank == 0:
        costs.save(Path(folder) / "costs.toml")
        (Path(folder) / "lines").write_text("\n".join(calibrator.lines))
    if dist.is_initialized():
        dist.destroy_process_group()
