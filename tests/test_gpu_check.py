"""`benchmarks/gpu_check.py` on the CPU: what it will do on GPUs, on gloo ranks, without MLIR."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpointed_models import Tower
from gpu_rank import merged, shared_length
from models import train_regression
from torch import Tensor, nn

import hpir
from hpir.runtime import host_copies
from hpir.runtime.host_copies import copy_into, to_device

ROOT = Path(__file__).parent.parent
PLAN = {"mesh": {"dp": 2}, "data": {"axes": ["dp"], "microbatches": 2}, "fsdp": {"axes": ["dp"], "units": ["layers.*"]}}


def build() -> tuple[nn.Module, object, dict[str, Tensor]]:
    """Return the model that both the Program and FSDP2's step are of."""
    torch.manual_seed(0)
    return Tower(2, p=0.1), train_regression, {"x": torch.randn(2, 6), "y": torch.randn(2, 3)}


def program(plan: dict[str, object] | None, rows: int = 2) -> hpir.Program:
    model, _, batch = build()
    step = hpir.export(model, train_regression, {name: leaf[:rows] for name, leaf in batch.items()})
    return hpir.compile_program(step, plan)


def check(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # A module that raises stands for MLIR: what needs it fails.
    blocked = folder / "blocked"
    (blocked / "torch_mlir").mkdir(parents=True, exist_ok=True)
    (blocked / "torch_mlir" / "__init__.py").write_text('raise ImportError("MLIR is not installed here")\n')
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py"), str(folder / "prog"), "--device", "cpu"]
    environment = {"PYTHONPATH": f"{blocked}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1", "PATH": ""}
    return subprocess.run(
        [*command, "--steps", "2", *options], capture_output=True, text=True, check=False, env=environment, timeout=200
    )


def test_two_ranks_agree_with_the_simulator_and_fsdp2_is_timed_beside(tmp_path: Path) -> None:
    program(PLAN).save(tmp_path / "prog")
    done = check(tmp_path, "--model", "test_gpu_check:build", "--units", "layers.*")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(re.split(r" {2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    assert rows["device"].startswith("2 x cpu, gloo")
    # Loss and 14 gradients.
    assert rows["against the simulator"].startswith("15 results of 3 steps, 0 differ")
    assert rows["MLIR loaded"] == "no"
    assert re.match(r"\d+\.\d+ ms", rows["step"]) and re.match(r"\d+\.\d+ ms", rows["FSDP2 step"])
    assert float(rows["in waits"].split()[0]) > 0
    assert rows["overlap"] == "not traced: needs several ranks on cuda"


def test_a_difference_is_named_and_makes_it_fail(tmp_path: Path) -> None:
    program(None).save(tmp_path / "prog")
    done = check(tmp_path, "--tolerance", "-1")
    assert done.returncode == 1
    assert "DIFFERS" in done.stdout and "loss: " in done.stdout


def test_what_cannot_run_is_said_in_one_line(tmp_path: Path) -> None:
    done = check(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("gpu_check: error: ") and "Traceback" not in done.stderr


def test_spans_are_joined_and_compared() -> None:
    assert merged([(4, 5), (0, 2), (1, 3), (1, 2)]) == [(0, 3), (4, 5)]
    assert shared_length([(0, 4), (6, 8)], [(3, 7)]) == 2
    assert shared_length([(0, 1)], [(1, 2)]) == 0


# Copies to an accelerator. The meta device, which is none, stands for one; pinned memory is noted, not made.


@pytest.fixture
def pins(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    made: list[Tensor] = []

    def pinned(tensor: Tensor) -> Tensor:
        made.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(host_copies, "_pinned", pinned)
    return made


def test_copies_to_an_accelerator_go_through_pinned_memory(pins: list[Tensor]) -> None:
    source = torch.ones(3)
    assert to_device(source, torch.device("meta")).device.type == "meta"
    copy_into(torch.empty(3, device="meta"), source)
    assert [tensor is source for tensor in pins] == [True, True]


def test_other_copies_do_not(pins: list[Tensor]) -> None:
    source = torch.ones(3)
    assert to_device(source, torch.device("cpu")) is source
    target = torch.zeros(3)
    copy_into(target, source)
    assert torch.equal(target, source)
    assert not pins
