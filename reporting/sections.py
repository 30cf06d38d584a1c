"""The parts of the page that are about ranks that do the same: memory, communication, buckets."""

from __future__ import annotations

from collections.abc import Sequence

from . import charts
from .markup import Markup, element, joined, table
from .memory import Held
from .names import numbers_left_out
from .report import RankReport, Report
from .scene import spelled
from .storages import CATEGORIES
from .timeline import exposures
from .units import show_count, show_part, show_ranks, show_size, show_time

_LISTED = 12
"""Rows of a table; the rest is one more."""


def legend(items: Sequence[tuple[str, str]]) -> Markup:
    """Return a legend of (class, name)."""
    lines = [element("li", element("span", class_=f"swatch {look}"), name) for look, name in items]
    return element("ul", *lines, class_="legend")


def rank_section(report: Report, rank: RankReport, several: bool) -> Markup:
    """Return what is said of ranks that do the same; `several` says that there are others."""
    parts = [_memory(report, rank), _communication(rank), _exposed(report, rank), _buckets(rank)]
    if not several:
        return joined(parts)
    summary = element("summary", f"Memory and communication of {show_ranks(rank.timeline.ranks)}")
    return element("details", summary, *parts, open=rank is report.worst)


def _memory(report: Report, rank: RankReport) -> Markup:
    memory = rank.memory
    ranks = show_ranks(rank.timeline.ranks)
    present = [name for number, name in enumerate(CATEGORIES) if any(point.held[number] for point in memory.points)]
    at_peak = [
        (name, show_size(size), show_part(size, memory.peak.total))
        for name, size in zip(CATEGORIES, memory.peak.held, strict=True)
        if size
    ]
    held = memory.alive if len(memory.alive) <= _LISTED else alike(memory.alive)
    alive = [
        (each.module or "(no module)", each.category, show_size(each.size), f"{each.tensors:,}")
        for each in held[:_LISTED]
    ]
    rest = held[_LISTED:]
    if rest:
        size, tensors = sum(each.size for each in rest), sum(each.tensors for each in rest)
        alive.append((f"{len(rest):,} more", "", show_size(size), f"{tensors:,}"))
    return element(
        "section",
        element("h2", "Memory"),
        element(
            "p",
            f"What {ranks} hold, by what it is for." if len(rank.timeline.ranks) > 1 else f"What {ranks} holds.",
            " Parameters, buffers and inputs stay for the whole step. The optimiser's state and gradients of earlier "
            "steps are not the Program's and not counted.",
            class_="note",
        ),
        legend([(charts.category_class(name), name) for name in present]),
        charts.memory_chart(memory, report.simulated.seconds, f"Memory over time of {ranks}"),
        element(
            "div",
            table(
                f"At the peak, by what it is for: {show_size(memory.peak.total)}",
                [("kind", False), ("bytes", True), ("part", True)],
                at_peak,
            ),
            table(
                "At the peak, by module",
                [("module or name", False), ("kind", False), ("bytes", True), ("tensors", True)],
                alive,
            ),
            class_="columns",
        ),
    )


def alike(alive: Sequence[Held]) -> list[Held]:
    """Return what modules of one kind hold together: ``layers.*.up`` stands for that of all layers."""
    found: dict[tuple[str, str], list[Held]] = {}
    for held in alive:
        found.setdefault((held.category, numbers_left_out(held.module)), []).append(held)
    together = [
        Held(
            category,
            module if len(group) > 1 else group[0].module,
            sum(held.size for held in group),
            sum(held.tensors for held in group),
        )
        for (category, module), group in found.items()
    ]
    return sorted(together, key=lambda held: -held.size)


def _meter(part: float, look: str) -> Markup:
    filled = element("span", style=f"width:{100 * part:.1f}%", class_=look)
    return element("span", filled, class_="meter", aria_hidden="true")


def _communication(rank: RankReport) -> Markup:
    most = max((row.sent for row in rank.traffic), default=0)
    lines = [
        (
            ", ".join(row.axes),
            spelled(row.kind),
            f"{row.launches:,}",
            show_size(row.size),
            show_size(row.sent),
            joined([_meter(row.sent / most if most else 0, row.kind.replace("_", "-"))]),
            show_time(row.seconds),
        )
        for row in rank.traffic
    ]
    heads = [
        ("mesh axis", False),
        ("kind", False),
        ("launches", True),
        ("whole tensors", True),
        ("sent", True),
        ("", False),
        ("under way", True),
    ]
    caption = "Per rank and step; sent: what a rank sends, as ring algorithms do"
    found = table(caption, heads, lines) if lines else element("p", "Nothing is communicated.", class_="note")
    return element("section", element("h2", "Communication by mesh axis"), found)


def _exposed(report: Report, rank: RankReport) -> Markup:
    exposed = [each for each in rank.exposures if each.exposed > 0]
    total = sum(each.exposed for each in exposed)
    most = max((each.exposed for each in exposed), default=0.0)
    run = report.measured.of(rank.timeline.ranks[0]) if report.measured else None
    measured = {each.place: each.exposed for each in exposures(run)} if run else {}
    lines = [
        (
            each.transfer.name or "(no name)",
            spelled(each.transfer.kind),
            each.transfer.phase,
            ", ".join(each.transfer.axes),
            f"{each.runs:,}",
            show_size(each.transfer.size),
            show_time(each.seconds),
            show_time(each.exposed),
            joined([_meter(each.exposed / most, "wait")]),
            *([show_time(measured[each.place]) if each.place in measured else ""] if run else []),
        )
        for each in exposed[:_LISTED]
    ]
    rest = exposed[_LISTED:]
    if rest:
        more = sum(each.exposed for each in rest)
        runs, size = f"{sum(each.runs for each in rest):,}", ""
        known = show_time(sum(measured.get(each.place, 0.0) for each in rest))
        meter = joined([_meter(min(1.0, more / most), "wait")])
        row = (f"{len(rest):,} more", "", "", "", runs, size, "", show_time(more), meter)
        lines.append((*row, known) if run else row)
    heads = [
        ("what", False),
        ("kind", False),
        ("phase", False),
        ("axis", False),
        ("runs", True),
        ("bytes each", True),
        ("under way", True),
        ("exposed", True),
        ("", False),
        *([(f"measured on rank {run.ranks[0]}", True)] if run else []),
    ]
    text = (
        f"Compute stands still for {show_time(total)} of the simulated step "
        f"({show_part(total, rank.timeline.end)}), waiting for {len(exposed)} of {len(rank.exposures)} operations."
        if exposed
        else "No communication is exposed in the simulated step: compute never waits."
    )
    if run:
        waited = f"{show_time(run.exposed())} ({show_part(run.exposed(), run.end)})"
        text += f" Rank {run.ranks[0]} of the run waited for {waited}."
    parts = [table("Those waited for the longest", heads, lines)] if lines else []
    return element("section", element("h2", "Exposed communication"), element("p", text, class_="note"), *parts)


def _buckets(rank: RankReport) -> Markup:
    heads = [
        ("bucket", False),
        ("kind", False),
        ("phase", False),
        ("axis", False),
        ("tensors", True),
        ("bytes", True),
        ("padding", True),
        ("launches", True),
        ("members", False),
    ]
    lines = [
        (
            row.name or "(no name)",
            spelled(row.kind),
            row.phase,
            ", ".join(row.axes),
            f"{row.tensors:,}",
            show_size(row.size),
            show_size(row.padding),
            f"{row.launches:,}",
            _members(row.members),
        )
        for row in rank.buckets
    ]
    single = rank.launches - sum(row.launches for row in rank.buckets)
    fused, others = (show_count(count, "launch", "launches") for count in (rank.launches - single, single))
    text = f"{show_count(len(rank.buckets), 'bucket')}, {fused} per step; {others} of single tensors and messages."
    caption = "Bytes and padding of what a rank gives, per launch; launches per step"
    parts = [table(caption, heads, lines)] if lines else []
    return element("section", element("h2", "Buckets"), element("p", text, class_="note"), *parts)


def _members(members: Sequence[str]) -> Markup:
    if len(members) <= 2:
        return joined([element("code", ", ".join(members))]) if members else Markup("")
    summary = element("summary", f"{members[0]} and {len(members) - 1} more")
    return element("details", summary, element("code", ", ".join(members)), class_="more")
