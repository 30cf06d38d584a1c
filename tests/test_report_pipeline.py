"""What a report says of pipelines: bubbles, microbatches that are alive, messages; simulated and measured."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Page, chromium, file_url, find_chromium
from distributed_case import run_ranks
from pipeline_programs import Chain, Layout, batch_of, chain_program, order_of
from program_builder import FunctionBuilder, by_position
from staged_text import UNIT, WIDTH, scheduled_program

from hpir.costs import Costs
from hpir.errors import RuntimeFault
from hpir.ir_passes.pipeline.schedules import Action, make_schedule, simulate
from hpir.ir_passes.pipeline.schedules.schedule import KINDS
from hpir.mesh import Mesh
from hpir.reporting.measured import read_profile
from hpir.reporting.page import write_page
from hpir.reporting.pipeline import peak_live, phases
from hpir.reporting.report import Report, make_report
from hpir.reporting.sent_messages import kept_until
from hpir.reporting.timeline import Task
from hpir.reporting.trace import trace_events
from hpir.runtime.local_ranks import train_local
from hpir.runtime.profile import Recorder
from hpir.runtime.program import TensorType
from hpir.runtime.simulate import simulate as simulate_program
from hpir.runtime.step import Step

SCHEDULES = {
    "gpipe": (1, False),
    "1f1b": (1, False),
    "interleaved": (2, False),
    "zb-h1": (1, True),
    "zb-v": (2, True),
    "dualpipe-v": (2, True),
}
"""Stages per rank, and whether backwards are split."""


def report_with(schedule: str, ranks: int, microbatches: int, costs: Costs) -> Report:
    per_rank, split = SCHEDULES[schedule]
    program = scheduled_program(schedule, ranks, microbatches, stages=per_rank * ranks, split=split)
    return make_report(program, name="chain", costs=costs, costs_name="unit", measured=None)


@cache
def report_of(schedule: str, ranks: int, microbatches: int) -> Report:
    return report_with(schedule, ranks, microbatches, UNIT)


def pipeline_json(report: Report) -> dict[str, Any]:
    found = report.to_json()["pipeline"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bubbles_and_live_microbatches_are_the_schedules_own(schedule: str) -> None:
    report = report_of(schedule, 4, 8)
    expected = simulate(make_schedule(schedule, 4, 4 * SCHEDULES[schedule][0], 8))
    assert report.simulated.seconds == pytest.approx(expected.makespan)
    assert report.simulated.bubble() == pytest.approx(expected.bubble)
    pipeline = pipeline_json(report)
    assert [each["peak_live_microbatches"] for each in pipeline["simulated"]["positions"]] == list(expected.peaks)
    # Each task starts when it does there.
    kinds = {task: kind for kind, task in KINDS.items()}
    for position in pipeline["simulated"]["positions"]:
        for stage, kind, microbatch, begin, _ in position["tasks"]:
            assert begin == pytest.approx(expected.starts[Action(kinds[kind], stage, microbatch)], abs=1e-6)


def test_1f1b_of_two_ranks_is_exact() -> None:
    # Rank 0: F0 F1 . B0 . B1 -> forwards at 0 and 1, backwards at 4 and 7; rank 1: F0 at 1, B0 at 2, F1 at 4, B1 at 5.
    report = report_of("1f1b", 2, 2)
    first, second = pipeline_json(report)["simulated"]["positions"]
    assert [task[1:4] for task in first["tasks"]] == [
        ["forward", 0, 0],
        ["forward", 1, pytest.approx(1)],
        ["backward", 0, pytest.approx(4)],
        ["backward", 1, pytest.approx(7)],
    ]
    assert [(task[1], task[2], round(task[3])) for task in second["tasks"]] == [
        ("forward", 0, 1),
        ("backward", 0, 2),
        ("forward", 1, 4),
        ("backward", 1, 5),
    ]
    assert report.simulated.seconds == pytest.approx(9)
    assert first["bubble"] == pytest.approx(3 / 9) and second["bubble"] == pytest.approx(3 / 9)
    # Rank 0 has 2 forwards, then waits; rank 1 begins its backward right behind its first forward.
    assert (first["steady_from"], first["cool_down_from"]) == (pytest.approx(4), pytest.approx(4))
    assert (second["steady_from"], second["cool_down_from"]) == (pytest.approx(2), pytest.approx(5))
    assert [each["done"] for each in (first, second)] == [pytest.approx(9), pytest.approx(7)]
    assert [each["peak_live_microbatches"] for each in (first, second)] == [2, 1]
    messages = pipeline_json(report)["messages"]
    size = 2 * 4 * WIDTH * WIDTH
    assert messages == [
        {"from": 0, "to": 1, "count": 2, "bytes": size},
        {"from": 1, "to": 0, "count": 2, "bytes": size},
    ]


def test_messages_take_latency_and_bytes() -> None:
    size = 4 * WIDTH * WIDTH
    slow = {**UNIT.model_dump(exclude_none=True), "axes": {"pp": {"latency": 0.25, "bandwidth": 4.0 * size}}}
    report = report_with("1f1b", 2, 1, Costs.of(slow))
    _, second = pipeline_json(report)["simulated"]["positions"]
    # The forward is over at 1 s; alpha and bytes are half a second.
    assert second["tasks"][0][3] == pytest.approx(1.5)
    # Forward, backward and back: 1 + 0.5 + 1 + 2 + 0.5 + 2; rank 1 is done at 4.5 s and waits to tell the loss.
    first = pipeline_json(report)["simulated"]["positions"][0]
    assert first["tasks"][-1][4] == pytest.approx(7)
    assert second["stalled_seconds"] == pytest.approx(1.5 + 2.5 + 0.25, rel=1e-3)
    traffic = {(*row["axes"], row["kind"]): row["sent_bytes"] for row in report.to_json()["ranks"][0]["traffic"]}
    assert traffic == {("pp", "send"): size, ("pp", "recv"): 0, ("pp", "broadcast"): 4}


def test_a_stage_without_backward_keeps_nothing() -> None:
    tasks = [Task(0, "forward", number, number, number + 1.0) for number in range(3)]
    assert peak_live(tasks) == 0
    # All of it is warm-up.
    assert phases(tasks) == (3.0, 3.0, 3.0)
    last = Task(1, "backward", 0, 3.0, 4.0)
    assert peak_live([*tasks, Task(1, "forward", 0, 2.0, 3.0), last]) == 1
    assert phases([]) == (0.0, 0.0, 0.0)


def test_activations_live_to_the_end_of_the_weight_backward() -> None:
    # Each microbatch's input backward is over before the next forward, its weight backward is not.
    order = [("forward", 0), ("backward_input", 0), ("forward", 1), ("backward_input", 1), ("backward_weight", 0)]
    tasks = [Task(0, kind, number, at, at + 1.0) for at, (kind, number) in enumerate(order)]
    assert peak_live([*tasks, Task(0, "backward_weight", 1, 5.0, 6.0)]) == 2
    assert phases(tasks) == (1.0, 3.0, 5.0)


def test_what_is_sent_is_kept_until_a_message_says_that_it_is_there() -> None:
    program = scheduled_program("1f1b", 2, 4)
    said = []
    for position in range(2):
        ops = program.functions[program.train[position]].ops
        receives = {op.results[0]: op for op in ops if op.target == "hp.recv"}
        until = kept_until(program, position)
        said.append(
            {
                ops[send].kwargs["label"]: receives[next(iter(ops[wait].operands()))].kwargs["label"]
                for send, wait in until.items()
            }
        )
    # Rank 1 answers each forward with a backward; rank 0's next forward after a backward says that this one is there.
    assert said[0] == {f"f0.0 mb {number}": f"b1.0 mb {number}" for number in range(4)}
    assert said[1] == {"b1.0 mb 0": "f0.0 mb 2", "b1.0 mb 1": "f0.0 mb 3"}
    # So a rank's memory does not grow with the number of microbatches; the first one holds the whole batch.
    peaks = [report_of("1f1b", 2, count).ranks[1].memory.peak.total for count in (4, 16)]
    assert peaks[0] == peaks[1]


def test_sizes_of_messages_are_those_of_the_example() -> None:
    program = chain_program(Layout(Mesh.of({"pp": 3}), rows=None))
    functions = {
        name: replace(
            function,
            arguments=tuple(replace(each, example=5) if each.role == "size" else each for each in function.arguments),
        )
        for name, function in program.functions.items()
    }
    report = make_report(
        replace(program, functions=functions), name="chain", costs=UNIT, costs_name="unit", measured=None
    )
    # Five rows of four elements, four times.
    assert {each["bytes"] for each in pipeline_json(report)["messages"]} == {4 * 5 * 16}
    traffic = {row["kind"]: row["bytes"] for row in report.to_json()["ranks"][1]["traffic"]}
    assert traffic["send"] == traffic["recv"] == 2 * 4 * 5 * 16


def test_ranks_of_dynamic_sizes_that_wait_for_each_other_are_an_error() -> None:
    mesh = Mesh.of({"pp": 2})
    functions = []
    for position in range(2):
        f = FunctionBuilder(f"rank{position}", mesh)
        f.result(f.wait(f.recv(TensorType((None,), "float32"), axis="pp", peer=1 - position, header=True)))
        functions.append(f.build())
    with pytest.raises(RuntimeFault, match="deadlock: 2 of 2 pipeline positions cannot proceed"):
        make_report(by_position(functions, mesh, "pp"), name="", costs=UNIT, costs_name="", measured=None)


def test_traces_have_arrows_from_send_to_wait() -> None:
    trace = trace_events(report_of("1f1b", 2, 2))["traceEvents"]
    arrows: dict[int, list[dict[str, Any]]] = {}
    for event in trace:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append(event)
    messages = {
        pair[0]["name"]: [(e["ph"], e["pid"], round(e["ts"] / 1e6)) for e in pair]
        for pair in arrows.values()
        if pair[0]["cat"] == "message"
    }
    assert all(len(pair) == 2 for pair in arrows.values())
    assert messages == {
        "f0.0 mb 0": [("s", 0, 1), ("f", 1, 1)],
        "f0.0 mb 1": [("s", 0, 2), ("f", 1, 4)],
        "b1.0 mb 0": [("s", 1, 4), ("f", 0, 4)],
        "b1.0 mb 1": [("s", 1, 7), ("f", 0, 7)],
    }
    tasks = [event for event in trace if event.get("cat") == "task"]
    assert [(e["pid"], e["name"]) for e in tasks if e["ts"] < 1.5e6] == [
        (0, "stage 0 forward 0"),
        (0, "stage 0 forward 1"),
        (1, "stage 1 forward 0"),
    ]


def test_a_large_pipeline_is_reported_in_seconds() -> None:
    begin = time.perf_counter()
    report = report_of("1f1b", 8, 32)
    assert report.simulated.bubble() == pytest.approx(7 / 39)
    page = write_page(report)
    assert time.perf_counter() - begin < 60
    assert len(page) < 3_000_000


def test_the_page_has_the_diagram_and_its_numbers() -> None:
    page = write_page(report_of("zb-h1", 4, 8))
    chart = page[page.index('id="pipeline-simulated"') :]
    chart = chart[: chart.index("</svg></section>") if "</svg></section>" in chart else chart.index("<table")]
    for kind in ("forward", "backward-input", "backward-weight"):
        assert chart.count(f'class="bar {kind}"') == 4 * 8
    assert "stage 2, backward weight of microbatch 7: 1.00 s" in chart
    for name in ("warm-up", "steady", "cool-down"):
        assert chart.count(f'class="{name}"') == 4
    assert "pp 3 · rank 3" in chart
    bubble = 100 * simulate(make_schedule("zb-h1", 4, 4, 8)).bubble
    assert f"Pipeline, simulated: bubble {bubble:.1f}%" in chart
    # The second stage of a rank is another shade.
    assert 'class="bar forward chunk-1"' in write_page(report_of("zb-v", 4, 8))


def recorded(rank: int, layout: Layout, folder: str) -> None:
    program = chain_program(layout)
    recorder = Recorder(torch.device("cpu"))
    step = Step(program, Chain(layout.stages), recorder=recorder)
    batch = batch_of(2 * layout.microbatches)
    for _ in range(2):
        step(**batch)
    recorder.save(folder, program, rank)


def test_a_run_of_pp2_dp2_is_shown_beside_the_simulation(tmp_path: Path) -> None:
    layout = Layout(Mesh.of({"pp": 2, "dp": 2}), split=True)
    run_ranks(recorded, 4, layout, str(tmp_path))
    program = chain_program(layout)
    measured = read_profile(tmp_path, program)
    report = make_report(program, name="chain", costs=UNIT, costs_name="unit", measured=measured)
    assert report.measured_pipeline is not None
    positions = report.measured_pipeline.positions
    assert [(each.position, each.timeline.ranks) for each in positions] == [(0, (0,)), (0, (1,)), (1, (2,)), (1, (3,))]
    for each in positions:
        order = [(task.kind, task.microbatch) for task in each.timeline.tasks]
        kinds = {"F": "forward", "B": "backward"}
        assert order == [(kinds[kind], number) for kind, number in order_of(each.position, 2, layout.microbatches)]
        assert {task.stage for task in each.timeline.tasks} == {each.position}
        times = [time for task in each.timeline.tasks for time in (task.begin, task.end)]
        assert times == sorted(times) and times[-1] <= each.timeline.stopped()
        assert each.live == 2 - each.position
        # Waits for messages and for the loss, and what the others had still to do: the whole of it is a part of 1.
        waits = [t for t in each.timeline.transfers if t.kind in ("recv", "broadcast")]
        assert each.stalled == pytest.approx(sum(t.exposed for t in waits))
        assert 0 < each.bubble < 1
    assert [(c.sender, c.receiver, c.messages, c.size) for c in report.measured_pipeline.channels] == [
        (0, 1, 4, 4 * 32),
        (1, 0, 4, 4 * 32),
    ]
    found = report.to_json()
    assert found["step"]["measured_bubble"] == pytest.approx(sum(each.bubble for each in positions) / 4)
    assert len(found["pipeline"]["measured"]["positions"]) == 4
    page = write_page(report)
    assert 'id="pipeline-measured"' in page and "bubble, measured" in page
    # Arrows of messages stay within a column of data ranks.
    for event in trace_events(report)["traceEvents"]:
        assert event["ph"] != "s" or event["cat"] != "message" or event["pid"] < 6


def test_a_run_on_local_processes_is_recorded(tmp_path: Path) -> None:
    layout = Layout(Mesh.of({"pp": 2}), microbatches=3, tied=True)
    program, model, batch = chain_program(layout), Chain(2, tied=True), batch_of(6)
    program.save(tmp_path / "prog")
    state = model.state_dict()
    losses = train_local(tmp_path / "prog", state, batch, steps=2, profile=tmp_path / "run")
    simulated = float(simulate_program(program, state, batch).loss)
    assert [loss for loss, _ in losses] == [pytest.approx(simulated, rel=1e-6)] * 2
    measured = read_profile(tmp_path / "run", program)
    assert [len(each.tasks) for each in measured.ranks] == [6, 6]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["rank0", "call", 0, 1], "op 0 of 'rank0' is no 'call'"),
        (["stage0_forward", "call", 0, 1], "op 0 of 'stage0_forward' is no 'call'"),
    ],
)
def test_calls_that_are_none_are_refused(tmp_path: Path, row: list[Any], message: str) -> None:
    program = chain_program(Layout(Mesh.of({"pp": 2})))
    Recorder(torch.device("cpu")).save(tmp_path, program, 0)
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "blocks": [row], "times": [[0, 0.0, 1.0]]}))
    with pytest.raises(RuntimeFault) as fault:
        read_profile(tmp_path, program)
    assert str(fault.value) == f"{file}: error: not a profile: {message}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    path = find_chromium()
    assert path is not None
    with chromium(path) as page:
        yield page


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed")
def test_eight_ranks_are_readable_at_1280_pixels(browser: Page, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(write_page(report_of("1f1b", 8, 16)), encoding="utf-8")
    browser.open(file_url(file), 1280)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 1280
    # All lanes are there, and every number stands within its block.
    assert browser.evaluate("document.querySelectorAll('#pipeline-simulated svg.tasks').length") == 8
    spilled = browser.evaluate(
        "[...document.querySelectorAll('#pipeline-simulated .bar-label')].filter(label => { "
        "const inner = label.getBoundingClientRect(), outer = label.previousElementSibling.getBoundingClientRect(); "
        "return inner.left < outer.left - 0.5 || inner.right > outer.right + 0.5; }).length"
    )
    labels = browser.evaluate("document.querySelectorAll('#pipeline-simulated .bar-label').length")
    assert (spilled, labels) == (0, 8 * 16 * 2)
    # The table of positions is not wider than the page is.
    beyond = browser.evaluate(
        "Math.max(...[...document.querySelectorAll('#pipeline-section .scroll')]"
        ".map(region => region.scrollWidth - region.clientWidth))"
    )
    assert beyond == 0
    assert (browser.complaints, browser.requests) == ([], [])
