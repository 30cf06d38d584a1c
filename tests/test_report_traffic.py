"""What a report says of a captured step's communication: buckets, bytes by axis, sizes known only at run time."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from models import BY_NAME
from report_programs import COSTS

import hpir
from hpir.reporting.example_sizes import with_example_sizes
from hpir.reporting.report import RankReport, make_report
from hpir.runtime.program import Program


@cache
def exported(name: str, dynamic: bool = False) -> Any:
    case = BY_NAME[name]
    batch = case.data(4)
    return hpir.export(
        case.model(), case.train, batch, dynamic={leaf: {0: "rows"} for leaf in batch} if dynamic else None
    )


def program_of_model(name: str, mesh: dict[str, int], fsdp: dict[str, Any], *, dynamic: bool = False) -> Program:
    plan = {"mesh": mesh, "data": {"axes": list(mesh), "microbatches": 2}, "fsdp": fsdp}
    return hpir.compile_program(exported(name, dynamic), {**plan, "buckets": {"by": "module"}})


def ranks_of(program: Program) -> RankReport:
    (ranks,) = make_report(program, name="prog", costs=COSTS, costs_name="costs", measured=None).ranks
    return ranks


def test_buckets_have_their_names_members_and_padding() -> None:
    fsdp = {"axes": ["dp"], "units": ["up", "mid"]}
    ranks = ranks_of(program_of_model("uneven", {"dp": 2}, fsdp))
    forward = {row.name: row for row in ranks.buckets if (row.kind, row.phase) == ("all_gather", "forward")}
    assert set(forward) == {"root", "up", "mid"}
    assert forward["up"].members == ("up.weight", "up.bias")
    # A rank's shard has 3 of 5 rows of 3, and 3 of the bias: 48 bytes. Each begins at a multiple of 16 bytes.
    assert (forward["up"].tensors, forward["up"].size, forward["up"].padding) == (2, 64, 16)
    assert all(row.launches == 2 and row.axes == ("dp",) for row in forward.values())
    assert all(0 <= row.padding < row.size for row in ranks.buckets)
    # A reduction's operand is twice a gather's.
    reduced = next(row for row in ranks.buckets if (row.name, row.kind) == ("up", "reduce_scatter"))
    assert (reduced.size, reduced.padding, reduced.phase) == (128, 32, "backward")


def test_traffic_is_told_by_axis_and_kind() -> None:
    fsdp = {"axes": ["dp"], "replicate_axes": ["rep"], "units": ["layers.*"]}
    ranks = ranks_of(program_of_model("tied", {"rep": 2, "dp": 2}, fsdp))
    rows = {(row.axes, row.kind): row for row in ranks.traffic}
    assert {(("dp",), "all_gather"), (("dp",), "reduce_scatter"), (("rep",), "all_reduce")} <= rows.keys()
    gathers = rows[("dp",), "all_gather"]
    assert gathers.sent == pytest.approx(gathers.size / 2, abs=gathers.launches)
    assert sum(row.launches for row in ranks.traffic) == ranks.launches
    assert [row.sent for row in ranks.traffic] == sorted((row.sent for row in ranks.traffic), reverse=True)


@pytest.mark.parametrize("name", ["tied", "rotary"])
def test_sizes_known_only_at_run_time_are_those_of_the_example(name: str) -> None:
    fsdp = {"axes": ["dp"], "units": ["layers.*"]}
    static, dynamic = (program_of_model(name, {"dp": 2}, fsdp, dynamic=dynamic) for dynamic in (False, True))
    assert with_example_sizes(static) is static
    unknown = [op for op in dynamic.functions["stage0_step"].ops if any(t and None in t.shape for t in op.types)]
    assert unknown
    sized = with_example_sizes(dynamic)
    for function in ("stage0_step", *sized.train):
        for op in sized.functions[function].ops:
            assert all(type_ is None or None not in type_.shape for type_ in op.types), op
    expected, found = ranks_of(static), ranks_of(dynamic)
    assert found.memory.peak.total == expected.memory.peak.total
    assert found.timeline.end == pytest.approx(expected.timeline.end, rel=0.02)
    assert found.traffic == expected.traffic
