"""zb-v: two stages per rank in a V, no bubble but the first forwards' way down."""

from __future__ import annotations

from .schedule import Action, RankOrder


def zb_v(rank: int, ranks: int, stages: int, microbatches: int) -> list[Action]:
    """Return one rank's order: of the stage on the way down the V and the one on its way up.

    The schedule ZB-V of "Zero Bubble Pipeline Parallelism" (Qi et al., 2023), section 6, also of "Pipeline Parallelism
    with Controllable Memory" (Qi et al., 2024): a rank that has begun is never idle where forward, input backward and
    weight backward take equally long, and holds at most 2 p of its stages' microbatches, the memory of 1f1b's first
    rank. It is defined from 2 p - 1 microbatches on; for fewer, the order is that of 2 p - 1 without the rest.
    """
    down, up = rank, 2 * ranks - 1 - rank
    below = ranks - rank  # ranks from this one to the turn of the V
    order = RankOrder(microbatches)
    for _ in range(2 * below - 1):
        order.forward(down)
    for _ in range(rank):
        order.forward(up)
        order.forward(down)
    for _ in range(below):
        order.forward(up)
        _whole_backward(order, up)
    for _ in range(max(microbatches, 2 * ranks - 1) - ranks):
        order.forward(down)
        _whole_backward(order, down)
        order.forward(up)
        _whole_backward(order, up)
    for _ in range(rank):
        order.backward_input(down)
        order.backward_input(up)
    for _ in range(below):
        order.backward_input(down)
        order.backward_weight()
    order.backward_weights()
    return order.actions


def _whole_backward(order: RankOrder, stage: int) -> None:
    order.backward_input(stage)
    order.backward_weight()
