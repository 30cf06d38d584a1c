"""1f1b: a backward as soon as there is one, so that few microbatches are alive."""

from __future__ import annotations

from .schedule import Action, RankOrder


def one_forward_one_backward(rank: int, ranks: int, stages: int, microbatches: int) -> list[Action]:
    """Return one rank's order: a warm-up of forwards, then a forward and a backward by turns, then the backwards left.

    From "PipeDream: Generalized Pipeline Parallelism for DNN Training" (Narayanan et al., 2019), with a flush after
    each step. As fast as gpipe; stage k of p holds p - k microbatches.
    """
    order = RankOrder(microbatches)
    warm_up = min(ranks - rank - 1, microbatches)
    for _ in range(warm_up):
        order.forward(rank)
    for _ in range(microbatches - warm_up):
        order.forward(rank)
        order.backward(rank)
    for _ in range(warm_up):
        order.backward(rank)
    return order.actions
