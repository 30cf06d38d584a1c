"""The page: what stands in it, and how it opens in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import Page, chromium, file_url, find_chromium
from models import BY_NAME
from program_builder import FunctionBuilder, program_of
from report_programs import COSTS, PAIR, marked, one_gather, two_stages

import hpir
from hpir.mesh import Mesh
from hpir.reporting.charts import memory_bins
from hpir.reporting.memory import Memory, Point
from hpir.reporting.names import common_module, numbers_left_out
from hpir.reporting.page import write_page
from hpir.reporting.report import Report, make_report
from hpir.reporting.scene import Bar, condensed
from hpir.reporting.units import show_ranks, show_size, show_time, ticks
from hpir.runtime.program import Op, Program

CHROMIUM = find_chromium()
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


def report_of(program: Program, name: str = "prog") -> Report:
    return make_report(program, name=name, costs=COSTS, costs_name="costs.toml", measured=None)


@pytest.fixture(scope="module")
def captured() -> Report:
    case = BY_NAME["rotary"]
    plan = {"mesh": {"dp": 2}, "data": {"microbatches": 2}, "fsdp": {"axes": ["dp"], "units": ["layers.*"]}}
    return report_of(hpir.compile_program(hpir.export(case.model(), case.train, case.data(2)), plan), "rotary")


class Elements(HTMLParser):
    """Notes elements that are never closed, and text by the id of the element it stands in."""

    _VOID = frozenset({"meta", "link", "input"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, str]] = []
        self.texts: dict[str, str] = {}
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self._VOID:
            self.open.append((tag, dict(attrs).get("id") or ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1][0] == tag, f"</{tag}> closes <{self.open[-1][0]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for _, name in self.open:
            if name:
                self.texts[name] = self.texts.get(name, "") + data


def read(page: str) -> Elements:
    elements = Elements()
    elements.feed(page)
    elements.close()
    assert not elements.open
    return elements


def test_the_page_asks_for_nothing(captured: Report) -> None:
    page = write_page(captured)
    for word in ("http", "src=", "url(", "@import", "fetch(", "XMLHttpRequest", "import("):
        assert word not in page, word
    assert re.findall(r'href="([^"]*)"', page) == ["data:,"]


def test_key_numbers_are_those_of_the_data(captured: Report) -> None:
    texts = read(write_page(captured)).texts
    step = captured.to_json()["step"]
    assert texts["key-step"] == show_time(step["simulated_seconds"])
    assert texts["key-exposed"] == show_time(step["exposed_seconds"])
    assert texts["key-peak"] == show_size(step["peak_bytes"])
    assert texts["key-launches"] == str(step["launches"])
    assert texts["key-bubble"] == "0.0%"
    assert "key-measured" not in texts


def test_names_of_a_program_are_text_wherever_they_stand() -> None:
    bad = '</script>\u2028<img onerror=alert(1)>"&'

    def change(name: str, number: int, op: Op) -> Op:
        return replace(op, module=f"{bad}.{number}", bucket=bad, members=(bad,))

    f = FunctionBuilder("main", PAIR)
    f.result(f.wait(f.all_gather(f.param(bad, (8,)), axes=["dp"], dims=[0])))
    program = marked(program_of(f.build(), mesh=PAIR), change)
    elements = read(write_page(report_of(program, name=bad)))
    assert "img" not in elements.tags
    assert elements.tags.count("script") == 2
    assert bad in json.loads(elements.texts["timeline-data"])["rows"][0]["lanes"][1]["bars"][0][4]


def test_a_pipeline_has_a_section_per_stage_and_the_fullest_is_open() -> None:
    page = write_page(report_of(two_stages()))
    read(page)
    assert page.count("<h2>Memory</h2>") == 2
    assert page.count("<details open>") == 1
    assert "pp 1 · ranks 2\N{EN DASH}3 · simulated" in page
    assert "2 stages" in page


def test_a_program_that_does_nothing_has_a_page() -> None:
    f = FunctionBuilder("main", Mesh.of({"all": 1}))
    texts = read(write_page(report_of(program_of(f.build(), mesh=Mesh.of({"all": 1}))))).texts
    assert texts["key-step"] == "0 ms"
    assert "Nothing is communicated." in texts["report"]


def test_large_steps_stay_small_pages() -> None:
    # 80 layers of 2 gathers and 20 operators, 32 microbatches: 57,600 blocks and waits on the compute lane.
    f = FunctionBuilder("layers", PAIR)
    x = f.argument("x", (64,))
    for _ in range(80):
        for _ in range(2):
            future = f.all_gather(x, axes=["dp"], dims=[0])
            for _ in range(10):
                x = f.aten("neg.default", x)
            f.wait(future)
    f.result(x)
    callee = f.build()
    entry = FunctionBuilder("entry", PAIR)
    y = entry.argument("x", (64,))
    for number in range(32):
        entry.call(callee, y, microbatch=number)
    program = program_of(callee, entry.build(), mesh=PAIR)
    report = report_of(marked(program, lambda name, number, op: op))
    assert len(report.ranks[0].timeline.blocks) > 15_000
    page = write_page(report)
    assert len(page) < 6_000_000
    static = page[: page.index('id="timeline-data"')]
    assert static.count("<rect") < 3_000


def test_neighbours_too_short_to_be_seen_are_put_together() -> None:
    bars = [Bar(float(n), n + 1.0, "forward" if n % 2 else "wait", f"layers.{n}", f"bar {n}") for n in range(10)]
    assert condensed(bars, 0.5) == bars
    together = condensed(bars, 5.0)
    assert [(bar.begin, bar.end, bar.label) for bar in together] == [(0, 5, "layers"), (5, 10, "layers")]
    assert "5 parts" in together[0].text and together[0].look == "wait"
    # A gap that can be seen is kept, and so is what is long enough by itself.
    apart = [Bar(0, 1, "a", "", "a"), Bar(50, 51, "b", "", "b"), Bar(51, 90, "c", "", "c")]
    assert condensed(apart, 5.0) == apart


def test_modules_in_common() -> None:
    assert common_module(["layers.0.up", "layers.0.down"]) == "layers.0"
    assert common_module(["layers.0", "layers.01"]) == "layers"
    assert common_module(["a", "b"]) == common_module([]) == ""
    assert numbers_left_out("layers.12.up.3") == "layers.*.up.*"
    assert numbers_left_out("conv2d.w1") == "conv2d.w1"


def test_memory_is_drawn_with_every_peak() -> None:
    points = [Point(0, 0, (1,)), Point(0, 4, (2,)), Point(4, 4.1, (9,)), Point(4.1, 10, (3,))]
    bins = memory_bins(Memory(points, points[2]), 10.0, 10)
    assert [point.total for point in bins] == [2, 2, 2, 2, 9, 3, 3, 3, 3, 3]


def test_numbers_are_readable() -> None:
    assert [show_time(value) for value in (0, 1.5, 2e-3, 12.34e-6, 0.1234, 5e-10)] == [
        "0 ms", "1.50 s", "2.00 ms", "12.3 µs", "123 ms", "0.50 ns",
    ]  # fmt: skip
    assert [show_size(value) for value in (0, 1023, 1024, 1536, 3 * 2**30, 123456789)] == [
        "0 B", "1,023 B", "1.00 KiB", "1.50 KiB", "3.00 GiB", "118 MiB",
    ]  # fmt: skip
    assert [show_ranks(ranks) for ranks in ((3,), (0, 1, 2), (0, 2, 4), tuple(range(0, 20, 2)))] == [
        "rank 3", "ranks 0\N{EN DASH}2", "ranks 0, 2, 4", "ranks 0, 2, \N{HORIZONTAL ELLIPSIS} 18",
    ]  # fmt: skip
    assert ticks(10.0) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.0) == [0]


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    assert CHROMIUM is not None
    with chromium(CHROMIUM) as page:
        yield page


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_opens_at_1280_pixels(browser: Page, captured: Report, tmp_path: Path, dark: bool) -> None:
    file = tmp_path / "report.html"
    file.write_text(write_page(captured), encoding="utf-8")
    browser.open(file_url(file), 1280, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 1280
    assert browser.evaluate("document.getElementById('key-step').textContent") == show_time(captured.simulated.seconds)
    assert browser.evaluate("document.getElementById('key-peak').textContent") == show_size(
        captured.worst.memory.peak.total
    )
    # No chart is cut off or runs out of its card, and what is written in one is large enough to read.
    widths = browser.evaluate(
        "[...document.querySelectorAll('svg.chart')].map(c => [c.getBoundingClientRect().right, "
        "c.closest('section').getBoundingClientRect().right, c.getBoundingClientRect().height])"
    )
    assert len(widths) == 2
    assert all(right <= edge and height > 60 for right, edge, height in widths)
    sizes = browser.evaluate(
        "[...document.querySelectorAll('svg.chart text')].map(t => t.getBoundingClientRect().height)"
    )
    assert min(size for size in sizes if size) > 10
    # Ink on paper: the contrast of running text.
    colours = browser.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.querySelector('section')).backgroundColor]"
    )
    ink, paper = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in colours)
    assert abs(ink - paper) > 400 and (ink > paper) == dark
    assert (browser.complaints, browser.requests) == ([], [])


@needs_chromium
def test_the_timeline_zooms_by_keyboard(browser: Page, captured: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(write_page(captured), encoding="utf-8")
    browser.open(file_url(file), 1280)
    assert browser.evaluate("document.getElementById('timeline-controls').hidden") is False
    labels = "[...document.querySelectorAll('#timeline .tick')].map(t => t.textContent).join(' ')"
    whole = browser.evaluate(labels)
    # The chart is reached by Tab alone.
    for _ in range(12):
        browser.press("Tab")
        if browser.evaluate("document.activeElement.id") == "timeline":
            break
    assert browser.evaluate("document.activeElement.id") == "timeline"
    browser.press("+")
    browser.press("+")
    zoomed = browser.evaluate(labels)
    assert zoomed != whole
    browser.press("ArrowRight")
    assert browser.evaluate(labels) != zoomed
    browser.press("n")
    assert browser.evaluate("document.getElementById('timeline-readout').textContent") != ""
    assert browser.evaluate("document.querySelectorAll('#timeline .chosen').length") == 1
    browser.press("0")
    assert browser.evaluate(labels) == whole
    assert (browser.complaints, browser.requests) == ([], [])


@needs_chromium
def test_every_rank_can_be_chosen(browser: Page, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(write_page(report_of(two_stages())), encoding="utf-8")
    browser.open(file_url(file), 1280)
    rows = "[...document.querySelectorAll('#timeline .row-title')].map(t => t.textContent)"
    stages = ["pp 0 · ranks 0\N{EN DASH}1 · simulated", "pp 1 · ranks 2\N{EN DASH}3 · simulated"]
    assert browser.evaluate(rows) == stages
    choose = "(() => {{ const i = document.getElementById('show-rank'); i.value = {0}; "
    choose += "i.dispatchEvent(new Event('change')); }})()"
    for rank in range(4):
        browser.evaluate(choose.format(rank))
        assert browser.evaluate(rows) == [stages[rank // 2]]
    browser.evaluate(choose.format(9))
    assert browser.evaluate("document.getElementById('timeline-readout').textContent") == "There is no rank 9."
    browser.evaluate("document.getElementById('show-distinct').click()")
    assert browser.evaluate(rows) == stages
    assert (browser.complaints, browser.requests) == ([], [])


@needs_chromium
def test_script_and_page_draw_the_same(browser: Page, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(write_page(report_of(one_gather())), encoding="utf-8")
    drawn = []
    for script in (False, True):
        browser.open(file_url(file), 1280, script=script)
        drawn.append(
            browser.evaluate(
                "(() => { const top = document.getElementById('timeline').getBoundingClientRect().y; "
                "return [...document.querySelectorAll('#timeline .bar, #timeline text')].map(e => { "
                "const b = e.getBoundingClientRect(); "
                "return [e.getAttribute('class'), e.textContent, ...[b.x, b.y - top, b.width].map(Math.round)]; "
                "}); })()"
            )
        )
    without, with_script = (sorted(map(json.dumps, each)) for each in drawn)
    assert without == with_script
    assert len(without) > 10
