"""Numbers as people read them: times, sizes, parts of a whole, ranks."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def _digits(value: float) -> str:
    """Return three significant digits, without an exponent."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit that a time is best read in, in seconds, and its sign."""
    return next((unit for unit in _TIMES if seconds >= unit[0]), _TIMES[-1] if seconds > 0 else _TIMES[1])


def show_time(seconds: float) -> str:
    """Return a time: ``3.86 ms``."""
    unit, sign = time_unit(seconds)
    return f"{_digits(seconds / unit)} {sign}"


def size_unit(size: float) -> tuple[float, str]:
    """Return the unit that a size is best read in, in bytes, and its sign."""
    return next((unit for unit in _SIZES if size >= unit[0]), _SIZES[-1])


def show_size(size: float) -> str:
    """Return a number of bytes: ``1.25 MiB``."""
    unit, sign = size_unit(size)
    return f"{size:,.0f} B" if sign == "B" else f"{_digits(size / unit)} {sign}"


def show_part(part: float, whole: float) -> str:
    """Return a part of a whole in per cent."""
    return f"{100 * part / whole:.1f}%" if whole else "0.0%"


def show_count(count: int, noun: str, plural: str = "") -> str:
    """Return a number and what is counted: ``1 rank``, ``2 ranks``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def show_ranks(ranks: Sequence[int]) -> str:
    """Return ascending ranks: ``rank 3``, ``ranks 0-3``, ``ranks 0, 2, ... 6``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}\N{EN DASH}{ranks[-1]}"
    if len(ranks) <= 4:
        return f"ranks {', '.join(map(str, ranks))}"
    return f"ranks {ranks[0]}, {ranks[1]}, \N{HORIZONTAL ELLIPSIS} {ranks[-1]}"


def ticks(most: float, count: int = 8) -> list[float]:
    """Return round numbers from 0 up to `most`, about `count` of them."""
    if most < sys.float_info.min * 1e6:  # nothing, or too little to divide
        return [0.0]
    rough = most / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in _STEPS if power * factor >= rough * 0.999)
    return [number * step for number in range(int(most / step * 1.000001) + 1)]


def size_ticks(most: float, count: int = 5) -> list[float]:
    """Return round numbers of bytes, in the unit of `most`, from 0 up to it."""
    unit, _ = size_unit(most)
    return [tick * unit for tick in ticks(most / unit, count)]
