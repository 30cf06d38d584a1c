"""How long `hp-overlap-collectives` takes on large modules."""

from __future__ import annotations

import time
from collections.abc import Sequence

import large_modules
from measure import Row, Spread, bounded

from hpir.dialect.context import make_context
from hpir.dialect.parsing import parse_module
from hpir.dialect.signature import body_of, step_functions
from hpir.ir_passes.overlap.overlap_collectives import HpOverlapCollectives
from hpir.ir_passes.pass_manager import run_passes

PREPARATION = "hp-set-mesh{axes=dp:2},hp-simplify,hp-fsdp{axes=dp units=blocks.*}"
SIZES = (10_000, 100_000)


def time_overlap(operations: int, rounds: int) -> tuple[int, int, Spread]:
    """Time the pass on a sharded module made of about so many ops.

    Returns:
        The ops of its function, the collectives among them, and seconds of processor time.
    """
    module = parse_module(large_modules.training_step(large_modules.blocks_for(operations)), make_context())
    run_passes(module, PREPARATION)
    (function,) = step_functions(module.operation)
    names = [view.operation.name for view in body_of(function).operations]
    samples = []
    for _ in range(rounds + 1):
        copy = module.operation.clone()
        with copy.context:
            begin = time.process_time()
            HpOverlapCollectives().run(copy)
            samples.append(time.process_time() - begin)
    return len(names), names.count("hp.wait"), Spread.of(samples[1:])


def rows(*, sizes: Sequence[int] = SIZES, rounds: int = 5) -> list[Row]:
    """Measure everything here.

    Args:
        sizes: ops of the modules before they are sharded, two, rising.
        rounds: samples of each figure.
    """
    made, least = [], []
    for size in sizes:
        ops, collectives, spread = time_overlap(size, rounds)
        least.append(spread.least)
        subject = f"`hp-overlap-collectives` on {ops:,} ops, {collectives:,} of them collectives"
        text = spread.text("s")
        made.append(bounded(subject, text, spread.median, 5.0, "s") if size == sizes[-1] else Row(subject, text))
    growth = least[-1] / least[0]
    made.append(bounded(f"time of {sizes[-1]:,} ops over that of {sizes[0]:,}", f"{growth:.1f}", growth, 12))
    return made
