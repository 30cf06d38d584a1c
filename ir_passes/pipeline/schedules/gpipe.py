"""gpipe: all forwards, then all backwards."""

from __future__ import annotations

from .schedule import Action, RankOrder


def gpipe(rank: int, ranks: int, stages: int, microbatches: int) -> list[Action]:
    """Return one rank's order: all forwards, then all backwards.

    From "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (Huang et al., 2019). Every
    rank holds all microbatches. Backwards go through the microbatches in the order of the forwards: a microbatch's
    activations live as long as any order's on the last rank, and less long on the first.
    """
    order = RankOrder(microbatches)
    for _ in range(microbatches):
        order.forward(rank)
    for _ in range(microbatches):
        order.backward(rank)
    return order.actions
