"""How long the passes of a pipeline take: assigning stages, splitting, scheduling and verifying."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import large_modules
from measure import Row, Spread, bounded

from hpir.dialect.context import make_context
from hpir.dialect.parsing import parse_module
from hpir.ir_passes.pass_manager import run_passes


@dataclass(frozen=True)
class Size:
    """A pipeline of `large_modules.training_step`, a block to a layer."""

    layers: int = 80
    stages: int = 8
    microbatches: int = 32
    schedule: str = "1f1b"

    def passes(self) -> dict[str, str]:
        """Return what is timed, by what the table calls it."""
        options = f"schedule={self.schedule} microbatches={self.microbatches}"
        return {
            "hp-assign-stages": f"hp-assign-stages{{axis=pp stages={self.stages}}}",
            "hp-split-stages": "hp-split-stages",
            "hp-verify-level` of the stages": "hp-verify-level",
            "hp-schedule-pipeline": f"hp-schedule-pipeline{{{options}}}",
            "hp-verify-level` of the program": "hp-verify-level",
        }

    def __str__(self) -> str:
        return f"{self.layers} layers, {self.stages} stages, {self.microbatches} microbatches"


def time_passes(size: Size, rounds: int) -> dict[str, Spread]:
    """Return the seconds of processor time of each pass, MLIR's verifier behind it included."""
    module = parse_module(large_modules.training_step(size.layers), make_context())
    run_passes(module, f"hp-set-mesh{{axes=pp:{size.stages}}}")
    samples: dict[str, list[float]] = {name: [] for name in size.passes()}
    for _ in range(rounds + 1):
        copy = module.operation.clone()
        for name, text in size.passes().items():
            begin = time.process_time()
            run_passes(copy, text)
            samples[name].append(time.process_time() - begin)
    return {name: Spread.of(times[1:]) for name, times in samples.items()}


def rows(*, size: Size | None = None, rounds: int = 3) -> list[Row]:
    """Measure everything here.

    Args:
        size: of the pipeline; it is measured, and with twice the layers, and with twice the microbatches.
        rounds: samples of each figure.
    """
    size = size or Size()
    times = time_passes(size, rounds)
    made = [Row(f"`{name}{'' if '`' in name else '`'}", spread.text("s")) for name, spread in times.items()]
    total = sum(spread.median for spread in times.values())
    least = sum(spread.least for spread in times.values())
    made.append(bounded(f"all of these: {size}", f"{total:.2f} s", total, 30.0, "s"))
    for what, larger in (
        ("layers", replace(size, layers=2 * size.layers)),
        ("microbatches", replace(size, microbatches=2 * size.microbatches)),
    ):
        growth = sum(spread.least for spread in time_passes(larger, rounds).values()) / least
        made.append(bounded(f"the same with twice the {what}, over this", f"{growth:.2f}", growth, 2.4))
    return made
