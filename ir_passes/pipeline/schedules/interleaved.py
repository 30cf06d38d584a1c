"""interleaved: 1f1b over several stages per rank, which shortens warm-up and cool-down."""

from __future__ import annotations

from itertools import pairwise

from .one_forward_one_backward import one_forward_one_backward
from .schedule import Action


def interleaved(rank: int, ranks: int, stages: int, microbatches: int) -> list[Action]:
    """Return one rank's order: 1f1b over its stages, which take turns, a group of microbatches at a time.

    From "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (Narayanan et al., 2021),
    where a group has as many microbatches as there are ranks, and all groups are full. Here groups differ by at most
    one microbatch, and have as many as there are ranks or more (all microbatches, where there are fewer): every count
    has an order, and from one microbatch per rank on all have the same idle time.
    With one stage per rank there is nothing to take turns, and the order is that of 1f1b.
    """
    if stages == ranks:
        return one_forward_one_backward(rank, ranks, stages, microbatches)
    own = range(rank, stages, ranks)
    groups = _groups(microbatches, max(1, microbatches // ranks))
    forwards = [Action("F", stage, index) for group in groups for stage in own for index in group]
    backwards = [Action("B", stage, index) for group in groups for stage in reversed(own) for index in group]
    # The first microbatch of a rank's last stage comes after the whole first group's of its other stages; each
    # neighbour between here and the last rank is one forward down and one backward up.
    warm_up = min(2 * (ranks - rank - 1) + (len(own) - 1) * len(groups[0]), len(forwards))
    order = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - warm_up :]


def _groups(microbatches: int, count: int) -> list[range]:
    """Part the microbatches into `count` runs, the longer ones first."""
    size, longer = divmod(microbatches, count)
    starts = [index * size + min(index, longer) for index in range(count + 1)]
    return [range(start, end) for start, end in pairwise(starts)]
