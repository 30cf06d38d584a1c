"""Every architecture of the sweep: captured, equal to eager on one rank and on two; or refused, and why."""

from __future__ import annotations

import pytest
from sweep import architectures_dropout
from sweep.architecture import Architecture
from sweep.architectures import ARCHITECTURES
from sweep.checks import check, check_ranks
from sweep.results import read_results
from sweep.table import models_page


@pytest.mark.one_in(8)
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda architecture: architecture.name)
def test_architecture(architecture: Architecture) -> None:
    checked = check(architecture)
    recorded = read_results()[architecture.name]
    assert checked.result.parameters == recorded.parameters
    if architecture.refused:
        assert architecture.note
        assert architecture.refused in checked.refusal
        return
    assert checked.refusal == ""
    assert checked.one_rank[1] <= architecture.tolerance, checked.one_rank
    assert checked.two_ranks[1] <= architecture.tolerance, checked.two_ranks
    assert recorded.one_rank
    assert recorded.two_ranks
    assert checked.result.ops == pytest.approx(recorded.ops, rel=0.1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("architecture", architectures_dropout.ARCHITECTURES, ids=lambda row: row.name)
def test_dropout_is_the_same_on_one_rank_and_on_two(architecture: Architecture) -> None:
    farthest, difference = check_ranks(architecture)
    assert difference <= architecture.tolerance, farthest


def test_the_table_is_of_the_sweep() -> None:
    names = [architecture.name for architecture in ARCHITECTURES]
    assert len(names) == len(set(names)) >= 40
    assert list(read_results()) == names
    page = models_page()
    for name in names:
        assert page.count(f"| `{name}` |") == 1


def test_few_are_refused() -> None:
    refused = [architecture.name for architecture in ARCHITECTURES if architecture.refused]
    assert 10 * len(refused) <= len(ARCHITECTURES), refused
