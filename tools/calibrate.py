"""``hp-run --calibrate``: the rates of this machine, measured and written to a file for the cost model."""

from __future__ import annotations

from pathlib import Path

from ..errors import PlanError
from ..mesh import Mesh


def calibrate_to(path: str, ranks: int | None, axes: str | None) -> int:
    """Measure on `ranks` processes, print what was found and write it to `path`; return the exit status.

    Args:
        path: of the TOML file.
        ranks: number of processes.
        axes: mesh axes to measure, such as ``pp:2,dp:2``; one over all ranks by default, for any axis.

    Raises:
        PlanError: the options do not go together, or the file cannot be written.
        RuntimeFault: a rank failed.
    """
    if ranks is None or ranks < 1:
        raise PlanError("--calibrate: give the number of processes, at least 1, with --nproc")
    mesh = Mesh.of({"all": ranks}) if axes is None else _mesh(axes)
    if mesh.size != ranks:
        raise PlanError(f"--axes: {mesh} has {mesh.size} ranks, but --nproc is {ranks}")
    if not Path(path).absolute().parent.is_dir() or Path(path).is_dir():
        raise PlanError(f"--calibrate: cannot write '{path}'")
    from ..runtime.calibrate_local import calibrate, calibrate_here, started_by_torchrun

    if started_by_torchrun():
        costs, lines, writes = calibrate_here(mesh)
    else:
        costs, lines = calibrate(mesh)
        writes = True
    if writes:
        if axes is None:
            costs = costs.model_copy(update={"axes": {}, "links": costs.axes.get("all", costs.links)})
        print("\n".join(lines))
        costs.save(path)
    return 0


def _mesh(axes: str) -> Mesh:
    sizes: dict[str, int] = {}
    for pair in axes.split(","):
        name, _, size = pair.strip().partition(":")
        if not name or not size.isdecimal() or name in sizes:
            raise PlanError(f"--axes: expected name:size pairs such as pp:2,dp:2, got: '{axes}'")
        sizes[name] = int(size)
    return Mesh.of(sizes)
