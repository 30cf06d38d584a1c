"""The loss of a step as a sum and what to divide it by."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class WeightedLoss:
    """A loss that is a sum over tokens (or samples), and their number: what a training function may return.

    Over the microbatches and data ranks of a step, sums and weights are added up; loss and gradients are divided once,
    by the whole weight. So the result is the mean over all tokens of the step, however unevenly they are spread. A
    plain loss would be the mean of each microbatch's mean.

    Where the whole weight is zero the result is what division by zero gives: infinite or not a number.

    Attributes:
        sum: the loss of this microbatch, not divided; a floating tensor of shape [] or [1].
        weight: what it is to be divided by: a number, or an integer or floating tensor of shape [] or [1]. It is taken
            as a constant: no gradient flows into it.

    Example:
        >>> def train_fn(model, ids, labels):
        ...     logits = model(ids).flatten(0, 1)
        ...     total = F.cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum")
        ...     return hpir.WeightedLoss(total, (labels != -100).sum())
    """

    sum: Tensor
    weight: Tensor | float
