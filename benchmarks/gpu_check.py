"""Check a Program on the accelerators of this machine against the simulator, and measure what it costs there.

Needs torch, hpir (of which it loads the runtime alone, no MLIR) and a Program directory. One process per rank: NCCL
where there is a GPU for each, gloo on the CPU with `--device cpu` or where there are too few. Prints one table; exits
with 1 where a loss, gradient or buffer differs, or MLIR was loaded.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from gpu_rank import CHECKED_STEPS, Found, Setting, run_rank

from hpir.errors import HpirError
from hpir.runtime import torch_compat
from hpir.runtime.device import backend_for
from hpir.runtime.program import Program

_MAKING = """\
A Program directory is made where MLIR is installed, on any machine, and copied here:

  hp-translate --export my.module:build -o step.mlir
  hp-opt step.mlir --hp-plan=file=plan.toml | hp-translate --to-program - -o prog/

Draws of random numbers differ between kinds of devices, so the simulator runs on the device that is checked.
"""

TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "float16": 3e-2, "bfloat16": 5e-2}
"""Largest difference relative to a result's largest value, by the coarsest dtype of the Program."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; return the exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        epilog=_MAKING,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("program", help="a Program directory")
    parser.add_argument("--device", default="", help="cuda, npu, xpu or cpu (default: the accelerator there is)")
    parser.add_argument("--steps", type=int, default=20, help="steps to time (default 20)")
    parser.add_argument("--backend", default="eager", choices=("eager", "inductor"))
    parser.add_argument("--allow", action="append", default=[], help="a custom-op namespace the Program may call")
    parser.add_argument("--seed", type=int, default=0, help="of the random state and batches")
    parser.add_argument("--tolerance", type=float, help="largest relative difference (default: by the coarsest dtype)")
    parser.add_argument("--model", default="", help="pkg.mod:build as for hp-translate: time its FSDP2 step as well")
    parser.add_argument("--units", action="append", default=[], help="modules that FSDP2 shards, such as 'layers.*'")
    options = parser.parse_args(arguments)
    try:
        program = Program.load(options.program, allow=options.allow)
        device, note = _device_for(program, options.device)
        setting = Setting(
            options.program,
            device,
            program.mesh.size,
            _free_port(),
            max(options.steps, 1),
            options.backend,
            tuple(options.allow),
            options.seed,
            options.model,
            tuple(options.units),
        )
        found = _run(setting)
    except (HpirError, RankError) as error:
        print(f"gpu_check: error: {error}", file=sys.stderr)
        return 1
    tolerance = options.tolerance if options.tolerance is not None else _tolerance(program)
    rows, failed = _table(program, setting, found, tolerance, note)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    return 1 if failed else 0


class RankError(Exception):
    """A rank's process failed; the text is its traceback."""


def _device_for(program: Program, asked: str) -> tuple[str, str]:
    """Return the type of device to run on, and why it is not the one asked for, where it is not."""
    kind = asked or torch_compat.accelerator_type() or "cpu"
    backend_for(kind)
    if kind == "cpu":
        return kind, ""
    if not torch.accelerator.is_available():
        raise RankError(f"device type '{kind}': there is none on this machine")
    count = torch.accelerator.device_count()
    if program.mesh.size > count:
        return "cpu", f"{program.mesh.size} ranks and {count} {kind} devices: {backend_for(kind)} takes one rank each"
    return kind, ""


def _tolerance(program: Program) -> float:
    dtypes = {argument.type.dtype for function in program.functions.values() for argument in function.arguments}
    dtypes |= {type_.dtype for f in program.functions.values() for op in f.ops for type_ in op.types if type_}
    return max(TOLERANCES.get(dtype, 0.0) for dtype in (*dtypes, "float64"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(setting: Setting) -> list[Found]:
    """Run every rank in a process of its own; return what they found, in rank order."""
    context = multiprocessing.get_context("spawn")
    reports: Any = context.SimpleQueue()
    processes = [context.Process(target=run_rank, args=(rank, setting, reports)) for rank in range(setting.ranks)]
    for process in processes:
        process.start()
    found: dict[int, Found] = {}
    try:
        while len(found) < len(processes):
            while reports.empty():
                if any(process.exitcode not in (None, 0) for process in processes) and reports.empty():
                    raise RankError("a rank's process ended without a report")
                time.sleep(0.02)
            rank, report = reports.get()
            if isinstance(report, str):
                raise RankError(f"rank {rank}: {report}")
            found[rank] = report
        for process in processes:
            process.join(30)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    return [found[rank] for rank in range(setting.ranks)]


def _table(
    program: Program, setting: Setting, found: Sequence[Found], tolerance: float, note: str
) -> tuple[list[tuple[str, str]], bool]:
    """Return the rows to print, and whether anything is wrong."""
    worst: dict[str, float] = {}
    for rank in found:
        for name, difference in rank.differences.items():
            worst[name] = max(worst.get(name, 0.0), difference)
    wrong = {name: difference for name, difference in worst.items() if not difference <= tolerance}
    loaded = any(rank.loaded_mlir for rank in found)
    transport = backend_for(setting.device) if setting.ranks > 1 else "no process group"
    rows = [
        ("program", f"{program.digest[:12]}, mesh {program.mesh}, backend {setting.backend}"),
        ("device", f"{setting.ranks} x {setting.device}, {transport}, torch {torch.__version__}"),
    ]
    if note:
        rows.append(("not on the accelerator", note))
    for name in sorted(wrong, key=lambda each: -wrong[each])[:10]:
        rows.append(("DIFFERS", f"{name}: {wrong[name]:.3g}, at most {tolerance:g}"))
    largest = max(worst, key=lambda each: worst[each])
    text = (
        f"{len(worst)} results of {CHECKED_STEPS} steps, {len(wrong)} differ; largest {worst[largest]:.3g} ({largest})"
    )
    rows.append(("against the simulator", text))
    rows.append(("MLIR loaded", "YES" if loaded else "no"))
    rows.append(("step", _milliseconds([ms for rank in found for ms in rank.step_ms])))
    fsdp2 = [ms for rank in found for ms in rank.fsdp2_ms]
    rows.append(("FSDP2 step", _milliseconds(fsdp2) if fsdp2 else "not timed: needs --model and several ranks"))
    memory = "of the device" if setting.device != "cpu" else "of the process"
    rows.append(("peak memory", f"{max(rank.peak_mb for rank in found):.1f} MiB {memory}, the largest rank's"))
    rows.append(("in waits", f"{100 * max(rank.waiting for rank in found):.1f} % of a step, the largest rank's"))
    rows.append(("overlap", _overlap_text([rank.overlap for rank in found if rank.overlap is not None])))
    return rows, bool(wrong) or loaded


def _milliseconds(samples: Sequence[float]) -> str:
    return f"{statistics.median(samples):.3f} ms ({min(samples):.3f}..{max(samples):.3f})"


def _overlap_text(overlaps: Sequence[tuple[float, float]]) -> str:
    if not overlaps:
        return "not traced: needs several ranks on cuda"
    total, beside = (sum(each[part] for each in overlaps) / len(overlaps) for part in (0, 1))
    share = 100 * beside / total if total else 0.0
    return f"{beside:.3f} of {total:.3f} ms of communication kernels run beside others ({share:.0f} %)"


if __name__ == "__main__":
    sys.exit(main())
