"""Timing two things against each other on a machine that does other work too, and the table of what came out."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Spread:
    """The median of some samples, and their range."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Summarise at least one sample."""
        return cls(statistics.median(samples), min(samples), max(samples))

    def divided(self, count: int) -> Spread:
        """Return the same per part, where each sample was of `count` parts."""
        return Spread(self.median / count, self.least / count, self.most / count)

    def text(self, unit: str = "", scale: float = 1.0) -> str:
        """Return the median with the range behind it: ``1.20 s (1.10..1.45)``."""
        median, least, most = (_digits(value * scale) for value in (self.median, self.least, self.most))
        return f"{median}{unit and ' '}{unit} ({least}..{most})"


def _digits(value: float) -> str:
    """Spell a number with three digits that count."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if value else "0"


@dataclass(frozen=True)
class Pair:
    """Two things timed in turns, in seconds, and the ratio of the first to the second turn by turn."""

    first: Spread
    second: Spread
    ratio: Spread

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float]) -> Pair:
        """Summarise samples taken in turns; each pair of neighbours met the same noise."""
        ratios = [one / other for one, other in zip(first, second, strict=True)]
        return cls(Spread.of(first), Spread.of(second), Spread.of(ratios))

    def divided(self, count: int) -> Pair:
        """Return the same per part, where each sample was of `count` parts."""
        return Pair(self.first.divided(count), self.second.divided(count), self.ratio)


def seconds(action: Callable[[], object]) -> float:
    """Return how long `action` takes, by the wall clock."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def repeat(action: Callable[[], object], rounds: int, *, warm_up: int = 1) -> Spread:
    """Time an action `rounds` times, after some that do not count."""
    samples = [seconds(action) for _ in range(warm_up + rounds)]
    return Spread.of(samples[warm_up:])


def alternate(first: Callable[[], object], second: Callable[[], object], rounds: int, *, warm_up: int = 1) -> Pair:
    """Time two actions in turns, `rounds` times each, after some that do not count."""
    samples = [(seconds(first), seconds(second)) for _ in range(warm_up + rounds)]
    return Pair.of(*zip(*samples[warm_up:], strict=True))


def run_tool(command: Sequence[str | Path]) -> None:
    """Run a command to its end.

    Raises:
        RuntimeError: it failed; the text is its own.
    """
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{Path(str(command[0])).name} failed: {done.stderr.strip()}")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        subject: what was measured.
        measured: the figures, as text.
        target: what is promised; empty where nothing is.
        met: whether it was kept; None where nothing is promised.
    """

    subject: str
    measured: str
    target: str = ""
    met: bool | None = None


def bounded(subject: str, measured: str, value: float, limit: float, unit: str = "") -> Row:
    """Return the row of a figure that is to be at most `limit`."""
    return Row(subject, measured, f"at most {limit:g}{unit and ' '}{unit}", value <= limit)
