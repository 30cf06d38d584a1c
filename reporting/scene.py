"""Timelines as lanes of bars, no more of them than can be seen: what the page draws and its script zooms into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .names import common_module
from .timeline import RankTimeline, Timeline, Transfer, merged
from .units import show_count, show_ranks, show_size, show_time

COMPUTE = "compute"
TASKS = "microbatches"


@dataclass(frozen=True, slots=True)
class Bar:
    """Something from `begin` to `end`.

    Attributes:
        look: the class it is drawn in.
        label: a few words to stand in it.
        text: what there is to say of it.
        cover: which part of the time something is there; less than 1 where gaps were put together too.
    """

    begin: float
    end: float
    look: str
    label: str
    text: str
    cover: float = 1.0


@dataclass(frozen=True)
class Lane:
    """Bars one after the other."""

    name: str
    bars: list[Bar]


@dataclass(frozen=True)
class Row:
    """The lanes of one timeline.

    Attributes:
        title: whose they are.
        source: ``simulated`` or ``measured``.
        ranks: whose they are, by number.
        lanes: compute first.
    """

    title: str
    source: str
    ranks: tuple[int, ...]
    lanes: list[Lane]


def rows(timeline: Timeline, axis: str | None, most_bars: int) -> list[Row]:
    """Return the lanes of a timeline.

    Args:
        timeline: of all ranks.
        axis: of the pipeline.
        most_bars: about how many bars a lane may have; neighbours are put together until it is so.
    """
    resolution = timeline.seconds / most_bars
    return [_row(timeline, each, axis, resolution) for each in timeline.ranks]


def _row(timeline: Timeline, each: RankTimeline, axis: str | None, resolution: float) -> Row:
    ranks = show_ranks(each.ranks)
    stage = timeline.mesh.coordinate(each.ranks[0])[axis] if axis else None
    title = ranks if stage is None else f"{axis} {stage} · {ranks}"
    lanes = [Lane(COMPUTE, condensed(_compute_bars(each), resolution))]
    if each.tasks:
        lanes.append(Lane(TASKS, condensed(task_bars(each), resolution)))
    by_lane: dict[str, list[Bar]] = {name: [] for name in each.lanes}
    for transfer in each.transfers:
        by_lane[transfer.lane].append(_transfer_bar(transfer))
    for name, bars in by_lane.items():
        # Messages are from or to a stage, collectives are over axes.
        shown = name if " to " in name or " from " in name else f"over {name}"
        lanes.append(Lane(shown, condensed(bars, resolution)))
    return Row(title, timeline.source, each.ranks, lanes)


def _compute_bars(timeline: RankTimeline) -> Iterable[Bar]:
    waiting = {transfer.waited: transfer for transfer in timeline.transfers if transfer.exposed > 0}
    for block in merged(timeline.blocks):
        if block.end <= block.begin:
            continue
        seconds = show_time(block.end - block.begin)
        module = block.module or "no module"
        if block.kind == "wait":
            transfer = waiting.get(block.begin)
            what = transfer.title if transfer else module
            yield Bar(block.begin, block.end, "wait", what, f"waits {seconds} for {what}")
        elif block.kind == "launch":
            yield Bar(block.begin, block.end, "launch", "", f"starts communication, {module}: {seconds}")
        else:
            look = block.phase if block.phase in ("forward", "backward") else "other"
            text = f"{module}, {block.phase or 'no phase'}: {seconds}, {show_count(block.ops, 'operator')}"
            yield Bar(block.begin, block.end, look, module, text)


def task_bars(timeline: RankTimeline) -> Iterable[Bar]:
    """Yield a bar for each task of a rank, with the number of its microbatch; those of its first stage come first."""
    chunks = {stage: number for number, stage in enumerate(sorted({task.stage for task in timeline.tasks}))}
    for task in timeline.tasks:
        chunk = chunks[task.stage]
        look = task.kind.replace("_", "-") + (f" chunk-{1 + (chunk - 1) % 3}" if chunk else "")
        seconds = show_time(task.end - task.begin)
        text = f"stage {task.stage}, {task.kind.replace('_', ' ')} of microbatch {task.microbatch}: {seconds}"
        yield Bar(task.begin, task.end, look, str(task.microbatch), text)


def _transfer_bar(transfer: Transfer) -> Bar:
    exposed = f", {show_time(transfer.exposed)} exposed" if transfer.exposed > 0 else ""
    phase = f", {transfer.phase}" if transfer.phase else ""
    text = f"{transfer.title}{phase}: {show_time(transfer.end - transfer.begin)}, {show_size(transfer.size)}{exposed}"
    return Bar(transfer.begin, transfer.end, spelled(transfer.kind), transfer.name, text)


def spelled(kind: str) -> str:
    """Return a kind of communication as people write it: ``all-gather``."""
    return kind.replace("_", "-")


def condensed(bars: Iterable[Bar], resolution: float) -> list[Bar]:
    """Return bars in which neighbours shorter than `resolution` are put together until they are not.

    Gaps between bars that are put together count as part of them; longer gaps are kept.
    """
    made: list[Bar] = []
    group: list[Bar] = []

    def flush() -> None:
        if group:
            made.append(_together(group))
            group.clear()

    for bar in bars:
        if bar.end - bar.begin >= resolution or (group and bar.begin - group[-1].end > resolution):
            flush()
        if bar.end - bar.begin >= resolution:
            made.append(bar)
            continue
        group.append(bar)
        if bar.end - group[0].begin >= resolution:
            flush()
    flush()
    return made


def _together(group: Sequence[Bar]) -> Bar:
    if len(group) == 1:
        return group[0]
    looks: dict[str, float] = {}
    for bar in group:
        looks[bar.look] = looks.get(bar.look, 0.0) + bar.end - bar.begin
    look = max(looks, key=lambda name: looks[name])
    begin, end = group[0].begin, group[-1].end
    label = common_module([bar.label for bar in group if bar.label])
    first = next(bar.text for bar in group if bar.look == look)
    busy = sum(looks.values())
    text = f"{len(group)} parts, {show_time(busy)} of {show_time(end - begin)}; the first: {first}"
    return Bar(begin, end, look, label, text, min(1.0, busy / (end - begin)) if end > begin else 1.0)
