"""Simulated timelines against times computed by hand."""

from __future__ import annotations

import pytest
from program_builder import FunctionBuilder, by_position, program_of
from report_programs import COSTS, PAIR, US, one_gather, timeline_of, two_stages

from hpir.costs import Costs
from hpir.errors import RuntimeFault
from hpir.mesh import Mesh
from hpir.reporting.timeline import exposures
from hpir.runtime.program import TensorType


def close(*values: float) -> object:
    return pytest.approx(values, rel=1e-9, abs=1e-15)


def test_one_gather_on_two_ranks_is_exact() -> None:
    timeline = timeline_of(one_gather())
    (both,) = timeline.ranks
    assert both.ranks == (0, 1)
    # Launch 1 us; 2000 bytes 1 + 2 us; half of 8000 bytes is sent: 100 + 4 us from the launch's end on.
    spans = [(block.kind, block.begin / US, block.end / US) for block in both.blocks]
    assert [kind for kind, _, _ in spans] == ["launch", "compute", "wait", "compute"]
    assert [begin for _, begin, _ in spans] == close(0, 1, 4, 105)
    assert [end for _, _, end in spans] == close(1, 4, 105, 105 + 1 + 16)
    (gather,) = both.transfers
    assert (gather.kind, gather.lane, gather.size) == ("all_gather", "dp", 8000)
    assert gather.waited is not None
    times = (gather.launched, gather.begin, gather.end, gather.waited, gather.exposed)
    assert [time / US for time in times] == close(1, 1, 105, 4, 101)
    assert timeline.seconds / US == pytest.approx(122)
    assert both.exposed() / US == pytest.approx(101)
    assert both.busy() / US == pytest.approx(21)
    assert timeline.bubble() == 0


def test_a_wait_that_comes_late_exposes_nothing() -> None:
    fast = Costs.of({**COSTS.model_dump(exclude_none=True), "links": {"latency": 1e-6, "bandwidth": 4e9}})
    (both,) = timeline_of(one_gather(), fast).ranks
    # 1 + 1 us after the launch, before the operator is over at 4 us.
    assert both.transfers[0].end / US == pytest.approx(3)
    assert both.exposed() == 0
    assert [block.end - block.begin for block in both.blocks if block.kind == "wait"] == [0]


def test_a_group_has_one_lane_and_groups_do_not_disturb_each_other() -> None:
    mesh = Mesh.of({"dp": 2, "tp": 2})
    f = FunctionBuilder("main", mesh)
    x = f.argument("x", (1000,))
    first, second = (f.all_gather(x, axes=["dp"], dims=[0]) for _ in range(2))
    other = f.all_gather(x, axes=["tp"], dims=[0])
    for future in (first, second, other):
        f.result(f.wait(future))
    (all_,) = timeline_of(program_of(f.build(), mesh=mesh)).ranks
    assert [transfer.lane for transfer in all_.transfers] == ["dp", "dp", "tp"]
    assert [transfer.begin / US for transfer in all_.transfers] == close(1, 105, 3)
    assert [transfer.end / US for transfer in all_.transfers] == close(105, 209, 107)
    assert [transfer.exposed / US for transfer in all_.transfers] == close(102, 104, 0)
    assert all_.lanes == ["dp", "tp"]


def test_a_group_of_one_rank_takes_no_time() -> None:
    (one,) = timeline_of(one_gather(Mesh.of({"dp": 1}))).ranks
    assert one.transfers[0].end == one.transfers[0].begin
    assert one.exposed() == 0


def test_microbatches_are_calls_and_their_exposure_adds_up() -> None:
    callee = one_gather().functions["main"]
    entry = FunctionBuilder("entry", PAIR)
    weight = entry.param("weight", (2000,), sharding=(("dp",),))
    x = entry.argument("x", (250,))
    for number in range(3):
        entry.call(callee, weight, x, microbatch=number)
    (both,) = timeline_of(program_of(callee, entry.build(), mesh=PAIR)).ranks
    # Each microbatch is as the one alone, and an op of the callee's is one in the list.
    assert [transfer.begin / US for transfer in both.transfers] == close(1, 123, 245)
    (gather,) = exposures(both)
    assert (gather.runs, gather.transfer.function) == (3, "main")
    assert (gather.seconds / US, gather.exposed / US) == close(3 * 104, 3 * 101)


def test_exposures_have_the_worst_first() -> None:
    f = FunctionBuilder("main", PAIR)
    small, large = f.argument("a", (10,)), f.argument("b", (100_000,))
    for operand in (small, large):
        f.result(f.wait(f.all_reduce(operand, axes=["dp"])))
    (both,) = timeline_of(program_of(f.build(), mesh=PAIR)).ranks
    assert [each.transfer.size for each in exposures(both)] == [400_000, 40]
    assert sum(each.exposed for each in exposures(both)) == pytest.approx(both.exposed())


def test_two_stages_are_exact() -> None:
    timeline = timeline_of(two_stages())
    first, second = timeline.ranks
    assert (first.ranks, second.ranks) == ((0, 1), (2, 3))
    # Stage 0 is ready at 4 and 8 us, stage 1 at 1 us and, after its first operator, at 109 us. A message takes 101 us.
    for stage in (first, second):
        assert [transfer.begin / US for transfer in stage.transfers] == close(4, 109)
        assert [transfer.end / US for transfer in stage.transfers] == close(105, 210)
    assert [transfer.lane for transfer in (first.transfers[0], second.transfers[0])] == ["pp to 1", "pp from 0"]
    assert first.blocks[-1].end / US == pytest.approx(8)
    assert second.stalled("pp") / US == pytest.approx(104 + 101)
    assert timeline.seconds / US == pytest.approx(213)
    # Stage 0 has nothing to do after 8 us, stage 1 nothing while it waits.
    assert timeline.bubble() == pytest.approx((213 - 8 + 205) / (2 * 213))


def test_messages_of_a_channel_arrive_in_order() -> None:
    mesh = Mesh.of({"pp": 2})
    type_ = TensorType((250,), "float32")
    first, second = FunctionBuilder("rank0", mesh), FunctionBuilder("rank1", mesh)
    large, small = first.argument("a", (25_000,)), first.argument("b", (250,))
    first.send(large, axis="pp", peer=1)
    first.send(small, axis="pp", peer=1)
    futures = [second.recv(TensorType((25_000,), "float32"), axis="pp", peer=0), second.recv(type_, axis="pp", peer=0)]
    # The second one is waited for first.
    for future in reversed(futures):
        second.result(second.wait(future))
    _, receiver = timeline_of(by_position([first.build(), second.build()], mesh, "pp")).ranks
    assert [transfer.end / US for transfer in receiver.transfers] == close(201, 302)
    assert [transfer.exposed / US for transfer in receiver.transfers] == close(0, 300)


def test_a_collective_over_stages_begins_when_the_last_of_them_is_there() -> None:
    functions = []
    for position in range(3):
        f = FunctionBuilder(f"rank{position}", Mesh.of({"pp": 3}))
        x = f.argument("x", (250,))
        for _ in range(position):
            x = f.aten("neg.default", x)
        if position:
            x = f.wait(f.all_reduce(x, axes=["pp"], coordinates=(1, 2)))
        f.result(x)
        functions.append(f.build())
    timeline = timeline_of(by_position(functions, Mesh.of({"pp": 3}), "pp"))
    zeroth, first, second = timeline.ranks
    assert not zeroth.transfers
    # Ready at 3 + 1 and 6 + 1 us; two ranks send 1000 bytes each.
    for stage in (first, second):
        assert [(t.begin / US, t.end / US, t.lane) for t in stage.transfers] == [(*close_pair(7, 108), "pp [1, 2]")]
    assert first.exposed() / US == pytest.approx(108 - 4)


def close_pair(begin: float, end: float) -> tuple[object, object]:
    return pytest.approx(begin), pytest.approx(end)


def test_ranks_that_wait_for_each_other_are_an_error() -> None:
    mesh = Mesh.of({"pp": 2})
    functions = []
    for position in range(2):
        f = FunctionBuilder(f"rank{position}", mesh)
        f.result(f.wait(f.recv(TensorType((2,), "float32"), axis="pp", peer=1 - position)))
        functions.append(f.build())
    with pytest.raises(RuntimeFault) as fault:
        timeline_of(by_position(functions, mesh, "pp"))
    assert str(fault.value).splitlines() == [
        "deadlock: 2 of 2 pipeline positions cannot proceed",
        "  position 0: rank0: op 0 waits for recv",
        "  position 1: rank1: op 0 waits for recv",
    ]


def test_data_ranks_share_a_timeline() -> None:
    timeline = timeline_of(two_stages(mesh=Mesh.of({"pp": 2, "dp": 512})))
    assert len(timeline.ranks) == 2
    third, last = timeline.of(3), timeline.of(1023)
    assert third is timeline.ranks[0] and last is timeline.ranks[1]
    assert timeline.of(1024) is None
