"""Fixtures and settings every test shares."""

from __future__ import annotations

import gc
import os
from collections import Counter

import pytest

EVERYTHING = "HPIR_TEST_EVERYTHING"
"""Set in the environment, as continuous integration does: all cases of all products run."""

# Captured steps are kept for all tests of a process: looking through them for garbage again and again takes longer than
# what is found is worth.
gc.set_threshold(20_000, 50, 100)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one case of n of a test that is marked ``one_in(n)``, in a pattern that goes through all its parameters.

    None of one that is marked ``everything``.
    """
    if os.environ.get(EVERYTHING):
        return
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        mark = item.get_closest_marker("one_in")
        if item.get_closest_marker("everything"):
            left.append(item)
            continue
        if mark is None:
            kept.append(item)
            continue
        (every,) = mark.args
        test = item.nodeid.partition("[")[0]
        number = seen[test]
        seen[test] += 1
        (left if (number + number // every) % every else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
