"""The schedules: every task once and in an order that can run, and the bubbles and peaks that their papers promise."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from hpir.errors import HpirError
from hpir.ir_passes.pipeline.schedules import (
    ALGORITHMS,
    Action,
    Schedule,
    ScheduleError,
    make_schedule,
    simulate,
    validate,
)

STAGES_PER_RANK = {
    "gpipe": (1,),
    "1f1b": (1,),
    "interleaved": (1, 2, 3),
    "zb-h1": (1,),
    "zb-v": (2,),
    "dualpipe-v": (2,),
}

RANKS = range(1, 9)
MICROBATCHES = range(1, 17)


def cases(name: str) -> Iterator[tuple[int, int, int]]:
    """Every (ranks, stages, microbatches) that the tests look at."""
    for ranks, per_rank, microbatches in itertools.product(RANKS, STAGES_PER_RANK[name], MICROBATCHES):
        yield ranks, ranks * per_rank, microbatches


def idle(ranks: int, schedule: Schedule) -> float:
    """A rank's idle time, in units of one forward of one stage."""
    result = simulate(schedule)
    assert result.bubble == pytest.approx(1 - sum(map(_work, schedule.actions)) / (ranks * result.makespan))
    return result.makespan - _work(schedule.actions[0])


def _work(order: tuple[Action, ...]) -> int:
    return sum(2 if action.kind == "B" else 1 for action in order)


def test_every_schedule_has_a_case() -> None:
    assert list(STAGES_PER_RANK) == list(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_task_runs_once_on_its_rank_after_what_it_needs(name: str) -> None:
    kinds = "FIW" if ALGORITHMS[name].split_backward else "FB"
    for ranks, stages, microbatches in cases(name):
        schedule = make_schedule(name, ranks, stages, microbatches)
        validate(schedule, microbatches)
        assert (schedule.ranks, schedule.stages, schedule.microbatches) == (ranks, stages, microbatches)
        assert schedule.split_backward == ALGORITHMS[name].split_backward
        done = [action for order in schedule.actions for action in order]
        assert sorted(done) == sorted(
            itertools.starmap(Action, itertools.product(kinds, range(stages), range(microbatches)))
        )
        starts = simulate(schedule).starts
        for action in done:
            assert all(starts[need] < starts[action] for need in schedule.needs(action))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_microbatches_of_a_task_are_in_order(name: str) -> None:
    for ranks, stages, microbatches in cases(name):
        for order in make_schedule(name, ranks, stages, microbatches).actions:
            for kind, stage in {(action.kind, action.stage) for action in order}:
                indices = [action.microbatch for action in order if (action.kind, action.stage) == (kind, stage)]
                assert indices == list(range(microbatches))


@pytest.mark.parametrize(
    ("name", "per_rank", "bubbles"),
    [
        ("1f1b", 1, (27.3, 30.4)),
        ("gpipe", 1, (27.3, 30.4)),
        ("interleaved", 2, (15.8, 17.9)),
        ("zb-h1", 1, (11.1, 12.7)),
        ("zb-v", 2, (5.9, 6.8)),
        ("dualpipe-v", 2, (5.9, 6.8)),
    ],
)
def test_bubbles_of_the_papers(name: str, per_rank: int, bubbles: tuple[float, float]) -> None:
    for (ranks, microbatches), bubble in zip(((4, 8), (8, 16)), bubbles, strict=True):
        schedule = make_schedule(name, ranks, ranks * per_rank, microbatches)
        assert 100 * simulate(schedule).bubble == pytest.approx(bubble, abs=0.05)


def test_idle_time_of_gpipe_and_1f1b() -> None:
    for name in ("gpipe", "1f1b"):
        for ranks, stages, microbatches in cases(name):
            assert idle(ranks, make_schedule(name, ranks, stages, microbatches)) == 3 * (ranks - 1)


def test_idle_time_of_interleaved() -> None:
    """With fewer microbatches than ranks a rank waits for the rest of the round between its stages."""
    for ranks, stages, microbatches in cases("interleaved"):
        short = max(0, ranks - microbatches)
        expected = 3 * (ranks - 1) + 3 * short * (stages // ranks - 1)
        assert idle(ranks, make_schedule("interleaved", ranks, stages, microbatches)) == expected


def test_idle_time_of_zb_h1() -> None:
    for ranks, stages, microbatches in cases("zb-h1"):
        expected = ranks - 1 + max(0, ranks - microbatches)
        assert idle(ranks, make_schedule("zb-h1", ranks, stages, microbatches)) == expected


def test_idle_time_of_zb_v() -> None:
    """No rank that has begun is ever idle: the first forward's way down is all."""
    for ranks, stages, microbatches in cases("zb-v"):
        schedule = make_schedule("zb-v", ranks, stages, microbatches)
        if microbatches >= 2 * ranks - 1:
            assert idle(ranks, schedule) == ranks - 1
            starts = simulate(schedule).starts
            for rank, order in enumerate(schedule.actions):
                assert [starts[action] for action in order] == list(range(rank, rank + 6 * microbatches))
        else:
            assert idle(ranks, schedule) <= 4 * (ranks - 1)


def test_idle_time_of_dualpipe_v() -> None:
    """(p - 1) (F&B + B - 3 W) at most, with F&B = F + B where nothing runs side by side."""
    for ranks, stages, microbatches in cases("dualpipe-v"):
        schedule = make_schedule("dualpipe-v", ranks, stages, microbatches)
        bound = 2 * (ranks - 1) if microbatches >= ranks else 4 * (ranks - 1)
        assert idle(ranks, schedule) <= bound


@pytest.mark.parametrize("name", ALGORITHMS)
def test_peaks(name: str) -> None:
    for ranks, stages, microbatches in cases(name):
        peaks = simulate(make_schedule(name, ranks, stages, microbatches)).peaks
        all_of_a_rank = stages // ranks * microbatches
        if name == "gpipe":
            assert peaks == (microbatches,) * ranks
        elif name == "1f1b" or (name == "interleaved" and stages == ranks):
            assert peaks == tuple(min(ranks - rank, microbatches) for rank in range(ranks))
        elif name == "interleaved":
            group = -(-microbatches // max(1, microbatches // ranks))
            others = (stages // ranks - 1) * group
            assert peaks == tuple(min(2 * (ranks - rank - 1) + others + 1, all_of_a_rank) for rank in range(ranks))
        elif name == "zb-h1":
            assert peaks == (min(ranks, microbatches),) * ranks
        elif name == "zb-v":
            assert max(peaks) <= min(2 * ranks, all_of_a_rank)
            assert microbatches < 2 * ranks - 1 or peaks == (2 * ranks,) * ranks
        else:
            assert max(peaks) <= min(2 * ranks + 1, all_of_a_rank)


def test_one_forward_one_backward_as_in_its_paper() -> None:
    orders = [" ".join(map(str, order)) for order in make_schedule("1f1b", 2, 2, 4).actions]
    assert orders == [
        "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3",
        "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3",
    ]


def test_stages_are_placed_round_robin_or_in_a_v() -> None:
    assert make_schedule("interleaved", 2, 6, 1).placement == (0, 1, 0, 1, 0, 1)
    assert make_schedule("zb-v", 3, 6, 1).placement == (0, 1, 2, 2, 1, 0)
    assert make_schedule("dualpipe-v", 1, 2, 1).placement == (0, 0)


def test_simulation_takes_other_durations() -> None:
    schedule = make_schedule("gpipe", 2, 2, 1)
    result = simulate(schedule, {"F": 2.0, "B": 3.0})
    assert result.starts == {("F", 0, 0): 0, ("F", 1, 0): 2, ("B", 1, 0): 4, ("B", 0, 0): 7}
    assert (result.makespan, result.bubble) == (10, 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zbv", 2, 4, 1), "unknown schedule 'zbv', did you mean 'zb-v'?"),
        (
            ("xyz", 2, 4, 1),
            "unknown schedule 'xyz', expected one of gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe-v",
        ),
        (("gpipe", 0, 0, 1), "schedule 'gpipe' needs at least 1 rank, got 0"),
        (("gpipe", 1, 0, 1), "schedule 'gpipe' needs at least 1 stage, got 0"),
        (("gpipe", 1, 1, 0), "schedule 'gpipe' needs at least 1 microbatch, got 0"),
        (
            ("1f1b", 2, 4, 1),
            "schedule '1f1b' on 2 ranks needs 2 stages, one per rank, got 4; "
            "4 stages work with 'interleaved' or 'zb-v' or 'dualpipe-v'",
        ),
        (
            ("zb-v", 2, 6, 1),
            "schedule 'zb-v' on 2 ranks needs 4 stages, two per rank, got 6; 6 stages work with 'interleaved'",
        ),
        (
            ("interleaved", 4, 7, 1),
            "schedule 'interleaved' on 4 ranks needs a multiple of 4 stages, such as 8, got 7",
        ),
        (
            ("1f1b", 1, 3, 1),
            "schedule '1f1b' on 1 rank needs 1 stage, one per rank, got 3; 3 stages work with 'interleaved'",
        ),
    ],
)
def test_refusals_say_what_would_work(arguments: tuple[str, int, int, int], message: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        make_schedule(*arguments)
    assert str(refused.value) == message
    assert isinstance(refused.value, HpirError)
