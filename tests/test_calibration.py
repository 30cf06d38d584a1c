"""Measured rates: the fit, calibration on real ranks, and the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_case import run_ranks

from hpir.costs import COLLECTIVE_KINDS, Costs
from hpir.errors import PlanError, RuntimeFault
from hpir.mesh import Mesh
from hpir.runtime.calibration import Calibrator, Effort, fit
from hpir.tools import hp_run

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22)
QUICK = Effort(sizes=(1 << 10, 1 << 20), rounds=3, product_s=1e-3, memory=1 << 20, small_ops=50)


@pytest.mark.parametrize("latency", (0.0, 1e-6, 1e-3))
@pytest.mark.parametrize("bandwidth", (1e6, 1e9, 1e12))
def test_an_exact_line_is_found(latency: float, bandwidth: float) -> None:
    link = fit([(size, latency + size / bandwidth) for size in SIZES])
    assert link.latency == pytest.approx(latency, rel=1e-3, abs=1e-9)
    assert link.bandwidth == pytest.approx(bandwidth, rel=1e-3)


def test_small_messages_count_as_much_as_large_ones() -> None:
    noise = (1.1, 0.9, 1.1, 0.9)
    points = [(size, factor * (1e-4 + size / 1e9)) for size, factor in zip(SIZES, noise, strict=True)]
    link = fit(points)
    assert link.latency == pytest.approx(1e-4, rel=0.15)
    assert link.bandwidth == pytest.approx(1e9, rel=0.2)


def test_times_that_fit_no_line_give_rates_all_the_same() -> None:
    below = fit([(1e6, 1e-3), (2e6, 2.5e-3)])  # a line through less than nothing
    assert below.latency == 0 and 5e8 < below.bandwidth < 1.2e9
    falling = fit([(1e3, 2e-3), (1e6, 1e-3)])
    assert 1e-3 <= falling.latency <= 2e-3 and falling.bandwidth == 1e15
    alone = fit([(1e3, 2e-3)])
    assert (alone.latency, alone.bandwidth) == (2e-3, 1e15)
    with pytest.raises(RuntimeFault, match="cannot fit"):
        fit([])
    with pytest.raises(RuntimeFault, match="cannot fit"):
        fit([(1.0, 0.0)])


def measured(rank: int, axes: dict[str, int]) -> dict[str, Any]:
    calibrator = Calibrator(Mesh.of(axes), torch.device("cpu"), QUICK)
    costs = calibrator.measure()
    return {"costs": costs.model_dump(), "lines": calibrator.lines}


@pytest.mark.timeout(200)
@pytest.mark.parametrize("axes", ({"dp": 2, "one": 1}, {"pp": 3}), ids=str)
def test_every_axis_and_kind_is_measured(axes: dict[str, int], tmp_path: Path) -> None:
    name, ranks = next(iter(axes.items()))
    results = run_ranks(measured, ranks, axes)
    costs = Costs.model_validate(results[0]["costs"])
    assert (costs.device, costs.backend) == ("cpu", "gloo")
    assert list(costs.axes) == [name]  # over one rank nothing is sent
    axis = costs.axes[name]
    for kind in (*COLLECTIVE_KINDS, "p2p"):
        link = axis.link(kind)
        assert link is not axis
        assert 0 <= link.latency < 5 and 1e4 < link.bandwidth <= 1e15
        assert any(line.startswith(f"axis {name} ({ranks} ranks): {kind} ") for line in results[0]["lines"])
    assert {"float32", "float64"} <= costs.compute.flops.keys()
    assert all(1e7 < rate < 1e15 for rate in costs.compute.flops.values())
    assert 0 < costs.compute.op_overhead < 1e-2
    assert costs.collective_seconds("all_gather", 1 << 24, ranks, [name]) > 0
    costs.save(tmp_path / "costs.toml")
    assert Costs.load(tmp_path / "costs.toml") == costs


def test_one_rank_measures_computation_alone() -> None:
    costs = Calibrator(Mesh.of({"dp": 1}), torch.device("cpu"), QUICK).measure()
    assert costs.axes == {} and costs.compute.flops["float32"] > 0
    assert costs.links == Costs.built_in("cpu").links


@pytest.mark.timeout(200)
def test_the_command_writes_a_file_that_the_pass_takes(tmp_path: Path) -> None:
    file = tmp_path / "costs.toml"
    command = [sys.executable, "-m", "hpir.tools.hp_run", "--calibrate", str(file), "--nproc", "2"]
    done = subprocess.run([*command, "--axes", "dp:2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("compute: ") and "\naxis dp (2 ranks): all_gather " in done.stdout
    costs = Costs.load(file)
    assert costs.axes["dp"].all_gather is not None
    assert costs.links.latency == costs.axes["dp"].latency
    module = 'module attributes {hp.level = "spmd"} {"hp.mesh"() {axis_names = ["dp"], axis_sizes = array<i64: 2>, '
    module += 'sym_name = "mesh"} : () -> ()}'
    (tmp_path / "step.mlir").write_text(module)
    options = f"--hp-overlap-collectives=costs={file}"
    passed = subprocess.run(
        [sys.executable, "-m", "hpir.tools.hp_opt", str(tmp_path / "step.mlir"), options], check=False
    )
    assert passed.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nproc", "0"], "--calibrate: give the number of processes, at least 1, with --nproc"),
        (["--simulate"], "--calibrate: give the number of processes, at least 1, with --nproc"),
        (["--nproc", "2", "--axes", "dp:3"], "--axes: dp:3 has 3 ranks, but --nproc is 2"),
        (["--nproc", "2", "--axes", "dp=2"], "--axes: expected name:size pairs such as pp:2,dp:2, got: 'dp=2'"),
        (["--nproc", "2", "--axes", "a:1,a:2"], "--axes: expected name:size pairs such as pp:2,dp:2, got: 'a:1,a:2'"),
    ],
)
def test_mistakes(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError) as info:
        hp_run.run(["--calibrate", str(tmp_path / "costs.toml"), *arguments])
    assert str(info.value) == message


def test_a_file_that_cannot_be_written_is_told_before_measuring(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "costs.toml"):
        with pytest.raises(PlanError, match="--calibrate: cannot write"):
            hp_run.run(["--calibrate", str(path), "--nproc", "2"])


def test_a_program_is_needed_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        hp_run.run(["--nproc", "2"])
    assert "the following arguments are required: program" in capsys.readouterr().err
