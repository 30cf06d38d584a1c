"""Functions on real ranks: one fresh process each, on this machine, over gloo.

A rank's process costs about two seconds of importing torch, so let one call of `run_ranks` check many things.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Once one rank has failed, the others are of no use; they get this long to say why they fail too.
_GRACE_S = 5.0
_POLL_S = 0.02
_LAST_WORDS_S = 5.0


class RankError(AssertionError):
    """A rank failed; the text has the ranks' tracebacks."""


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 120.0,
    process_group: bool = True,
    may_die: Collection[int] = (),
    environment: dict[str, str] | None = None,
) -> list[Any]:
    """Run ``function(rank, *args)`` on every rank and return the results in rank order.

    Args:
        function: at the top level of a module; what it returns is pickled.
        world_size: number of ranks.
        args: pickled.
        timeout: seconds after which all ranks are killed, and of the process group's collectives.
        process_group: whether the default process group is there already. Otherwise the environment is torchrun's.
        may_die: ranks that may end without a result; theirs is None.
        environment: more environment variables.

    Raises:
        RankError: a rank raised, died or took too long; the text has each rank's output.
    """
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        module = sys.modules[function.__module__]
        assert module.__file__ is not None
        payload = {
            "file": module.__file__,
            "module": "__mp_main__" if function.__module__ == "__main__" else function.__module__,
            "function": function.__qualname__,
            "world_size": world_size,
            "timeout": timeout,
            "deadline": time.time() + timeout,
            "process_group": process_group,
        }
        (directory / "payload").write_bytes(pickle.dumps(payload))
        # torch.save and not pickle, which does not know all dtypes.
        torch.save(args, directory / "arguments")
        processes = [_start(directory, rank, world_size, environment or {}) for rank in range(world_size)]
        try:
            late = _wait(processes, time.monotonic() + timeout, may_die)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        return _collect(directory, processes, late, may_die)


def _start(directory: Path, rank: int, world_size: int, extra: dict[str, str]) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform.startswith("linux") else "lo0",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        **extra,
    }
    with (directory / f"{rank}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, __file__, str(directory), str(rank)], stdout=log, stderr=subprocess.STDOUT, env=environment
        )


def _wait(processes: list[subprocess.Popen[bytes]], deadline: float, may_die: Collection[int]) -> bool:
    """Wait for all; tell whether the deadline passed."""
    while any(process.poll() is None for process in processes):
        now = time.monotonic()
        if now > deadline:
            return True
        if any(process.poll() and rank not in may_die for rank, process in enumerate(processes)):
            deadline = min(deadline, now + _GRACE_S)
        time.sleep(_POLL_S)
    return False


def _collect(
    directory: Path, processes: list[subprocess.Popen[bytes]], late: bool, may_die: Collection[int]
) -> list[Any]:
    results: list[Any] = []
    faults: list[str] = []
    for rank, process in enumerate(processes):
        file = directory / f"{rank}.result"
        if process.returncode == 0 and file.is_file():
            results.append(torch.load(file, weights_only=False))
        elif rank in may_die:
            results.append(None)
        else:
            log = (directory / f"{rank}.log").read_text(errors="replace")
            ended = "was killed after the timeout" if late and process.returncode < 0 else "failed"
            faults.append(f"rank {rank} {ended} (exit code {process.returncode}):\n{log}")
    if faults:
        raise RankError("\n".join(faults))
    return results


def _run_child(directory: Path, rank: int) -> None:
    torch.set_num_threads(1)
    payload = pickle.loads((directory / "payload").read_bytes())
    # A rank that hangs says where before it is killed.
    faulthandler.dump_traceback_later(max(payload["deadline"] - time.time() - _LAST_WORDS_S, 1.0))
    spec = importlib.util.spec_from_file_location(payload["module"], payload["file"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # pytest may have named it after the folders it lies in; what is pickled by that name is looked up through them.
    parents = payload["module"].split(".")[:-1]
    for depth in range(1, len(parents) + 1):
        name = ".".join(parents[:depth])
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules[payload["module"]] = module
    spec.loader.exec_module(module)
    function = getattr(module, payload["function"])
    # Only now: they may be of types that the module defines.
    arguments = torch.load(directory / "arguments", weights_only=False)
    if payload["process_group"]:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{directory / 'store'}",
            rank=rank,
            world_size=payload["world_size"],
            timeout=timedelta(seconds=payload["timeout"]),
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = function(rank, *arguments)
    torch.save(result, directory / f"{rank}.result")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    try:
        _run_child(Path(sys.argv[1]), int(sys.argv[2]))
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        # Not through the interpreter's end: a broken process group may hang there.
        os._exit(1)
