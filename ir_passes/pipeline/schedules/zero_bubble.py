"""zb-h1: 1f1b with the weight backwards put off to fill the cool-down."""

from __future__ import annotations

from .schedule import Action, RankOrder


def zero_bubble_h1(rank: int, ranks: int, stages: int, microbatches: int) -> list[Action]:
    """Return one rank's order: 1f1b's with input backwards, and weight backwards `rank` microbatches behind.

    From "Zero Bubble Pipeline Parallelism" (Qi et al., 2023), section 2: the bubble is a third of 1f1b's. Stage k
    frees a microbatch k later than 1f1b does, so that every rank holds as many as 1f1b's first: p of p ranks.
    """
    order = RankOrder(microbatches)
    warm_up = min(ranks - rank - 1, microbatches)
    for _ in range(warm_up):
        order.forward(rank)
    for index in range(microbatches):
        if index < microbatches - warm_up:
            order.forward(rank)
        order.backward_input(rank)
        if index >= rank:
            order.backward_weight()
    order.backward_weights()
    return order.actions
