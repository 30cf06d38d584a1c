"""The schedules by name, and what each needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from ....errors import nearest
from .dualpipe_v import dualpipe_v
from .gpipe import gpipe
from .interleaved import interleaved
from .one_forward_one_backward import one_forward_one_backward
from .schedule import Action, Schedule, ScheduleError
from .zb_v import zb_v
from .zero_bubble import zero_bubble_h1


@dataclass(frozen=True)
class Algorithm:
    """A schedule for any counts.

    Attributes:
        order: one rank's actions, of (rank, ranks, stages, microbatches).
        shape: how stages are placed: "one" per rank, "round-robin" over the ranks any number of times, or down the
            ranks and up again in a "v".
        split_backward: whether the order has input and weight backwards in place of whole ones.
    """

    order: Callable[[int, int, int, int], list[Action]]
    shape: str = "one"
    split_backward: bool = False

    def place(self, stage: int, ranks: int) -> int:
        """Return the rank of a stage."""
        lap, position = divmod(stage, ranks)
        return ranks - 1 - position if self.shape == "v" and lap % 2 else position

    def fits(self, ranks: int, stages: int) -> bool:
        """Tell whether so many stages can be placed on so many ranks."""
        return {"one": stages == ranks, "v": stages == 2 * ranks}.get(self.shape, stages % ranks == 0)


ALGORITHMS: MappingProxyType[str, Algorithm] = MappingProxyType(
    {
        "gpipe": Algorithm(gpipe),
        "1f1b": Algorithm(one_forward_one_backward),
        "interleaved": Algorithm(interleaved, shape="round-robin"),
        "zb-h1": Algorithm(zero_bubble_h1, split_backward=True),
        "zb-v": Algorithm(zb_v, shape="v", split_backward=True),
        "dualpipe-v": Algorithm(dualpipe_v, shape="v", split_backward=True),
    }
)


def make_schedule(name: str, ranks: int, stages: int, microbatches: int) -> Schedule:
    """Return a schedule.

    Args:
        name: one of `ALGORITHMS`.
        ranks: positions of the pipeline axis.
        stages: stages over all of them.
        microbatches: of one data rank's step.

    Raises:
        ScheduleError: an unknown name, or counts for which it is not defined.
    """
    algorithm = ALGORITHMS.get(name)
    if algorithm is None:
        hint = nearest(name, ALGORITHMS) or f", expected one of {', '.join(ALGORITHMS)}"
        raise ScheduleError(f"unknown schedule '{name}'{hint}")
    for count, what in ((ranks, "rank"), (stages, "stage"), (microbatches, "microbatch")):
        if count < 1:
            raise ScheduleError(f"schedule '{name}' needs at least 1 {what}, got {count}")
    if not algorithm.fits(ranks, stages):
        raise ScheduleError(_refused_stages(name, algorithm, ranks, stages))
    return Schedule(
        name,
        tuple(algorithm.place(stage, ranks) for stage in range(stages)),
        tuple(tuple(algorithm.order(rank, ranks, stages, microbatches)) for rank in range(ranks)),
    )


def _refused_stages(name: str, algorithm: Algorithm, ranks: int, stages: int) -> str:
    nearby = max(1, round(stages / ranks)) * ranks
    needed = {
        "one": f"{_count(ranks, 'stage')}, one per rank",
        "v": f"{_count(2 * ranks, 'stage')}, two per rank",
    }.get(algorithm.shape, f"a multiple of {ranks} stages, such as {nearby}")
    others = [f"'{other}'" for other, candidate in ALGORITHMS.items() if candidate.fits(ranks, stages)]
    works = f"; {_count(stages, 'stage')} work with {' or '.join(others)}" if others else ""
    return f"schedule '{name}' on {_count(ranks, 'rank')} needs {needed}, got {stages}{works}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
