"""The page's charts, as SVG: what a script makes of them later is what is drawn here first."""

from __future__ import annotations

from collections.abc import Sequence

from .markup import Markup, element, joined
from .memory import Memory, Point
from .scene import COMPUTE, Bar, Row
from .storages import CATEGORIES
from .units import show_size, show_time, size_ticks, size_unit, ticks, time_unit

WIDTH = 1200
GUTTER = 150
"""Left of every chart, for names and numbers: so that the charts have one time axis."""
MARGIN = 12
PLOT = WIDTH - GUTTER - MARGIN

_COMPUTE_HEIGHT = 28
_LANE_HEIGHT = 18
_LANE_GAP = 3
_ROW_GAP = 12
_TITLE_HEIGHT = 18
_AXIS_HEIGHT = 36
_LETTER = 6.2
_LEAST_COVER = 0.15
_MEMORY_HEIGHT = 240

DIMENSIONS = {
    "width": WIDTH,
    "gutter": GUTTER,
    "plot": PLOT,
    "letter": _LETTER,
    "least_cover": _LEAST_COVER,
    "title_height": _TITLE_HEIGHT,
    "compute_height": _COMPUTE_HEIGHT,
    "lane_height": _LANE_HEIGHT,
    "lane_gap": _LANE_GAP,
    "row_gap": _ROW_GAP,
    "axis_height": _AXIS_HEIGHT,
}
"""What the page's script needs to draw a timeline as it is drawn here."""


def time_axis(seconds: float, top: float, bottom: float) -> Markup:
    """Return the grid lines and numbers of a time axis from 0 to `seconds`, between two heights, numbers below."""
    unit, sign = time_unit(seconds)
    parts: list[Markup] = []
    for tick in ticks(seconds):
        x = GUTTER + PLOT * tick / seconds if seconds else float(GUTTER)
        parts.append(element("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"))
        parts.append(element("text", f"{tick / unit:g}", x=x, y=bottom + 14, class_="tick", text_anchor="middle"))
    middle = GUTTER + PLOT / 2
    parts.append(element("text", f"time ({sign})", x=middle, y=bottom + 30, class_="axis-title", text_anchor="middle"))
    return element("g", *parts, class_="time-axis", data_top=top, data_bottom=bottom)


def timeline_chart(rows: Sequence[Row], seconds: float, title: str) -> Markup:
    """Return the lanes of some rows over the time of a step.

    Args:
        rows: to draw, one below the other.
        seconds: the length of the time axis.
        title: what it shows, for who cannot see it.
    """
    parts: list[Markup] = []
    y = 4.0
    for number, row in enumerate(rows):
        inner: list[Markup] = [
            element("text", f"{row.title} · {row.source}", x=4, y=y + 12, class_="row-title"),
        ]
        y += _TITLE_HEIGHT
        for position, lane in enumerate(row.lanes):
            height = _COMPUTE_HEIGHT if lane.name == COMPUTE else _LANE_HEIGHT
            inner.append(
                element("text", lane.name, x=GUTTER - 8, y=y + height / 2 + 4, class_="lane-name", text_anchor="end")
            )
            inner.append(element("rect", x=GUTTER, y=y, width=PLOT, height=height, class_="lane-back"))
            bars = joined(_bar(bar, seconds, height) for bar in lane.bars)
            inner.append(
                element(
                    "svg",
                    bars,
                    x=GUTTER,
                    y=y,
                    width=PLOT,
                    height=height,
                    class_="lane",
                    data_row=number,
                    data_lane=position,
                )
            )
            y += height + _LANE_GAP
        y += _ROW_GAP
        parts.append(element("g", *inner, class_="row"))
    axis = time_axis(seconds, 0, y - _ROW_GAP + 2)
    return element(
        "svg",
        element("title", title),
        axis,
        *parts,
        viewBox=f"0 0 {WIDTH} {y + _AXIS_HEIGHT - _ROW_GAP:g}",
        class_="chart timeline",
        id="timeline",
        role="img",
        aria_label=title,
        tabindex=0,
    )


def _bar(bar: Bar, seconds: float, height: float) -> Markup:
    x = PLOT * bar.begin / seconds if seconds else 0.0
    width = max(0.4, PLOT * (bar.end - bar.begin) / seconds) if seconds else 0.4
    # Between bars that are wide enough for it is a gap; what is there at times only is less high.
    drawn = width - 0.6 if width > 3 else width
    high = height * max(_LEAST_COVER, bar.cover)
    shown = element("title", bar.text)
    rect = element("rect", shown, x=x, y=height - high, width=drawn, height=high, class_=f"bar {bar.look}")
    if not bar.label or width < _LETTER * len(bar.label) + 6:
        return rect
    return joined([rect, element("text", bar.label, x=x + 4, y=height / 2 + 4, class_="bar-label")])


def memory_bins(memory: Memory, seconds: float, bins: int) -> list[Point]:
    """Return `bins` points, evenly over the step: of each stretch of time the moment with the most bytes."""
    found: list[Point | None] = [None] * bins
    width = seconds / bins if seconds else 1.0
    last = memory.points[0]
    reached = 0
    for point in memory.points:
        first = min(bins - 1, int(point.begin / width))
        until = min(bins - 1, int(point.end / width))
        for number in range(reached, first):
            if found[number] is None:
                found[number] = last
        for number in range(first, until + 1):
            held = found[number]
            if held is None or point.total > held.total:
                found[number] = point
        reached, last = max(reached, first), point
    return [point if point is not None else last for point in found]


def memory_chart(memory: Memory, seconds: float, title: str) -> Markup:
    """Return what a rank holds over the time of a step, stacked by what it is for."""
    bins = memory_bins(memory, seconds, PLOT // 2)
    most = max(1, memory.peak.total)
    top, bottom = 22.0, 22.0 + _MEMORY_HEIGHT
    scale = (_MEMORY_HEIGHT - 6) / most
    unit, sign = size_unit(most)
    parts: list[Markup] = [time_axis(seconds, top, bottom)]
    for tick in size_ticks(most):
        y = bottom - tick * scale
        parts.append(element("line", x1=GUTTER, x2=GUTTER + PLOT, y1=y, y2=y, class_="grid"))
        parts.append(element("text", f"{tick / unit:g}", x=GUTTER - 8, y=y + 4, class_="tick", text_anchor="end"))
    parts.append(
        element(
            "text",
            f"memory held ({sign})",
            x=0,
            y=0,
            class_="axis-title",
            text_anchor="middle",
            transform=f"translate(96 {(top + bottom) / 2:g}) rotate(-90)",
        )
    )
    below = [0] * len(bins)
    for category, name in enumerate(CATEGORIES):
        above = [held + point.held[category] for held, point in zip(below, bins, strict=True)]
        if above != below:
            outline = _outline(below, above, scale, bottom)
            label = f"{name}: {show_size(memory.peak.held[category])} at the peak"
            parts.append(element("path", element("title", label), d=outline, class_=f"area {category_class(name)}"))
        below = above
    x = GUTTER + (PLOT * memory.peak.begin / seconds if seconds else 0.0)
    y = bottom - memory.peak.total * scale
    anchor = "end" if x > WIDTH * 0.7 else "start"
    label = f"peak {show_size(memory.peak.total)} at {show_time(memory.peak.begin)}"
    parts += [
        element("line", x1=x, x2=x, y1=top - 4, y2=bottom, class_="peak-line"),
        element("circle", cx=x, cy=y, r=4, class_="peak-dot"),
        element(
            "text", label, x=x + (-6 if anchor == "end" else 6), y=top - 8, class_="peak-label", text_anchor=anchor
        ),
    ]
    return element(
        "svg",
        element("title", title),
        *parts,
        viewBox=f"0 0 {WIDTH} {bottom + _AXIS_HEIGHT:g}",
        class_="chart memory",
        role="img",
        aria_label=title,
    )


def category_class(name: str) -> str:
    """Return the class that a category of memory is drawn in."""
    return "memory-" + name.replace(" ", "-")


def _outline(below: Sequence[int], above: Sequence[int], scale: float, bottom: float) -> str:
    """Return the path around an area of steps."""
    step = PLOT / len(below)
    there = [f"M{GUTTER} {bottom - above[0] * scale:.1f}"]
    for number, height in enumerate(above):
        if number and height != above[number - 1]:
            there.append(f"V{bottom - height * scale:.1f}")
        if number + 1 == len(above) or above[number + 1] != height:
            there.append(f"H{GUTTER + (number + 1) * step:.1f}")
    there.append(f"V{bottom - below[-1] * scale:.1f}")
    for number in range(len(below) - 1, -1, -1):
        if number + 1 < len(below) and below[number] != below[number + 1]:
            there.append(f"V{bottom - below[number] * scale:.1f}")
        if number == 0 or below[number - 1] != below[number]:
            there.append(f"H{GUTTER + number * step:.1f}")
    return "".join(there) + "Z"
