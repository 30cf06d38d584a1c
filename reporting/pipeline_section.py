"""The part of the page that is about the pipeline: who runs which microbatch when, bubbles and messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .charts import GUTTER, PLOT, WIDTH, time_axis
from .markup import Markup, element, joined, table
from .pipeline import Channel, Pipeline, PipelinePosition
from .scene import Bar, condensed, task_bars
from .sections import legend
from .units import show_count, show_part, show_ranks, show_size, show_time

_LANE = 26
_STRIP = 5
_GAP = 9
_AXIS = 36
_LETTER = 6.4

_KINDS = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("backward-input", "backward of the input"),
    ("backward-weight", "backward of the weights"),
)
_PHASES = (("warm-up", "warm-up"), ("steady", "steady state"), ("cool-down", "cool-down"))


def pipeline_section(simulated: Pipeline, measured: Pipeline | None, peaks: Mapping[int, int]) -> Markup:
    """Return the section.

    Args:
        simulated: the pipeline by the cost model.
        measured: that of a run.
        peaks: per position the most bytes that a rank holds.
    """
    kinds = {task.kind.replace("_", "-") for each in simulated.positions for task in each.timeline.tasks}
    several = simulated.stages > len(simulated.first_ranks())
    shades = " A rank's second stage is drawn lighter than its first." if several else ""
    charts = [_chart(pipeline) for pipeline in (simulated, measured) if pipeline is not None]
    return element(
        "section",
        element("h2", "Pipeline"),
        element(
            "p",
            f"{show_count(simulated.stages, 'stage')} on {show_count(len(simulated.first_ranks()), 'position')} of "
            f"mesh axis {simulated.axis}. Blocks are calls of stages, with the number of the microbatch; what is empty "
            f"is the bubble, and what a rank does between calls.{shades} Below each lane: warm-up until the first "
            "backward, cool-down from the end of the last forward.",
            class_="note",
        ),
        legend([*((look, name) for look, name in _KINDS if look in kinds), *_PHASES]),
        *charts,
        _positions(simulated, measured, peaks),
        _messages(simulated),
        id="pipeline-section",
    )


def _chart(pipeline: Pipeline) -> Markup:
    timeline = pipeline.timeline
    title = f"Pipeline, {timeline.source}: bubble {show_part(timeline.bubble(), 1)}"
    parts: list[Markup] = [element("text", title, x=4, y=14, class_="row-title")]
    y = 24.0
    for each in pipeline.first_ranks():
        name = f"{pipeline.axis} {each.position} · {show_ranks(each.timeline.ranks)}"
        parts.append(element("text", name, x=GUTTER - 8, y=y + _LANE / 2 + 4, class_="lane-name", text_anchor="end"))
        parts.append(element("rect", x=GUTTER, y=y, width=PLOT, height=_LANE, class_="lane-back"))
        bars = condensed(task_bars(each.timeline), timeline.seconds / PLOT)
        lane = joined(part for bar in bars for part in _bar(bar, timeline.seconds))
        parts.append(element("svg", lane, x=GUTTER, y=y, width=PLOT, height=_LANE, class_="lane tasks"))
        parts += _strip(each, timeline.seconds, y + _LANE)
        y += _LANE + _STRIP + _GAP
    bottom = y - _GAP + 2
    return element(
        "svg",
        element("title", title),
        time_axis(timeline.seconds, 20, bottom),
        *parts,
        viewBox=f"0 0 {WIDTH} {bottom + _AXIS:g}",
        class_="chart pipeline",
        id=f"pipeline-{timeline.source}",
        role="img",
        aria_label=title,
    )


def _bar(bar: Bar, seconds: float) -> Iterator[Markup]:
    x = PLOT * bar.begin / seconds
    width = max(0.4, PLOT * (bar.end - bar.begin) / seconds)
    drawn = width - 0.8 if width > 3 else width
    yield element("rect", element("title", bar.text), x=x, y=0, width=drawn, height=_LANE, class_=f"bar {bar.look}")
    if bar.label and width >= _LETTER * len(bar.label) + 2:
        place = {"x": x + drawn / 2, "y": _LANE / 2 + 4}
        yield element("text", bar.label, **place, class_="bar-label", text_anchor="middle")


def _strip(each: PipelinePosition, seconds: float, y: float) -> Iterator[Markup]:
    times = (0.0, each.steady, each.cool_down, each.done)
    for (look, name), begin, end in zip(_PHASES, times[:-1], times[1:], strict=True):
        if end > begin:
            said = element("title", f"{name}: {show_time(end - begin)}")
            place = {"x": GUTTER + PLOT * begin / seconds, "width": PLOT * (end - begin) / seconds}
            yield element("rect", said, **place, y=y, height=_STRIP, class_=look)


def _positions(simulated: Pipeline, measured: Pipeline | None, peaks: Mapping[int, int]) -> Markup:
    run = {each.position: each for each in measured.first_ranks()} if measured else {}
    seconds = simulated.timeline.seconds
    heads = [
        (simulated.axis, False),
        ("ranks", False),
        ("stages", False),
        ("compute", True),
        ("bubble", True),
        *([("bubble, measured", True)] if measured else []),
        ("waits within stages", True),
        ("warm-up", True),
        ("steady", True),
        ("cool-down", True),
        ("live microbatches", True),
        ("peak memory", True),
    ]
    lines = []
    for each in simulated.first_ranks():
        timeline = each.timeline
        lines.append(
            (
                str(each.position),
                show_ranks(timeline.ranks),
                ", ".join(map(str, each.stages)),
                show_part(timeline.busy(), seconds),
                show_part(each.bubble, 1),
                *([show_part(run[each.position].bubble, 1)] if measured else []),
                show_part(timeline.exposed() - each.stalled, seconds),
                show_time(each.steady),
                show_time(each.cool_down - each.steady),
                show_time(each.done - each.cool_down),
                f"{each.live:,}",
                show_size(peaks[each.position]),
            )
        )
    caption = (
        "Per rank and step; live microbatches: the most whose activations are held at once, from the end of a stage's "
        "forward to that of its backward"
    )
    return table(caption, heads, lines)


def _messages(pipeline: Pipeline) -> Markup:
    heads = [("from", False), ("to", False), ("messages", True), ("bytes", True), ("bytes each", True)]
    lines = [_message(pipeline.axis, channel) for channel in pipeline.channels]
    if not lines:
        return element("p", "No messages are sent.", class_="note")
    return table("Messages per step, in each column of ranks along the axis", heads, lines)


def _message(axis: str, channel: Channel) -> tuple[str, ...]:
    each = show_size(channel.size / channel.messages)
    ends = f"{axis} {channel.sender}", f"{axis} {channel.receiver}"
    return (*ends, f"{channel.messages:,}", show_size(channel.size), each)
