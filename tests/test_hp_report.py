"""`hp-report` as a user runs it: what it writes, and what it says of mistakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from commands import call
from models import BY_NAME
from report_programs import one_gather, two_stages

import hpir

BIN = Path(sys.executable).parent
COSTS = """
device = "cpu"
[compute]
memory_bandwidth = 1e9
op_overhead = 1e-6
[links]
latency = 1e-4
bandwidth = 1e9
"""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / str(command[0])), *map(str, command[1:])], cwd=cwd, capture_output=True, text=True, timeout=120
    )


def report(*arguments: str, cwd: Path) -> str:
    done = call("hp-report", *arguments, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def fail(*arguments: str, cwd: Path) -> str:
    """Return the one line that a mistake is told in; nothing else is left behind."""
    before = {path: path.stat().st_mtime_ns for path in cwd.rglob("*")}
    done = call("hp-report", *arguments, cwd=cwd)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "error: " in done.stderr
    assert {path: path.stat().st_mtime_ns for path in cwd.rglob("*")} == before
    return done.stderr.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Programs, a costs file and a profile of a run."""
    path = tmp_path_factory.mktemp("report")
    case = BY_NAME["tied"]
    plan = {"mesh": {"dp": 2}, "data": {"microbatches": 2}, "fsdp": {"axes": ["dp"], "units": ["layers.*"]}}
    hpir.compile_program(hpir.export(case.model(), case.train, case.data(2)), plan).save(path / "prog")
    one_gather().save(path / "gather")
    two_stages().save(path / "stages")
    (path / "costs.toml").write_text(COSTS)
    done = call("hp-run", "prog", "--nproc", "2", "--steps", "2", "--profile", "run", cwd=path)
    assert done.returncode == 0, done.stderr
    (path / "recorded.txt").write_text(done.stdout)
    return path


def test_data_of_a_small_program_are_as_computed_by_hand(folder: Path) -> None:
    data = json.loads(report("gather", "--costs", "costs.toml", "--json", "-", cwd=folder))
    assert data["schema"] == 1
    assert data["program"]["mesh"] == {"dp": 2}
    assert data["costs"]["name"] == "costs.toml"
    step = data["step"]
    assert step["simulated_seconds"] == pytest.approx(122e-6)
    assert step["exposed_seconds"] == pytest.approx(101e-6)
    assert (step["measured_seconds"], step["bubble"], step["launches"]) == (None, 0, 1)
    (ranks,) = data["ranks"]
    assert ranks["ranks"] == [0, 1]
    assert [block[2] for block in ranks["blocks"]] == ["launch", "compute", "wait", "compute"]
    (row,) = ranks["traffic"]
    assert row.pop("seconds") == pytest.approx(104e-6)
    assert row == {"axes": ["dp"], "kind": "all_gather", "launches": 1, "bytes": 8000, "sent_bytes": 4000}
    # A shard and x, what is gathered, and both negations.
    assert ranks["memory"]["peak_bytes"] == step["peak_bytes"] == 4000 + 1000 + 8000 + 1000 + 8000
    assert ranks["buckets"] == []


def test_a_pipeline_is_reported_by_stage(folder: Path) -> None:
    data = json.loads(report("stages", "--costs", "costs.toml", "--json", "-", cwd=folder))
    assert [ranks["ranks"] for ranks in data["ranks"]] == [[0, 1], [2, 3]]
    assert data["step"]["bubble"] == pytest.approx((213 - 8 + 205) / (2 * 213))
    first, second = (ranks["traffic"] for ranks in data["ranks"])
    assert [(row["kind"], row["launches"], row["sent_bytes"]) for row in first] == [("send", 2, 2000)]
    assert [(row["kind"], row["launches"], row["sent_bytes"]) for row in second] == [("recv", 2, 0)]


def test_gathers_that_start_together_are_one_bucket(folder: Path) -> None:
    (ranks,) = json.loads(report("prog", "--json", "-", cwd=folder))["ranks"]
    row = next(
        row for row in ranks["buckets"] if row["kind"] == "all_gather" and "layers.0.up.weight" in row["members"]
    )
    assert row["tensors"] == len(row["members"]) == 6
    assert (row["launches"], row["axes"]) == (2, ["dp"])
    assert row["padding_bytes"] == 0
    single = sum(1 for each in ranks["transfers"]) - sum(row["launches"] for row in ranks["buckets"])
    assert 0 < single < ranks["launches"]


def test_the_same_program_gives_the_same_files(folder: Path) -> None:
    for name in ("first", "second"):
        report("prog", "-o", f"{name}.html", "--json", f"{name}.json", "--trace", f"{name}.t", cwd=folder)
    for end in ("html", "json", "t"):
        assert (folder / f"first.{end}").read_bytes() == (folder / f"second.{end}").read_bytes()


def check_trace(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Check a trace by the rules of the trace-event format, and return its events by kind."""
    events: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= event.keys()
        events[event["ph"]].append(event)
    named = {(event["pid"], event["tid"]) for event in events["M"] if event["name"] == "thread_name"}
    processes = {event["pid"] for event in events["M"] if event["name"] == "process_name"}
    last = 0.0
    reached: dict[tuple[int, int], float] = defaultdict(float)
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            continue
        assert event["ts"] >= last >= 0
        last = event["ts"]
        place = event["pid"], event["tid"]
        assert place in named and event["pid"] in processes
        if event["ph"] == "X":
            assert event["dur"] >= 0
            # What is in one lane does not overlap, up to what rounding to nanoseconds does.
            assert event["ts"] >= reached[place] - 0.002
            reached[place] = event["ts"] + event["dur"]
    starts = {event["id"]: event for event in events["s"]}
    assert len(starts) == len(events["s"]) == len(events["f"]) > 0
    for event in events["f"]:
        start = starts[event["id"]]
        # Messages go from one process to another.
        assert event["bp"] == "e" and (event["pid"] != start["pid"]) == (event["cat"] == "message")
        assert event["ts"] >= start["ts"] and event["tid"] != start["tid"]
    assert set(events) == {"M", "X", "s", "f"}
    return events


@pytest.mark.parametrize("name", ["gather", "stages", "prog"])
def test_traces_are_well_formed(folder: Path, name: str) -> None:
    report(name, "--costs", "costs.toml", "--trace", "trace.json", cwd=folder)
    events = check_trace(json.loads((folder / "trace.json").read_text()))
    if name == "gather":
        spans = [(event["name"], event["ts"], event["dur"]) for event in events["X"]]
        assert spans == [
            ("launch", 0, 1),
            ("all-gather", 1, 104),
            ("compute", 1, 3),
            ("wait", 4, 101),
            ("compute", 105, 17),
        ]
        assert [(event["ts"], event["tid"]) for event in events["s"] + events["f"]] == [(1, 1), (105, 0)]


def test_a_run_is_shown_beside_the_simulation(folder: Path) -> None:
    assert sorted(path.name for path in (folder / "run").iterdir()) == ["rank0.json", "rank1.json"]
    report("prog", "--run", "run", "--trace", "t.json", "--json", "r.json", "-o", "r.html", cwd=folder)
    data = json.loads((folder / "r.json").read_text())
    measured = data["measured"]
    assert [each["ranks"] for each in measured] == [[0], [1]]
    (simulated,) = data["ranks"]
    for each in measured:
        # The same communication, in the same order, and times that follow one another.
        ran = [(transfer["kind"], transfer["name"], transfer["bytes"]) for transfer in each["transfers"]]
        assert ran == [(t["kind"], t["name"], t["bytes"]) for t in simulated["transfers"]]
        ends = [0.0, *(block[1] for block in each["blocks"])]
        assert all(begin >= end for (begin, *_), end in zip(each["blocks"], ends, strict=False))
        assert sum(block[5] for block in each["blocks"]) == sum(block[5] for block in simulated["blocks"])
        assert 0 < each["exposed_seconds"] < each["seconds"] == pytest.approx(ends[-1])
    assert data["step"]["measured_seconds"] == max(each["seconds"] for each in measured)
    events = check_trace(json.loads((folder / "t.json").read_text()))
    names = [event["args"]["name"] for event in events["M"] if event["name"] == "process_name"]
    assert names == ["rank 0 (measured)", "rank 1 (measured)", "ranks 0\N{EN DASH}1 (simulated)"]
    page = (folder / "r.html").read_text()
    assert "rank 0 · measured" in page and "1 timeline more can be chosen by rank" in page


def test_the_command_is_installed(folder: Path) -> None:
    done = run("hp-report", "prog", "--json", "-", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == report("prog", "--json", "-", cwd=folder)
    done = run("hp-report", "gone", "--json", "-", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


def test_recording_does_not_change_what_is_computed(folder: Path) -> None:
    done = call("hp-run", "prog", "--nproc", "2", cwd=folder)
    recorded = (folder / "recorded.txt").read_text().splitlines()
    assert [line.split()[3] for line in (*done.stdout.splitlines(), *recorded)] == 3 * [done.stdout.split()[3]]


def test_mistakes_are_one_line_and_leave_nothing(folder: Path) -> None:
    assert fail("prog", cwd=folder) == (
        "hp-report: error: nothing to write; name the page with -o, or use --json or --trace"
    )
    assert "gone/program.json: cannot read a Program: No such file" in fail("gone", "-o", "x.html", cwd=folder)
    assert "cannot read a Program: Not a directory" in fail("costs.toml", "-o", "x.html", cwd=folder)
    assert "no built-in rates for 'cdua', did you mean 'cuda'" in fail(
        "prog", "-o", "x.html", "--device", "cdua", cwd=folder
    )
    assert "--device: the costs file says" in fail(
        "prog", "-o", "x.html", "--device", "cpu", "--costs", "costs.toml", cwd=folder
    )


@pytest.mark.parametrize("seconds", [0, 5e-324, 3600])
@pytest.mark.parametrize("rate", [1, 1e21])
def test_costs_at_their_bounds_are_shown(folder: Path, seconds: float, rate: float) -> None:
    link = f"latency = {seconds}\nbandwidth = {rate}\n"
    compute = f"[compute]\nmemory_bandwidth = {rate}\nop_overhead = {seconds}\n"
    (folder / "bounds.toml").write_text(f"{compute}[compute.flops]\nfloat32 = {rate}\n[links]\n{link}[axes.dp]\n{link}")
    for name in ("gather", "stages", "prog"):
        more = ("-o", "b.html", "--trace", "b.t", "--json", "-")
        data = report(name, "--costs", "bounds.toml", *more, cwd=folder)
        assert json.loads(data)["step"]["simulated_seconds"] > 0
        for text in (data, (folder / "b.html").read_text(), (folder / "b.t").read_text()):
            assert not re.search(r"[^\w.](inf|nan|Infinity|NaN)[^\w.]", text)


def test_one_output_goes_to_one_place(folder: Path) -> None:
    assert json.loads(report("gather", "--trace", "-", cwd=folder))["traceEvents"]
    assert report("gather", "-o", "-", cwd=folder).startswith("<!DOCTYPE html>")
    assert not (folder / "-").exists()
    for one, other in (("--json", "--trace"), ("-o", "--json"), ("-o", "--trace")):
        assert fail("gather", one, "-", other, "-", cwd=folder) == (
            f"hp-report: error: {one} and {other}: both would be written to standard output"
        )
        assert fail("gather", one, "run/../x.out", other, "x.out", cwd=folder) == (
            f"hp-report: error: {one} and {other}: both would be written to 'x.out'"
        )


@pytest.mark.parametrize("option", ["-o", "--json", "--trace", "--costs", "--run"])
def test_empty_paths_are_refused(folder: Path, option: str) -> None:
    more = () if option == "--json" else ("--json", "-")
    for path in ("", " "):
        assert fail("gather", option, path, *more, cwd=folder) == (
            f"hp-report: error: {option}: expected a path, got: '{path}'"
        )
    assert "--device: no built-in rates for ''" in fail("gather", "--json", "-", "--device", "", cwd=folder)


def test_damaged_programs_are_refused(folder: Path) -> None:
    shutil.copytree(folder / "prog", folder / "damaged")
    file = folder / "damaged" / "program.json"
    text = file.read_text()
    file.write_text(text[: len(text) // 2])
    assert "damaged/program.json: not a Program: " in fail("damaged", "-o", "x.html", cwd=folder)
    file.write_text(text.replace('"microbatches":2', '"microbatches":3'))
    assert "digest does not match" in fail("damaged", "-o", "x.html", cwd=folder)


def test_costs_that_cannot_be_read_are_refused(folder: Path) -> None:
    bad = folder / "bad.toml"
    bad.write_text("[links]\nlatency = -1.0\n")
    assert "bad.toml: links.latency: expected a number of seconds from 0 to 3600, got: -1.0" in fail(
        "prog", "-o", "x.html", "--costs", "bad.toml", cwd=folder
    )
    bad.write_text("[links\n")
    assert "bad.toml" in fail("prog", "-o", "x.html", "--costs", "bad.toml", cwd=folder)
    assert "gone.toml" in fail("prog", "-o", "x.html", "--costs", "gone.toml", cwd=folder)


def test_output_that_cannot_be_written_leaves_what_was_there(folder: Path) -> None:
    (folder / "kept.html").write_text("as it was")
    for bad, reason in (("gone/x.html", "no such file or directory"), ("prog", "is a directory")):
        assert f"{bad}: error: cannot write: {reason}" in fail("prog", "-o", bad, cwd=folder)
        # No file is written where one cannot be.
        fail("prog", "-o", "kept.html", "--json", bad, cwd=folder)
    assert (folder / "kept.html").read_text() == "as it was"
    report("prog", "-o", "kept.html", cwd=folder)
    assert (folder / "kept.html").read_text().startswith("<!DOCTYPE html>")
    assert oct((folder / "kept.html").stat().st_mode)[-3:] == oct(0o666 & ~_umask())[2:]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def profile_with(folder: Path, change: dict[str, Any] | str) -> None:
    """Make a profile `changed` of which rank 1's file is another."""
    shutil.rmtree(folder / "changed", ignore_errors=True)
    shutil.copytree(folder / "run", folder / "changed")
    file = folder / "changed" / "rank1.json"
    file.write_text(change if isinstance(change, str) else json.dumps({**json.loads(file.read_text()), **change}))


def test_profiles_of_other_programs_are_refused(folder: Path) -> None:
    error = fail("gather", "-o", "x.html", "--run", "run", cwd=folder)
    assert error.startswith("run/rank0.json: error: a profile of another Program: of ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('{"schema":', "changed/rank1.json: error: not a profile: Expecting value"),
        ("[]", "not a profile: schema None, this hpir reads 1"),
        ({"schema": 99}, "not a profile: schema 99, this hpir reads 1"),
        ({"rank": 7}, "not a profile: no rank 7 in mesh dp:2"),
        ({"rank": 0}, "changed: error: no profile of rank 1: no file rank1.json"),
        ({"times": [[0, 2.0, 1.0]]}, "not a profile: times that do not follow one another: 2.0 to 1.0"),
        ({"times": [[0, "a", 1.0]]}, "not a profile: TypeError"),
        ({"times": [[10**6, 0.0, 1.0]]}, "not a profile: IndexError"),
        ({"times": 3}, "not a profile: TypeError"),
        ({"blocks": [["gone", "wait", 0, 1]]}, "not a profile: no function 'gone'"),
        ({"blocks": [["rank0", "wait", 0, 1]]}, "not a profile: op 0 of 'rank0' is no 'wait'"),
        ({"blocks": [["rank0", "compute", 0, 10**6]]}, "not a profile: 'rank0' has no ops 0 to 1000000"),
    ],
)
def test_damaged_profiles_are_refused(folder: Path, change: dict[str, Any] | str, message: str) -> None:
    profile_with(folder, change)
    assert message in fail("prog", "-o", "x.html", "--run", "changed", cwd=folder)


def test_incomplete_profiles_are_refused(folder: Path) -> None:
    profile_with(folder, {})
    (folder / "changed" / "rank0.json").unlink()
    assert fail("prog", "-o", "x.html", "--run", "changed", cwd=folder) == (
        "changed: error: no profile of rank 0: no file rank0.json"
    )
    (folder / "changed" / "rank1.json").unlink()
    assert "changed: error: no profile of a run: no file rank0.json" in fail(
        "prog", "-o", "x.html", "--run", "changed", cwd=folder
    )
    assert "nowhere: error: cannot read a profile: no such file or directory" in fail(
        "prog", "-o", "x.html", "--run", "nowhere", cwd=folder
    )


def test_only_runs_on_processes_are_recorded(folder: Path) -> None:
    for more, message in (
        (("--simulate",), "--profile: only a run with --nproc can be recorded"),
        (("--nproc", "2", "--backend", "inductor"), "with --backend eager only, got: inductor"),
    ):
        done = call("hp-run", "prog", "--profile", "nothing", *more, cwd=folder)
        assert done.returncode == 1 and message in done.stderr
    done = call("hp-run", "prog", "--nproc", "2", "--profile", "costs.toml", cwd=folder)
    assert done.returncode == 1
    assert done.stderr == "hp-run: error: costs.toml: cannot write a profile: file exists\n"
    assert not (folder / "nothing").exists()
