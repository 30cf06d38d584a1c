"""A Program on real processes of this machine: what `hp-run --nproc` does.

No model is needed: parameters and buffers live in a bare module tree with the Program's names.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import queue
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import HpirError, RuntimeFault
from .entries import all_state, entries_of, inputs_of
from .profile import Recorder, make_profile_folder
from .program import Argument, Program
from .static_inputs import take_static
from .trees import flatten_batch, nest_leaves

_POLL_S = 0.1
_GRACE_S = 5.0


def train_local(
    path: str | Path,
    state: Mapping[str, Tensor],
    batch: Mapping[str, Any],
    *,
    steps: int = 1,
    backend: str = "eager",
    allow: Sequence[str] = (),
    timeout: float = 600.0,
    profile: str | Path | None = None,
) -> list[tuple[float, float]]:
    """Run training steps of a saved Program on one gloo process per rank of its mesh, over loopback.

    Gradients are dropped after each step: the loss and the time are what is asked for.

    Args:
        path: the Program's directory.
        state: full tensors by name.
        batch: the global batch, the same for each step.
        steps: steps to run.
        backend: "eager" or "inductor".
        allow: custom-op namespaces the Program may call.
        timeout: seconds after which all processes are ended.
        profile: a folder for one file per rank that says what it did when in the last step (see `Recorder`).

    Returns:
        Loss and seconds of each step, as rank 0 had them.

    Raises:
        RuntimeFault: a rank failed or took too long; the text is that rank's.
    """
    program = Program.load(path, allow=allow)
    if profile is not None:
        make_profile_folder(profile)
    context = mp.get_context("spawn")
    reports: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        leaves = take_static(program.static_inputs, flatten_batch(batch))
        torch.save({"state": dict(state), "batch": leaves}, Path(folder) / "data.pt")
        kept = None if profile is None else str(profile)
        arguments = (str(path), folder, program.mesh.size, steps, backend, tuple(allow), timeout, kept, reports)
        processes = [
            context.Process(target=_rank_main, args=(rank, *arguments), daemon=True)
            for rank in range(program.mesh.size)
        ]
        for process in processes:
            process.start()
        try:
            return _collect(processes, reports, time.monotonic() + timeout)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()


def _collect(processes: Sequence[Any], reports: Any, deadline: float) -> list[tuple[float, float]]:
    """Wait for every rank's report; the first failure, by rank, is raised once the others had time to report theirs."""
    finished: dict[int, list[tuple[float, float]]] = {}
    failed: dict[int, str] = {}
    while len(finished) + len(failed) < len(processes):
        with contextlib.suppress(queue.Empty):
            rank, losses, fault = reports.get(timeout=_POLL_S)
            if fault is None:
                finished[rank] = losses
            else:
                failed[rank] = fault
            continue
        for rank, process in enumerate(processes):
            if process.exitcode not in (None, 0) and rank not in failed:
                failed[rank] = f"the process ended with exit code {process.exitcode}"
        if failed:
            deadline = min(deadline, time.monotonic() + _GRACE_S)
        if time.monotonic() > deadline:
            break
    if failed:
        rank = min(failed)
        raise RuntimeFault(f"rank {rank}: {failed[rank]}")
    if len(finished) < len(processes):
        late = [str(rank) for rank in range(len(processes)) if rank not in finished]
        raise RuntimeFault(f"no result in time from rank {', '.join(late)}")
    return finished[0]


def _rank_main(
    rank: int,
    path: str,
    folder: str,
    ranks: int,
    steps: int,
    backend: str,
    allow: Sequence[str],
    timeout: float,
    profile: str | None,
    reports: Any,
) -> None:
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=timeout),
        )
        losses = _train(rank, path, Path(folder) / "data.pt", steps, backend, allow, profile)
    except HpirError as error:
        reports.put((rank, None, str(error)))
    except BaseException:
        reports.put((rank, None, traceback.format_exc()))
        raise
    else:
        reports.put((rank, losses, None))
        dist.destroy_process_group()


def _train(
    rank: int, path: str, data: Path, steps: int, backend: str, allow: Sequence[str], profile: str | None
) -> list[tuple[float, float]]:
    from .step import Step

    program = Program.load(path, allow=allow)
    loaded = torch.load(data, weights_only=True)
    # Of the whole model, as a user has it: a rank of a pipeline drops what other stages own.
    state = all_state(program).values()
    inputs = inputs_of(entries_of(program, "train")).values()
    model = module_of(state, loaded["state"])
    constants = {
        name: loaded["state"][name]
        for argument in state
        if argument.role == "constant"
        for name in argument.names
        if name in loaded["state"]
    }
    recorder = Recorder(torch.device("cpu")) if profile is not None else None
    step = Step(program, model, constants=constants, backend=backend, allow=allow, recorder=recorder)
    batch = nest_leaves({**rank_leaves(program, rank, inputs, loaded["batch"]), **program.static_inputs})
    losses = []
    for _ in range(steps):
        begin = time.perf_counter()
        loss = float(step(**batch))
        losses.append((loss, time.perf_counter() - begin))
        for parameter in step.parameters():
            parameter.grad = None
    if recorder is not None and profile is not None:
        recorder.save(profile, program, rank)
    return losses


def module_of(arguments: Iterable[Argument], state: Mapping[str, Tensor]) -> nn.Module:
    """Build a bare module tree that holds a Program's parameters and buffers under their names; ties are kept.

    Raises:
        RuntimeFault: `state` lacks one of them under all of its names.
    """
    root = nn.Module()
    for argument in arguments:
        if argument.role not in ("param", "buffer"):
            continue
        given = next((state[name] for name in argument.names if name in state), None)
        if given is None:
            raise RuntimeFault(f"state lacks '{argument.name}'")
        tensor = nn.Parameter(given.clone(), requires_grad=argument.trainable) if argument.role == "param" else given
        for name in argument.names:
            *path, leaf = name.split(".")
            owner = root
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                child = owner._modules[part]
                assert child is not None
                owner = child
            if isinstance(tensor, nn.Parameter):
                owner.register_parameter(leaf, tensor)
            else:
                owner.register_buffer(leaf, tensor.clone() if name == argument.name else tensor)
    return root


def rank_leaves(
    program: Program, rank: int, arguments: Iterable[Argument], leaves: Mapping[str, Any]
) -> dict[str, Any]:
    """Return this data rank's part of the global batch; what does not divide is left for the step to refuse."""
    count, position = program.mesh.count(program.data_axes), program.mesh.position(rank, program.data_axes)
    dims = {argument.name: argument.batch_dim for argument in arguments if argument.role == "input"}
    part = dict(leaves)
    for name, leaf in leaves.items():
        dim = dims.get(name)
        if dim is not None and isinstance(leaf, Tensor) and leaf.dim() > dim and leaf.shape[dim] % count == 0:
            size = leaf.shape[dim] // count
            part[name] = leaf.narrow(dim, position * size, size)
    return part
