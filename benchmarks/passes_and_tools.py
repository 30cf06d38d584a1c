"""How long passes take on large modules, how fast `hp-opt` starts, and how it compares with another `opt` tool."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import large_modules
from measure import Pair, Row, Spread, alternate, bounded, repeat, run_tool, seconds

from hpir.dialect.context import make_context
from hpir.dialect.parsing import parse_module
from hpir.ir_passes.pass_manager import run_passes

PREPARATION = "hp-set-mesh{axes=dp:2}"
PASSES = "cse,hp-simplify,hp-fsdp{axes=dp units=blocks.*}"
SIZES = (1_000, 10_000, 100_000)


def tool(name: str) -> Path:
    """Return the path of a console script of this Python.

    Raises:
        FileNotFoundError: it is not installed.
    """
    path = Path(sysconfig.get_path("scripts")) / (f"{name}.exe" if sys.platform == "win32" else name)
    if not path.exists():
        raise FileNotFoundError(f"{name} is not installed: pip install --editable '.[bench]'")
    return path


def time_passes(operations: int, rounds: int) -> tuple[int, Spread]:
    """Time `PASSES` in this process on a module of about so many ops.

    Returns:
        The number of ops before the passes, and seconds.
    """
    text = large_modules.training_step(large_modules.blocks_for(operations))
    samples = []
    for _ in range(rounds + 1):
        module = parse_module(text, make_context())
        run_passes(module, PREPARATION)
        samples.append(seconds(lambda: run_passes(module, PASSES)))  # noqa: B023 - called at once
    return text.count(" = torch."), Spread.of(samples[1:])


def time_hp_opt(operations: int, rounds: int, folder: Path) -> Spread:
    """Time a whole `hp-opt` process that reads such a module, runs `PASSES` and writes the result."""
    source = folder / f"step_{operations}.mlir"
    source.write_text(large_modules.training_step(large_modules.blocks_for(operations)))
    pipeline = f"{PREPARATION},{PASSES}"
    command: list[str | Path] = [tool("hp-opt"), source, "--pass-pipeline", pipeline, "-o", folder / "result.mlir"]
    return repeat(lambda: run_tool(command), rounds)


def time_start(rounds: int, folder: Path) -> tuple[Spread, Spread]:
    """Time `hp-opt --version`, and `hp-opt` on an empty module."""
    source = folder / "empty.mlir"
    source.write_text("module {\n}\n")
    version = repeat(lambda: run_tool([tool("hp-opt"), "--version"]), rounds)
    empty = repeat(lambda: run_tool([tool("hp-opt"), source, "-o", folder / "result.mlir"]), rounds)
    return version, empty


def compare_cse(operations: int, rounds: int, folder: Path) -> Pair:
    """Time `xdsl-opt -p cse` and `hp-opt --cse` on one file, whole processes, in turns.

    Raises:
        RuntimeError: they do not give the same module.
    """
    source, theirs, ours = (folder / name for name in ("chain.mlir", "xdsl.mlir", "hp.mlir"))
    source.write_text(large_modules.arithmetic(operations))
    pair = alternate(
        lambda: run_tool([tool("xdsl-opt"), "-p", "cse", source, "-o", theirs]),
        lambda: run_tool([tool("hp-opt"), "--cse", source, "-o", ours]),
        rounds,
    )
    run_tool([tool("hp-opt"), theirs, "-o", folder / "reprinted.mlir"])
    if (folder / "reprinted.mlir").read_bytes() != ours.read_bytes():
        raise RuntimeError("xdsl-opt and hp-opt give different modules for cse")
    return pair


def rows(folder: Path, *, sizes: Sequence[int] = SIZES, chain: int = 20_000, rounds: int = 5) -> list[Row]:
    """Measure everything here.

    Args:
        folder: for files in between.
        sizes: ops of the modules for the passes, rising.
        chain: ops of the file for the comparison of tools.
        rounds: samples of each figure.
    """
    made = []
    per_op = []
    for size in sizes:
        count, inside = time_passes(size, rounds)
        whole = time_hp_opt(size, rounds, folder)
        per_op.append(inside.least / count)  # the least: what is compared was not measured in turns
        text = f"{inside.text('s')}; whole process {whole.text('s')}"
        subject = f"`cse,hp-simplify,hp-fsdp` on {count:,} ops"
        made.append(bounded(subject, text, whole.median, 5.0, "s") if size == sizes[-1] else Row(subject, text))
    growth = per_op[-1] / per_op[-2]
    made.append(bounded(f"time per op, {sizes[-1]:,} over {sizes[-2]:,} ops", f"{growth:.2f}", growth, 1.5))
    version, empty = time_start(rounds, folder)
    made.append(bounded("`hp-opt --version`", version.text("s"), version.median, 0.5, "s"))
    made.append(bounded("`hp-opt` on an empty module", empty.text("s"), empty.median, 0.5, "s"))
    pair = compare_cse(chain, rounds, folder)
    made.append(
        Row(
            f"`xdsl-opt -p cse` over `hp-opt --cse`, {chain:,} ops",
            f"{pair.ratio.text()}; {pair.first.text('s')} and {pair.second.text('s')}",
            "at least 8",
            pair.ratio.median >= 8,
        )
    )
    return made
