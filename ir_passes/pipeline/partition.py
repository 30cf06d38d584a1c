"""A row of layers cut into stages of about the same cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def partition(costs: Sequence[int], parts: int, before: int = 0, after: int = 0) -> list[int]:
    """Cut a row into consecutive parts, none empty, so that the costliest part costs least.

    Of several such cuts it is one whose parts differ least (in the sum of squares).

    Args:
        costs: of each item in order, none negative.
        parts: how many, at most as many as items.
        before: what the first part costs besides.
        after: what the last part costs besides.

    Returns:
        The number of the first item of each part.

    Example:
        >>> partition([1, 1, 1, 1, 1, 1, 1], 3)
        [0, 2, 4]
    """
    if not 1 <= parts <= len(costs):
        raise ValueError(f"expected 1 to {len(costs)} parts, got: {parts}")
    items = list(costs)
    items[0] += before
    items[-1] += after
    most = _least_bound(items, parts)
    sums = [0, *accumulate(items)]
    # best[j]: the least sum of squares of the parts so far that end before item j, and where the last of them begins.
    count = len(items)
    best: list[int | None] = [sums[j] ** 2 if j > 0 and sums[j] <= most else None for j in range(count + 1)]
    begins: list[list[int]] = [[0] * (count + 1)]
    for part in range(1, parts):
        following: list[int | None] = [None] * (count + 1)
        begin = [0] * (count + 1)
        for j in range(part + 1, count + 1):
            for i in range(j - 1, part - 1, -1):
                load = sums[j] - sums[i]
                if load > most:
                    break
                square = best[i]
                if square is None:
                    continue
                total, known = square + load**2, following[j]
                if known is None or total <= known:
                    following[j], begin[j] = total, i
        best = following
        begins.append(begin)
    starts, end = [], count
    for begin in reversed(begins):
        end = begin[end]
        starts.append(end)
    return starts[::-1]


def _least_bound(items: Sequence[int], parts: int) -> int:
    """Return the least cost that no part needs to exceed."""
    low, high = max(items), sum(items)
    while low < high:
        middle = (low + high) // 2
        if _fits(items, parts, middle):
            high = middle
        else:
            low = middle + 1
    return low


def _fits(items: Sequence[int], parts: int, most: int) -> bool:
    """Return whether parts of at most `most` each, none empty, take all items: each takes what it can."""
    needed, load = 1, 0
    for item in items:
        if load + item > most:
            needed, load = needed + 1, 0
        load += item
    return needed <= parts  # more parts are had by cutting any of several items
