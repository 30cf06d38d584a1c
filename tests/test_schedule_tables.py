"""A user's table of actions: what it may say, and what is wrong with one that cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpir.ir_passes.pipeline.schedules import (
    ALGORITHMS,
    Action,
    Schedule,
    ScheduleError,
    make_schedule,
    parse_table,
    read_table,
    simulate,
    validate,
)

TWO_RANKS = """
F0.0 F0.1, B0.0 B0.1   # the first rank
# the last one
F1.0 B1.0 F1.1 B1.1
"""


def parse(text: str, ranks: int = 2, stages: int = 2, microbatches: int = 2) -> Schedule:
    return parse_table(text, name="mine", ranks=ranks, stages=stages, microbatches=microbatches)


def write(schedule: Schedule) -> str:
    return "\n".join(" ".join(map(str, order)) for order in schedule.actions)


def test_a_table_of_lines() -> None:
    schedule = parse(TWO_RANKS)
    assert schedule == Schedule("mine", (0, 1), make_schedule("1f1b", 2, 2, 2).actions)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_schedule_can_be_written_as_a_table(name: str) -> None:
    stages = 3 if ALGORITHMS[name].fits(3, 3) else 6
    schedule = make_schedule(name, 3, stages, 4)
    assert parse_table(write(schedule), name=name, ranks=3, stages=stages, microbatches=4) == schedule


def test_a_table_in_toml(tmp_path: Path) -> None:
    path = tmp_path / "order.toml"
    path.write_text('name = "mine"\nplacement = [1, 0]\nactions = ["F1.0 B1.0", "F0.0 B0.0"]\n')
    schedule = read_table(path, ranks=2, stages=2, microbatches=1)
    assert (schedule.name, schedule.placement) == ("mine", (1, 0))
    assert schedule.actions[1] == (Action("F", 0, 0), Action("B", 0, 0))


def test_a_file_of_lines_is_named_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(TWO_RANKS)
    assert read_table(path, ranks=2, stages=2, microbatches=2) == parse(TWO_RANKS)


def test_a_whole_backward_beside_split_ones_is_both_parts() -> None:
    schedule = parse("F0.0 F0.1 I0.0 B0.1 W0.0", ranks=1, stages=1)
    assert " ".join(map(str, schedule.actions[0])) == "F0.0 F0.1 I0.0 I0.1 W0.1 W0.0"
    assert schedule.split_backward


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("F0.0 B0.0", "expected the actions of 2 ranks, got 1"),
        (
            "F0.0 B0\nF1.0",
            "rank 0: expected an action such as 'F0.1', a kind, a stage and a microbatch, got 'B0'; "
            "kinds are F (forward), B (backward), I (backward input), W (backward weight)",
        ),
        ("F0.0 B0.0\nF2.0", "rank 1: F2.0 is of no stage, expected stages 0 to 1"),
        ("F0.0 B0.7\nF1.0", "rank 0: B0.7 is of no microbatch, expected 0 to 1"),
        ("F0.0 B0.0 F0.1 B0.1\nF1.0 B1.0 F1.1", "rank 1: B1.1 is missing"),
        ("F0.0 B0.0 F0.1 B0.1\n#\nB1.0 B1.1 F1.1", "rank 1: F1.0 is missing"),
        ("F0.0 B0.0 F0.0\nF1.0", "rank 0: F0.0 is there twice"),
        ("F0.0 B0.0 F1.1\nF1.0", "rank 1: F1.0 belongs to rank 0"),
        ("F0.0 F0.1 B0.0 B0.1 W0.0\nF1.0 F1.1 B1.0 B1.1", "rank 0: W0.0 is there twice"),
        (
            "F0.0 F0.1 B0.0 B0.1\nB1.0 F1.0 B1.1 F1.1",
            "rank 1: B1.0 needs F1.0, which comes later on the same rank",
        ),
        (
            "F0.0 B0.0 F0.1 B0.1\nF1.0 F1.1 B1.0 B1.1",
            "ranks wait for each other: B0.0 of rank 0 needs B1.0 of rank 1, F1.1 of rank 1 needs F0.1 of rank 0",
        ),
    ],
)
def test_wrong_tables_are_refused_by_rank_and_action(text: str, message: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        parse(text)
    assert str(refused.value) == message


def test_a_long_cycle_is_cut() -> None:
    ranks = 12  # the last stage is on the first rank, which runs it before its first stage
    rows = ["F12.0 F0.0 B12.0 B0.0", *(f"F{stage}.0 B{stage}.0" for stage in range(1, ranks))]
    with pytest.raises(ScheduleError, match=r"^ranks wait for each other: F12.0 of rank 0 needs .* rank 4, 4 more$"):
        parse("\n".join(rows), ranks=ranks, stages=13, microbatches=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('action = ["F0.0"]', "unknown key 'action', did you mean 'actions'?"),
        ("rows = []", "unknown key 'rows', expected name, placement, actions"),
        ("name = 1", "expected 'name' to be a string, got 1"),
        ("name = 'x'", "expected 'actions' to be a list of strings, one per rank"),
        ("actions = [['F0.0']]", "expected 'actions' to be a list of strings, one per rank"),
        ("actions = []\nplacement = [true]", "expected 'placement' to be a list of ranks, one per stage, got [True]"),
        ("actions = ['F0.0 B0.0']\nplacement = [0, 1]", "expected the ranks of 1 stages in 'placement', got 2"),
        ("actions = ['F0.0 B0.0']\nplacement = [1]", "stage 0 is placed on rank 1, expected 0 to 0"),
    ],
)
def test_wrong_toml_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "order.toml"
    path.write_text(text)
    with pytest.raises(ScheduleError) as refused:
        read_table(path, ranks=1, stages=1, microbatches=1)
    assert str(refused.value) == f"{path}: {message}"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def refusal(name: str) -> str:
        with pytest.raises(ScheduleError) as refused:
            read_table(tmp_path / name, ranks=1, stages=1, microbatches=1)
        return str(refused.value).removeprefix(f"{tmp_path}/")

    (tmp_path / "bytes.txt").write_bytes(b"\xff")
    (tmp_path / "broken.toml").write_text("actions = [")
    assert refusal("none.txt") == "none.txt: cannot read schedule: no such file or directory"
    assert refusal("none.toml") == "none.toml: cannot read schedule: no such file or directory"
    assert refusal("bytes.txt") == "bytes.txt: expected text, got bytes that are no UTF-8"
    assert refusal("broken.toml").startswith("broken.toml: ")


def test_schedules_made_by_hand_are_held_to_the_same_rules() -> None:
    forward, weight = Action("F", 0, 0), Action("W", 0, 0)
    whole = Action("B", 0, 0)
    with pytest.raises(ScheduleError, match=r"^rank 0: W0.0 beside no I of its stage and microbatch$"):
        validate(Schedule("x", (0,), ((forward, whole, weight),)), 1)
    with pytest.raises(ScheduleError, match=r"^rank 0: B0.0 beside input and weight backwards$"):
        validate(Schedule("x", (0,), ((forward, whole, Action("I", 0, 0), weight),)), 1)
    with pytest.raises(ScheduleError, match=r"^rank 0: B0.0 needs B1.0, which is in no rank's order$"):
        simulate(Schedule("x", (0, 1), ((forward, whole), (Action("F", 1, 0),))))
