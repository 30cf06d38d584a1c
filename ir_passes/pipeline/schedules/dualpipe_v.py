"""dualpipe-v: two stages per rank in a V, forwards of one beside backwards of the other."""

from __future__ import annotations

from .schedule import Action, RankOrder


def dualpipe_v(rank: int, ranks: int, stages: int, microbatches: int) -> list[Action]:
    """Return one rank's order: forwards of one stage alternate with backwards of the other.

    DualPipeV, the V-shaped half of the DualPipe of "DeepSeek-V3 Technical Report" (2024), section 3.2: a forward and
    the other stage's backward stand side by side, for one's communication to run beside the other's computation. At
    most (p - 1) (F&B + B - 3 W) of a rank's time is bubble, F&B being the two side by side and B a whole backward, and
    a rank holds at most 2 p + 1 of its stages' microbatches. It is defined from 2 p microbatches on; for fewer, the
    order is that of 2 p without the rest.
    """
    down, up = rank, 2 * ranks - 1 - rank
    below = ranks - rank - 1  # ranks between this one and the turn of the V
    order = RankOrder(microbatches)
    for _ in range(2 * below):
        order.forward(down)
    for _ in range(rank + 1):
        order.forward(down)
        order.forward(up)
    for _ in range(below):
        _whole_backward(order, up)
        order.forward(up)
    for _ in range(max(microbatches, 2 * ranks) - 2 * ranks + rank + 1):
        order.forward(down)
        _whole_backward(order, up)
        order.forward(up)
        _whole_backward(order, down)
    for _ in range(below):
        _whole_backward(order, up)
        order.forward(up)
        _whole_backward(order, down)
    # From the middle of the cool-down on, weights wait: they fill the gaps between the last input backwards.
    for index in range(2 * (rank + 1)):
        order.backward_input(down if index % 2 else up)
        if index <= rank:
            order.backward_weight()
    for _ in range(below):
        order.backward_weight()
        order.backward_input(down)
    order.backward_weights()
    return order.actions


def _whole_backward(order: RankOrder, stage: int) -> None:
    order.backward_input(stage)
    order.backward_weight()
