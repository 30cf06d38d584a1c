"""Train a 5 M parameter language model on real source code: a pipeline of two stages, each fully sharded.

Four local processes: two stages, and two data ranks that split the parameters of each. The same training runs in one
process with plain torch beside it; the two loss curves must be the same. Run it with ``make demo``. It leaves in
``out/demo``: the step as IR before and after the passes, the Program, the torch code of rank 0, the loss curves as a
picture, and a page about what a step takes.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from language_model import LanguageModel, global_batch, next_token_loss, standard_library_bytes
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import hpir

LENGTH = 128
LEARNING_RATE = 1e-3
STAGES = 2
MICROBATCHES = 4


def plan(ranks: int) -> dict[str, Any]:
    """The plan: two stages; parameters, gradients and optimiser state of each split over its data ranks.

    A layer is a unit: its collectives are one, and its parameters are gathered while the unit before it computes.
    """
    return {
        "mesh": {"pp": STAGES, "dp": ranks // STAGES},
        "data": {"axes": ["dp"], "microbatches": MICROBATCHES},
        "fsdp": {"axes": ["dp"], "units": ["layers.*"]},
        "buckets": {"by": "module"},
        "overlap": {"prefetch": 1},
        "pipeline": {"axis": "pp", "schedule": "1f1b", "stages": "auto"},
    }


def build_model() -> LanguageModel:
    """The same model on every rank and in the one-process run."""
    torch.manual_seed(0)
    return LanguageModel(length=LENGTH)


def train_rank(rank: int, ranks: int, port: int, steps: int, rows: int, losses: Any) -> None:
    """Train on one rank; rank 0 reports each step's global loss."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    corpus = standard_library_bytes()
    data_ranks = ranks // STAGES
    # The last axis of the mesh counts fastest. All stages of a data rank are given the same rows.
    first = rank % data_ranks * rows

    def batch(number: int) -> dict[str, torch.Tensor]:
        whole = global_batch(corpus, number, data_ranks * rows, LENGTH)
        return {name: leaf[first : first + rows] for name, leaf in whole.items()}

    model = build_model()
    step = hpir.compile(model, next_token_loss, batch(0), plan=plan(ranks))
    optimiser = torch.optim.AdamW(step.parameters(), lr=LEARNING_RATE)
    for number in range(steps):
        loss = step(**batch(number))
        optimiser.step()
        optimiser.zero_grad()
        if rank == 0:
            losses.put(float(loss))
    dist.destroy_process_group()


def train_alone(steps: int, ranks: int, rows: int, progress: Progress) -> list[float]:
    """Train in this process with plain torch on the same global batches; return the losses."""
    corpus, model = standard_library_bytes(), build_model()
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for number in progress.track(range(steps), description="one process, plain torch"):
        loss = next_token_loss(model, **global_batch(corpus, number, ranks // STAGES * rows, LENGTH))
        torch.autograd.backward(loss)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def train_sharded(steps: int, ranks: int, rows: int, progress: Progress) -> list[float]:
    """Train on local gloo processes; return the losses that rank 0 saw."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.Queue()
    processes = [
        context.Process(target=train_rank, args=(rank, ranks, port, steps, rows, queue)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    losses: list[float] = []
    try:
        task = progress.add_task(f"{ranks} processes, hpir", total=steps)
        while len(losses) < steps:
            if queue.empty():
                failed = [number for number, process in enumerate(processes) if process.exitcode not in (None, 0)]
                if failed:
                    sys.exit(f"rank {failed[0]} ended with exit code {processes[failed[0]].exitcode}")
                time.sleep(0.02)
                continue
            losses.append(queue.get())
            progress.update(task, advance=1, description=f"{ranks} processes, hpir  loss {losses[-1]:.3f}")
        for process in processes:
            process.join(30)
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
    return losses


def write_representations(folder: Path, ranks: int, rows: int) -> None:
    """Write the step before and after the pass, the Program, and the torch code that rank 0 runs."""
    from hpir.runtime.python_text import to_python

    model = build_model()
    batch = global_batch(standard_library_bytes(), 0, rows // MICROBATCHES, LENGTH)  # one microbatch
    exported = hpir.export(model, next_token_loss, batch)
    exported.save(folder / "step.mlir")
    program = hpir.compile_program(exported, plan(ranks))
    (folder / "step.program.mlir").write_text(program.text)
    program.save(folder / "program")
    (folder / "rank0.py").write_text(to_python(program, rank=0))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    joint, sharded = ((folder / name).read_text().count(" = ") for name in ("step.mlir", "step.program.mlir"))
    print(f"{parameters / 1e6:.1f} M parameters; the step is {joint} ops, the Program of all ranks {sharded}")


def write_report(folder: Path, ranks: int, rows: int) -> None:
    """Run three steps of the Program, recorded, and write the page that shows them beside what they should take."""
    from hpir.runtime.local_ranks import train_local
    from hpir.tools.hp_report import run

    batch = global_batch(standard_library_bytes(), 0, ranks // STAGES * rows, LENGTH)
    model = build_model()
    state = {**model.state_dict(), **dict(model.named_buffers())}
    train_local(folder / "program", state, batch, steps=3, profile=folder / "profile")
    run([str(folder / "program"), "--device=cpu", f"--run={folder / 'profile'}", f"--output={folder / 'report.html'}"])


def draw(folder: Path, alone: list[float], sharded: list[float], ranks: int) -> None:
    """Draw both loss curves."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(alone, linewidth=5, alpha=0.35, label="one process, plain torch")
    axes.plot(sharded, linewidth=1.5, label=f"{ranks} gloo processes, hpir, 1f1b with FSDP")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per byte)")
    axes.set_title("Training on the Python standard library's source")
    axes.legend()
    figure.savefig(folder / "loss.png", dpi=150)


def main() -> int:
    """Run both trainings and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rows", type=int, default=4, help="sequences per data rank and step")
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    options = parser.parse_args()
    if options.ranks % STAGES or options.rows % MICROBATCHES:
        parser.error(f"--ranks must be a multiple of {STAGES}, --rows of {MICROBATCHES}")
    options.out.mkdir(parents=True, exist_ok=True)
    write_representations(options.out, options.ranks, options.rows)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        sharded = train_sharded(options.steps, options.ranks, options.rows, progress)
        alone = train_alone(options.steps, options.ranks, options.rows, progress)
    draw(options.out, alone, sharded, options.ranks)
    write_report(options.out, options.ranks, options.rows)
    difference = max(abs(a - b) / abs(a) for a, b in zip(alone, sharded, strict=True))
    print(f"loss {sharded[0]:.4f} -> {sharded[-1]:.4f} in {options.steps} steps")
    print(f"written to {options.out}: step.mlir, step.program.mlir, program, rank0.py, loss.png")
    print(f"where the time and the memory of a step go: open {options.out / 'report.html'} in a browser")
    print(f"maximal loss difference to the one-process run: {difference:.2e} (relative)")
    return 0 if difference <= 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
