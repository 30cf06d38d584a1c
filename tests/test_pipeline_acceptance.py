"""Every acceptance model on every pipeline, all ranks simulated in float64, against the plain loop.

A covering set runs always: each model on each mesh, on each mesh each schedule, with each schedule each number of
microbatches. ``HPIR_ALL_PIPELINES=1`` runs the whole product.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from deep_models import BY_DEEP_NAME, DEEP, captured_deep
from dynamic_models import LENGTHS, LengthLM, lengths_batch, train_lengths
from exports import captured
from models import BY_NAME, CASES, Case
from test_acceptance import assert_step_equals_loop

import hpir
from hpir.ir_passes.pipeline.schedules import ALGORITHMS
from hpir.lowering.exported import Exported

MESHES: dict[str, dict[str, int]] = {
    "pp2": {"pp": 2},
    "pp3": {"pp": 3},
    "pp4": {"pp": 4},
    "pp2_dp2": {"pp": 2, "dp": 2},
}
SCHEDULES = tuple(ALGORITHMS)
MICROBATCHES = (1, 2, 4, 8)
PRODUCT = [(case.name, *rest) for case in DEEP for rest in itertools.product(MESHES, SCHEDULES, MICROBATCHES)]


def covering() -> list[tuple[str, str, str, int]]:
    """Return a set that has each pair of model and mesh once, schedules and counts going round."""
    chosen = []
    for (number, case), (shift, mesh) in itertools.product(enumerate(DEEP), enumerate(MESHES)):
        turn = number + shift * len(SCHEDULES) // len(MESHES)
        count = MICROBATCHES[(number // len(SCHEDULES) + turn + shift) % len(MICROBATCHES)]
        chosen.append((case.name, mesh, SCHEDULES[turn % len(SCHEDULES)], count))
    return chosen


CHOSEN = PRODUCT if os.environ.get("HPIR_ALL_PIPELINES") else covering()


def plan_for(case: Case, mesh: dict[str, int], microbatches: int, **sections: Any) -> hpir.Plan:
    plan: dict[str, Any] = {"mesh": mesh, "data": {"microbatches": microbatches}, "pipeline": {}, **sections}
    if "dp" in mesh:
        fsdp = {"axes": ["dp"], "units": list(case.units), "ignore": list(case.ignore)}
        plan["fsdp"] = {**fsdp, **sections.get("fsdp", {})}
    return hpir.Plan.model_validate(plan)


def check(case: Case, exported: Exported, plan: hpir.Plan) -> None:
    program = hpir.compile_program(exported, plan)
    mesh = plan.device_mesh()
    assert mesh is not None
    ranks = mesh.count(plan.data_axes)
    assert_step_equals_loop(program, case, case.model(torch.float64), ranks, plan.data.microbatches, 1e-10)


@pytest.mark.parametrize(("name", "mesh", "schedule", "microbatches"), CHOSEN)
def test_step_equals_the_plain_loop(name: str, mesh: str, schedule: str, microbatches: int) -> None:
    case = BY_DEEP_NAME[name]
    check(case, captured_deep(name), plan_for(case, MESHES[mesh], microbatches, pipeline={"schedule": schedule}))


def test_the_covering_set_covers() -> None:
    chosen = covering()
    assert {(name, mesh) for name, mesh, *_ in chosen} == {(case.name, mesh) for case in DEEP for mesh in MESHES}
    assert {each[1:3] for each in chosen} == set(itertools.product(MESHES, SCHEDULES))
    assert {each[2:] for each in chosen} == set(itertools.product(SCHEDULES, MICROBATCHES))
    assert {case.name for case in CASES} <= {case.name for case in DEEP}


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_small_models_on_two_stages(name: str) -> None:
    case = BY_NAME[name]
    check(case, captured(name, 2), plan_for(case, MESHES["pp2_dp2"], 2))


EXTRAS: dict[str, dict[str, Any]] = {
    "buckets": {"buckets": {}, "overlap": {}},
    "packed": {"buckets": {"by": "size", "layout": "packed"}},
    "hoisted": {"pipeline": {"hoist_gathers": True}},
    "sunk": {"pipeline": {"sink_reductions": True, "schedule": "zb-h1"}},
    "both": {"pipeline": {"hoist_gathers": True, "sink_reductions": True, "schedule": "dualpipe-v"}, "buckets": {}},
    "kept": {"fsdp": {"reshard_after_forward": False}, "pipeline": {"schedule": "interleaved"}},
    "data_parallel": {"fsdp": {"axes": [], "replicate_axes": ["dp"]}},
    "hybrid": {"mesh": {"pp": 2, "rep": 2, "dp": 2}, "fsdp": {"replicate_axes": ["rep"]}},
    "inside": {"mesh": {"dp": 2, "pp": 3}},
    "one_data_rank": {"mesh": {"one": 1, "pp": 2, "dp": 1}},
    "one_stage": {"mesh": {"pp": 1, "dp": 2}},
}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", ("tied", "convnet", "twice"))
@pytest.mark.parametrize("extra", EXTRAS)
def test_other_plans(name: str, extra: str) -> None:
    case, sections = BY_DEEP_NAME[name], dict(EXTRAS[extra])
    mesh = sections.pop("mesh", MESHES["pp2_dp2"])
    check(case, captured_deep(name), plan_for(case, mesh, 3, **sections))


@pytest.mark.parametrize(("mesh", "schedule"), [("pp3", "1f1b"), ("pp2_dp2", "zb-v")])
def test_lengths_that_change(mesh: str, schedule: str) -> None:
    """Messages carry their sizes, outputs of unknown length are gathered; the step was captured with another length."""
    ids = torch.zeros(2, 6, dtype=torch.int64)
    batch = {"ids": ids, "labels": ids}
    case = Case("lengths", LengthLM, lambda rows: lengths_batch(rows, 5), train_lengths)
    exported = hpir.export(case.model(torch.float64), train_lengths, batch, dynamic=LENGTHS)
    check(case, exported, plan_for(case, MESHES[mesh], 2, pipeline={"schedule": schedule}))


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_text("F0.0 F0.1 B0.1 B0.0\nF1.0 F1.1 B1.1 B1.0\n")
    case = BY_DEEP_NAME["counting"]
    plan = plan_for(case, MESHES["pp2"], 2, pipeline={"table": str(tmp_path / "order.txt")})
    check(case, captured_deep("counting"), plan)


def test_stages_by_name() -> None:
    case = BY_DEEP_NAME["twice"]
    stages = [["layers.[0-2]", "shared"], ["layers.[3-7]", "head"]]
    check(case, captured_deep("twice"), plan_for(case, MESHES["pp2_dp2"], 2, pipeline={"stages": stages}))
