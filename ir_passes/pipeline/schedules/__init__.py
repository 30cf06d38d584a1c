"""Pipeline schedules as data: pure functions from counts to an order of actions per rank; no MLIR, no torch."""

from .registry import ALGORITHMS, Algorithm, make_schedule
from .schedule import Action, Kind, RankOrder, Schedule, ScheduleError
from .simulate import Simulation, simulate
from .table import parse_table, read_table
from .validate import validate

__all__ = [
    "ALGORITHMS",
    "Action",
    "Algorithm",
    "Kind",
    "RankOrder",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "make_schedule",
    "parse_table",
    "read_table",
    "simulate",
    "validate",
]
