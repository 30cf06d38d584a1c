"""Measure everything once, print the table, and write it to docs/performance.md. Run it with ``make bench``."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import passes_and_tools
import torch
from measure import Row
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"

_HEAD = """\
# Performance

Written by `make bench`, all in one run: {machine}.

What is compared runs in turns (A B A B ...), so that other work on the machine meets both. A figure is the median, with
the range of all samples behind it. A ratio is taken turn by turn.

| what | measured | target | kept |
| --- | --- | --- | --- |
"""

_NOTES = """
- **FSDP step**: forward and backward of the language model in `examples/language_model.py`, float32, in two processes
  over gloo on this machine, one thread each, no optimiser. FSDP2 is `fully_shard` on each layer and on the root; both
  gather again in the backward. Before anything is timed, both must give the same loss and gradients, up to 1e-5 of the
  largest.
- **One-rank step**: the same model in one process with one thread.
- **Passes**: modules that `benchmarks/large_modules.py` writes, forward and backward, three trainable parameters to 90
  ops; all ops count, constants too. The first figure is the passes in a running process, the second all of
  `hp-opt step.mlir -o result.mlir` with them: starting, parsing, verifying after each pass, printing.
- **hp-opt over xdsl-opt**: whole processes on one file of MLIR's arith dialect, which both read; they must write the
  same module.
"""


def machine() -> str:
    """Describe what it ran on, as far as it matters."""
    return f"{os.cpu_count()} cores, torch {torch.__version__}, {datetime.datetime.now(datetime.timezone.utc).date()}"


def page(rows: Sequence[Row], description: str) -> str:
    """Return the text of the page."""
    lines = [f"| {row.subject} | {row.measured} | {row.target} | {_verdict(row)} |\n" for row in rows]
    return _HEAD.format(machine=description) + "".join(lines) + _NOTES


def _verdict(row: Row) -> str:
    return "" if row.met is None else "yes" if row.met else "NO"


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the table."""
    table = Table(title="hpir benchmarks", title_justify="left")
    for name in ("what", "measured", "target", "kept"):
        table.add_column(name, overflow="fold")
    for row in rows:
        style = "red" if row.met is False else None
        table.add_row(row.subject.replace("`", ""), row.measured, row.target, _verdict(row), style=style)
    console.print(table)


def measure(parts: Sequence[str], console: Console) -> list[Row]:
    """Run the benchmarks asked for."""
    rows: list[Row] = []
    if "steps" in parts:
        # The steps are those of the examples' model.
        sys.path.insert(0, str(ROOT / "examples"))
        import training_steps

        with console.status("training steps"):
            rows += training_steps.rows()
    if "tools" in parts:
        with console.status("passes and tools"), tempfile.TemporaryDirectory() as folder:
            rows += passes_and_tools.rows(Path(folder))
    return rows


def main() -> int:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="steps, tools; only all of them (the default) write the page")
    options = parser.parse_args()
    known = ("steps", "tools")
    for part in options.parts:
        if part not in known:
            parser.error(f"unknown part '{part}', expected {' or '.join(known)}")
    console, begin = Console(), time.monotonic()
    rows = measure(options.parts or known, console)
    show(rows, console)
    if not options.parts:
        PAGE.write_text(page(rows, machine()))
        console.print(f"written to {PAGE.relative_to(ROOT)} after {time.monotonic() - begin:.0f} s")
    missed = [row.subject for row in rows if row.met is False]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
