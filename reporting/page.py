"""A report as one HTML page that needs nothing else: no network, and no script to be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from . import charts
from .markup import Markup, element, table
from .pipeline_section import pipeline_section
from .report import Report
from .scene import Row, rows, spelled
from .sections import legend, rank_section
from .units import show_count, show_part, show_size, show_time

MOST_ROWS = 8
"""Timelines that are drawn without being asked for."""

_MOST_BARS = 24_000
_PHASES = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("other", "other compute"),
    ("launch", "launch"),
    ("wait", "waiting for communication"),
)


def write_page(report: Report) -> str:
    """Return the page."""
    folder = Path(__file__).parent
    style = (folder / "page.css").read_text(encoding="utf-8")
    script = (folder / "page.js").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{report.name} · hpir report"),
        # Else a browser asks the server for one.
        element("link", rel="icon", href="data:,"),
        element("style", Markup(style)),
    )
    several = len(report.ranks) > 1
    body = element(
        "main",
        _header(report),
        _tiles(report),
        *_pipeline(report),
        _timeline(report),
        *[rank_section(report, rank, several) for rank in report.ranks],
        _method(report),
        id="report",
    )
    foot = element("script", Markup(script))
    return "<!DOCTYPE html>\n" + element("html", head, element("body", body, foot), lang="en") + "\n"


def _pipeline(report: Report) -> list[Markup]:
    if report.pipeline is None or not report.simulated.seconds:
        return []
    return [pipeline_section(report.pipeline, report.measured_pipeline, report.peaks)]


def _header(report: Report) -> Markup:
    program = report.program
    facts = [
        f"mesh {program.mesh}",
        show_count(program.mesh.size, "rank"),
        show_count(program.microbatches, "microbatch", "microbatches"),
        f"Program {report.digest[:12]}",
        f"costs: {report.costs_name}",
    ]
    return element("header", element("h1", report.name), element("p", " · ".join(facts), class_="facts"))


def _tile(name: str, label: str, value: str, more: str) -> Markup:
    return element(
        "div",
        element("dt", label),
        element("dd", value, id=f"key-{name}"),
        element("dd", more, class_="small"),
        class_="tile",
    )


def _tiles(report: Report) -> Markup:
    step, peak = report.simulated.seconds, report.worst.memory.peak
    busiest = max(report.ranks, key=lambda rank: rank.timeline.exposed())
    sent = max(sum(row.sent for row in rank.traffic) for rank in report.ranks)
    exposed = show_part(report.exposed, step)
    tiles = [
        _tile("step", "Step, simulated", show_time(step), f"compute {show_time(busiest.timeline.busy())}"),
        _tile("exposed", "Exposed", show_time(report.exposed), f"communication, {exposed}"),
        _tile("peak", "Peak memory", show_size(peak.total), f"per rank, at {show_time(peak.begin)}"),
        _tile("launches", "Launches per step", f"{max(rank.launches for rank in report.ranks):,}", "per rank"),
        _tile("sent", "Sent per step", show_size(sent), "per rank"),
        _tile(
            "bubble",
            "Pipeline bubble",
            show_part(report.simulated.bubble(), 1),
            _bubble_note(report),
        ),
    ]
    if report.measured is not None:
        measured = report.measured
        waited = max(each.exposed() for each in measured.ranks)
        tiles.insert(
            1, _tile("measured", "Step, measured", show_time(measured.seconds), f"{show_time(waited)} exposed")
        )
    return element("dl", *tiles, class_="tiles")


def _bubble_note(report: Report) -> str:
    if report.pipeline is None:
        return "no pipeline"
    if report.measured is not None:
        return f"measured {show_part(report.measured.bubble(), 1)}"
    positions = len(report.pipeline.first_ranks())
    return f"{show_count(report.pipeline.stages or positions, 'stage')}"


def _all_rows(report: Report, most: int) -> list[Row]:
    axis = report.program.pipeline_axis
    found = rows(report.simulated, axis, most)
    return found + (rows(report.measured, axis, most) if report.measured else [])


def _distinct(report: Report, all_rows: Sequence[Row]) -> list[int]:
    """Return which rows are drawn first: each simulated one and, below it, what its first rank measured."""
    order = []
    for number, row in enumerate(all_rows[: len(report.ranks)]):
        order.append(number)
        order += [
            len(report.ranks) + place
            for place, other in enumerate(all_rows[len(report.ranks) :])
            if other.ranks[0] == row.ranks[0]
        ]
    return order[:MOST_ROWS]


def _timeline(report: Report) -> Markup:
    seconds = max(report.simulated.seconds, report.measured.seconds if report.measured else 0.0)
    drawn = _all_rows(report, charts.PLOT)
    shown = _distinct(report, drawn)
    kinds = sorted({t.kind for rank in report.ranks for t in rank.timeline.transfers})
    looks = [*_PHASES, *((kind.replace("_", "-"), spelled(kind)) for kind in kinds)]
    lanes = sum(len(row.lanes) for row in drawn)
    fine = _all_rows(report, max(charts.PLOT, _MOST_BARS // max(1, lanes)))
    title = f"Timeline of one training step of {report.name}, {show_time(report.simulated.seconds)} long"
    buttons = [
        element("button", "Zoom in", type="button", id="zoom-in"),
        element("button", "Zoom out", type="button", id="zoom-out"),
        element("button", "Whole step", type="button", id="zoom-all"),
        element(
            "label",
            "Rank ",
            element("input", type="number", id="show-rank", min=0, max=report.program.mesh.size - 1, step=1),
        ),
        element("button", "Distinct ranks", type="button", id="show-distinct"),
    ]
    hidden = len(drawn) - len(shown)
    more = f" {show_count(hidden, 'timeline')} more can be chosen by rank." if hidden else ""
    return element(
        "section",
        element("h2", "Timeline"),
        element(
            "p",
            "Per rank, what compute does and what is under way over each mesh axis. Ranks that do the same at the same "
            f"time are drawn once.{more} Drag, or use the arrow keys, to move; + and \N{MINUS SIGN}, or the wheel "
            "while the chart has the focus, to zoom; N and P to go from one block to the next.",
            class_="note",
        ),
        legend(looks),
        element("div", *buttons, class_="controls", id="timeline-controls", hidden=True),
        charts.timeline_chart([drawn[number] for number in shown], seconds, title),
        element("p", class_="readout", id="timeline-readout", aria_live="polite"),
        element("script", _script_data(fine, shown, seconds), type="application/json", id="timeline-data"),
        id="timeline-section",
    )


def _script_data(all_rows: Sequence[Row], shown: Sequence[int], seconds: float) -> Markup:
    data = {
        "seconds": seconds,
        "shown": list(shown),
        **charts.DIMENSIONS,
        "rows": [
            {
                "title": row.title,
                "source": row.source,
                "ranks": _ranges(row.ranks),
                "lanes": [
                    {
                        "name": lane.name,
                        "bars": [[b.begin, b.end, b.look, b.label, b.text, round(b.cover, 3)] for b in lane.bars],
                    }
                    for lane in row.lanes
                ],
            }
            for row in all_rows
        ],
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # A closing tag in a name would end the element.
    return Markup(text.replace("<", "\\u003c"))


def _ranges(ranks: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return ascending ranks as (first, last, step)."""
    found: list[tuple[int, int, int]] = []
    for rank in ranks:
        if found and (found[-1][0] == found[-1][1] or rank - found[-1][1] == found[-1][2]):
            first, last, _ = found[-1]
            found[-1] = first, rank, rank - last
        else:
            found.append((rank, rank, 1))
    return found


def _method(report: Report) -> Markup:
    costs = report.costs
    links = [("any other axis" if costs.axes else "every axis", costs.links), *costs.axes.items()]
    axes = table(
        "Links",
        [("mesh axis", False), ("latency", True), ("bandwidth", True)],
        [(name, show_time(link.latency), f"{show_size(link.bandwidth)}/s") for name, link in links],
    )
    rates = table(
        f"Compute of {costs.device}",
        [("rate", False), ("value", True)],
        [
            *(
                (f"matrix products in {dtype}", f"{rate / 1e12:g} TFLOP/s")
                for dtype, rate in costs.compute.flops.items()
            ),
            ("memory bandwidth", f"{show_size(costs.compute.memory_bandwidth)}/s"),
            ("per operator", show_time(costs.compute.op_overhead)),
        ],
    )
    text = (
        "Simulated times follow from the cost model below. Operators run one after the other. A collective begins when "
        "all members of its group have started it and the one before it in the group is over; groups do not slow each "
        "other down. Memory follows from the Program: what lives from which operator to which."
    )
    measured = (
        " Measured times are one step's, from a barrier on; communication is drawn from its launch to when the rank "
        "noticed that it had arrived."
        if report.measured
        else ""
    )
    return element(
        "section",
        element("h2", "How this was made"),
        element("p", text + measured, class_="note"),
        element("div", rates, axes, class_="columns"),
    )
