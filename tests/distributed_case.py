"""Functions on real ranks: one fresh process each, on this machine, over gloo.

The processes are forked from one that has imported torch and nothing else has happened in, since that import takes
seconds.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Once one rank has failed, the others are of no use; they get this long to say why they fail too.
_GRACE_S = 5.0
_POLL_S = 0.02
_LAST_WORDS_S = 5.0

# What most ranks need. None of it starts a thread, and none is MLIR, which a rank does without.
_IMPORTED_ONCE = (
    "torch",
    "torch.distributed.tensor",
    "torch.testing",
    "torch._dynamo.functional_export",
    "torch._functorch.aot_autograd",
    "torch._inductor.decomposition",
    "hpir.runtime.step",
    "hpir.runtime.simulate",
)


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
                if process.exitcode is None:
                    process.kill()
                process.join()
        return _collect(directory, processes, late, may_die)


@cache
def _template() -> ForkServerContext:
    """Return the context whose processes are forked from the one that has imported torch."""
    # Read when torch is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED_ONCE))
    return context


def _start(directory: Path, rank: int, world_size: int, extra: dict[str, str]) -> ForkServerProcess:
    environment = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform.startswith("linux") else "lo0",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        **extra,
    }
    process = _template().Process(target=_enter, args=(directory, rank, environment))
    process.start()
    return process


def _wait(processes: list[ForkServerProcess], deadline: float, may_die: Collection[int]) -> bool:
    """Wait for all; tell whether the deadline passed."""
    while any(process.exitcode is None for process in processes):
        now = time.monotonic()
        if now > deadline:
            return True
        if any(process.exitcode and rank not in may_die for rank, process in enumerate(processes)):
            deadline = min(deadline, now + _GRACE_S)
        time.sleep(_POLL_S)
    return False


def _collect(directory: Path, processes: list[ForkServerProcess], late: bool, may_die: Collection[int]) -> list[Any]:
    results: list[Any] = []
    faults: list[str] = []
    for rank, process in enumerate(processes):
        file = directory / f"{rank}.result"
        if process.exitcode == 0 and file.is_file():
            results.append(torch.load(file, weights_only=False))
        elif rank in may_die:
            results.append(None)
        else:
            log = (directory / f"{rank}.log").read_text(errors="replace")
            ended = "was killed after the timeout" if late and (process.exitcode or 0) < 0 else "failed"
            faults.append(f"rank {rank} {ended} (exit code {process.exitcode}):\n{log}")
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


def _enter(directory: Path, rank: int, environment: dict[str, str]) -> None:
    """Be a rank's process: its output goes to its log, its failure to the exit code."""
    with (directory / f"{rank}.log").open("wb") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    os.environ.update(environment)
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    try:
        _run_child(directory, rank)
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        # Not through the interpreter's end: a broken process group may hang there.
        os._exit(1)
