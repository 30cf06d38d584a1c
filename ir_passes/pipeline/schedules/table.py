"""A user's order of actions, read from a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ....errors import PlanError, nearest
from ....toml_file import read_toml
from .schedule import KINDS, Action, Kind, Schedule, ScheduleError
from .validate import validate

_ACTION = re.compile(r"([FBIW])([0-9]+)[.]([0-9]+)")
_SEPARATORS = re.compile(r"[\s,]+")
_KEYS = ("name", "placement", "actions")


def read_table(path: str | Path, *, ranks: int, stages: int, microbatches: int) -> Schedule:
    """Read a schedule from a file: TOML where its name ends in ``.toml``, else text, see `parse_table`.

    TOML holds a list with one string per rank, ``actions = ["F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 B1.1"]``, and may
    hold a ``name`` and a ``placement``, the rank of each stage. Without one, a stage is placed where the table has its
    first action.

    Args:
        path: the file.
        ranks: positions of the pipeline axis.
        stages: stages of the module.
        microbatches: of one data rank's step.

    Raises:
        ScheduleError: the file cannot be read, or what it holds is no schedule for these counts; the text begins with
            the path, and names rank and action.
    """
    counts = {"ranks": ranks, "stages": stages, "microbatches": microbatches}
    try:
        if Path(path).suffix == ".toml":
            return _from_toml(path, **counts)
        text = Path(path).read_text(encoding="utf-8")
        return parse_table(text, name=Path(path).stem, **counts)
    except OSError as error:
        raise ScheduleError(f"{path}: cannot read schedule: {(error.strerror or 'unknown reason').lower()}") from None
    except UnicodeDecodeError:
        raise ScheduleError(f"{path}: expected text, got bytes that are no UTF-8") from None
    except PlanError as error:  # it names the path
        raise ScheduleError(str(error)) from None
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from None


def parse_table(text: str, *, name: str, ranks: int, stages: int, microbatches: int) -> Schedule:
    """Read a schedule from text: one line per rank, rank 0 first, of actions such as ``F0.1``.

    ``F0.1`` is the forward of stage 0 and microbatch 1; B is a backward, I and W its input and its weight part. White
    space and commas part the actions; ``#`` begins a comment; empty lines do not count. Where some backwards are in
    two parts, B stands for I and W at once.

    Raises:
        ScheduleError: as for `read_table`.
    """
    stripped = (line.split("#", 1)[0].strip() for line in text.splitlines())
    rows = [line for line in stripped if line]
    return _from_rows(rows, None, name=name, ranks=ranks, stages=stages, microbatches=microbatches)


def _from_toml(path: str | Path, *, ranks: int, stages: int, microbatches: int) -> Schedule:
    table = read_toml(path, "schedule")
    for key in table:
        if key not in _KEYS:
            raise ScheduleError(f"unknown key '{key}'{nearest(key, _KEYS) or ', expected ' + ', '.join(_KEYS)}")
    name = table.get("name", Path(path).stem)
    rows = table.get("actions")
    placement = table.get("placement")
    if not isinstance(name, str):
        raise ScheduleError(f"expected 'name' to be a string, got {name!r}")
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise ScheduleError("expected 'actions' to be a list of strings, one per rank")
    if placement is not None and not (isinstance(placement, list) and all(type(rank) is int for rank in placement)):
        raise ScheduleError(f"expected 'placement' to be a list of ranks, one per stage, got {placement!r}")
    return _from_rows(rows, placement, name=name, ranks=ranks, stages=stages, microbatches=microbatches)


def _from_rows(
    rows: Sequence[str], placement: Sequence[int] | None, *, name: str, ranks: int, stages: int, microbatches: int
) -> Schedule:
    if len(rows) != ranks:
        raise ScheduleError(f"expected the actions of {ranks} ranks, got {len(rows)}")
    if placement is not None and len(placement) != stages:
        raise ScheduleError(f"expected the ranks of {stages} stages in 'placement', got {len(placement)}")
    orders = [_read_row(rank, row) for rank, row in enumerate(rows)]
    if any(action.kind in ("I", "W") for order in orders for action in order):
        orders = [[part for action in order for part in _parts(action)] for order in orders]
    schedule = Schedule(
        name,
        tuple(_placement(orders, stages) if placement is None else placement),
        tuple(map(tuple, orders)),
    )
    validate(schedule, microbatches)
    return schedule


def _read_row(rank: int, row: str) -> list[Action]:
    return [_read_action(rank, word) for word in _SEPARATORS.split(row) if word]


def _read_action(rank: int, word: str) -> Action:
    found = _ACTION.fullmatch(word)
    if found is None:
        kinds = ", ".join(f"{kind} ({task.replace('_', ' ')})" for kind, task in KINDS.items())
        raise ScheduleError(
            f"rank {rank}: expected an action such as 'F0.1', a kind, a stage and a microbatch, got '{word}'; "
            f"kinds are {kinds}"
        )
    kind: Kind = next(kind for kind in KINDS if kind == found[1])
    return Action(kind, int(found[2]), int(found[3]))


def _parts(action: Action) -> tuple[Action, ...]:
    if action.kind != "B":
        return (action,)
    return action._replace(kind="I"), action._replace(kind="W")


def _placement(orders: Sequence[Sequence[Action]], stages: int) -> list[int]:
    """Where each stage has its first action; a stage without any is missing, which `validate` says."""
    first: dict[int, int] = {}
    for rank, order in enumerate(orders):
        for action in order:
            first.setdefault(action.stage, rank)
    return [first.get(stage, 0) for stage in range(stages)]
