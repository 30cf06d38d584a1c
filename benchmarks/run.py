"""Measure, print the table, and write it to docs/performance.md. Run it with ``make bench``."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from measure import Row
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"

_HEAD = """\
# Performance

Written by `make bench`, which measures all of it; the command beside a table measures that table alone.

What is compared runs in turns (A B A B ...), so that other work on the machine meets both. A figure is the median, with
the range of all samples behind it. A ratio is taken turn by turn.
"""


def _steps() -> list[Row]:
    import training_steps

    return training_steps.rows()


def _tools() -> list[Row]:
    import passes_and_tools

    with tempfile.TemporaryDirectory() as folder:
        return passes_and_tools.rows(Path(folder))


def _buckets() -> list[Row]:
    import bucketing

    return bucketing.rows()


def _large() -> list[Row]:
    import large_export

    return large_export.rows()


def _overlap() -> list[Row]:
    import overlap_pass

    return overlap_pass.rows()


def _pipeline() -> list[Row]:
    import pipeline_passes

    return pipeline_passes.rows()


def _schedules() -> list[Row]:
    import pipeline_steps

    return pipeline_steps.rows()


@dataclass(frozen=True)
class Part:
    """One table of the page: its title, what measures it, and what a reader must know of it."""

    title: str
    rows: Callable[[], list[Row]]
    notes: str


PARTS = {
    "steps": Part(
        "Training steps",
        _steps,
        """\
- **FSDP step**: forward and backward of the language model in `examples/language_model.py`, float32, in processes over
  gloo on this machine, one thread each, no optimiser. FSDP2 is `fully_shard` on each layer and on the root, with
  `set_modules_to_forward_prefetch` of the next layer; the plan has a unit per layer, `[buckets]` and `[overlap]` with
  their defaults. Both gather again in the backward. Before anything is timed, both must give the same loss and
  gradients, up to 1e-5 of the largest.
- **Layouts**: the same step with `buckets.layout` "flat" and "packed".
- **Collectives per unit**: starts in the Program of two ranks, of the layers and the parameters outside them.
- **One-rank step**: the same model in one process with one thread.
""",
    ),
    "schedules": Part(
        "Pipelined training steps",
        _schedules,
        """\
- The language model and processes as above, a batch of 16x64 in all, cut into the same stages for both. The peer is
  `torch.distributed.pipelining` with its schedule of the same kind, `PipelineStage` per stage and a loss function on
  the last; both must give the same loss and gradients, up to 1e-5 of the largest.
- **zb-h1 over 1f1b**: both hpir's, of the same model but for dim 256. At dim 128 the ratio is worse: what zb-h1 keeps
  for later costs more cache misses beside the less that is computed with it.
- **A task without work**: a step of four stages that multiply one number, on one rank: time per call of a stage
  function, that of its one to three operators included, messages not.
""",
    ),
    "tools": Part(
        "Passes and tools",
        _tools,
        """\
- **Passes**: modules that `benchmarks/large_modules.py` writes, forward and backward, three trainable parameters to 90
  ops; all ops count, constants too. The first figure is the passes in a running process, the second all of
  `hp-opt step.mlir -o result.mlir` with them: starting, parsing, verifying after each pass, printing.
- **hp-opt over xdsl-opt**: whole processes on one file of MLIR's arith dialect, which both read; they must write the
  same module.
""",
    ),
    "buckets": Part(
        "Buckets",
        _buckets,
        """\
- Modules that `benchmarks/large_modules.py` writes, sharded over 2 ranks with a unit per block: nine collectives to 450
  ops. The time is planning and rewriting with `by=module`, in a running process; all ops count, constants too. It is
  processor time, that beside inductor's excepted.
- **Inductor's bucketing**: `bucket_all_gather` and `bucket_reduce_scatter` of `torch._inductor.fx_passes.bucketing`, on
  an FX graph of the same operators and collectives, with the buckets that they choose. Its time grows faster than the
  graph: at 100,000 ops it is minutes.
""",
    ),
    "overlap": Part(
        "Overlap",
        _overlap,
        """\
- The pass in a running process, no remarks, on modules as for the passes above; the ops are those behind `hp-fsdp`.
  Times are processor time, so that other work on the machine counts little; the ratio is of the least of each.
""",
    ),
    "pipeline": Part(
        "Pipelines",
        _pipeline,
        """\
- Modules that `benchmarks/large_modules.py` writes, a block to a layer, cut into stages of 1f1b, in a running process,
  no remarks; MLIR's verifier runs behind each pass. Times are processor time, so that other work on the machine counts
  little; ratios are of the least of each.
""",
    ),
    "large": Part(
        "Large models",
        _large,
        """\
- The model is `examples/llama.py` at the shape of Llama 3 70B, bfloat16, batch 1x4096, on the meta device. Each size is
  exported once, in a process of its own, with one thread; peak memory is that process's, torch and all.
- Times are processor time, so that other work on the machine counts little; of what follows the export, the lesser of
  two. Growth is the time per layer of the whole model over that of the second size; what does not grow with the model
  makes it less than one.
- **The road**: 256 data ranks, a unit per layer, 4 microbatches, gradients reduced in float32.
""",
    ),
}


def machine() -> str:
    """Describe what it ran on, as far as it matters."""
    return f"{os.cpu_count()} cores, torch {torch.__version__}, {datetime.datetime.now(datetime.timezone.utc).date()}"


def section(name: str, rows: Sequence[Row], description: str) -> str:
    """Return the text of one part of the page."""
    part = PARTS[name]
    lines = [f"| {row.subject} | {row.measured} | {row.target} | {_verdict(row)} |\n" for row in rows]
    return (
        f"## {part.title}\n\n`python benchmarks/run.py {name}`, {description}:\n\n"
        f"| what | measured | target | kept |\n| --- | --- | --- | --- |\n{''.join(lines)}\n{part.notes}"
    )


def page(sections: Mapping[str, str], before: str = "") -> str:
    """Return the text of the page: the sections given, and of those that are not, what the page had before."""
    kept = {title.partition("\n")[0]: f"## {title}" for title in before.split("\n## ")[1:]}
    texts = [sections.get(name, kept.get(part.title, "")).rstrip("\n") for name, part in PARTS.items()]
    return "\n".join([_HEAD, *(f"{text}\n" for text in texts if text)])


def _verdict(row: Row) -> str:
    return "" if row.met is None else "yes" if row.met else "NO"


def show(title: str, rows: Sequence[Row], console: Console) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for name in ("what", "measured", "target", "kept"):
        table.add_column(name, overflow="fold")
    for row in rows:
        style = "red" if row.met is False else None
        table.add_row(row.subject.replace("`", ""), row.measured, row.target, _verdict(row), style=style)
    console.print(table)


def main() -> int:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; all of them by default")
    options = parser.parse_args()
    for name in options.parts:
        if name not in PARTS:
            parser.error(f"unknown part '{name}', expected {', '.join(list(PARTS)[:-1])} or {list(PARTS)[-1]}")
    # The models are those of the examples.
    sys.path.insert(0, str(ROOT / "examples"))
    console, begin = Console(), time.monotonic()
    missed = 0
    for name in options.parts or PARTS:
        part = PARTS[name]
        with console.status(part.title.lower()):
            rows = part.rows()
        show(part.title, rows, console)
        PAGE.write_text(page({name: section(name, rows, machine())}, PAGE.read_text()))
        missed += sum(row.met is False for row in rows)
    console.print(f"written to {PAGE.relative_to(ROOT)} after {time.monotonic() - begin:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
