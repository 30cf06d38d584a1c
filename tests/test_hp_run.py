"""`hp-translate` and `hp-run` as a user runs them."""

from __future__ import annotations

import enum
import json
import os
import shutil
import subprocess
import sys
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Done, call
from models import BY_NAME

import hpir

BIN = Path(sys.executable).parent
BUILD = """
from models import BY_NAME

def build():
    case = BY_NAME["rotary"]
    return case.model(), case.train, case.data(4)

def wrong():
    return 3
"""


def run(*command: str | Path, cwd: Path, stdin: str = "") -> Done:
    return call(str(command[0]), *command[1:], cwd=cwd, stdin=stdin)


def run_installed(*command: str | Path, cwd: Path, stdin: str = "") -> Done:
    """Run a command as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [str(BIN / str(command[0])), *map(str, command[1:])],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def succeed(*command: str | Path, cwd: Path, stdin: str = "") -> str:
    done = run(*command, cwd=cwd, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fail(*command: str | Path, cwd: Path, stdin: str = "") -> str:
    done = run(*command, cwd=cwd, stdin=stdin)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the captured step, the step after hp-fsdp on dp=2, and its Program."""
    path = tmp_path_factory.mktemp("tools")
    (path / "my_model.py").write_text(BUILD)
    succeed("hp-translate", "--export", "my_model:build", "-o", "step.mlir", cwd=path)
    passes = ("--hp-set-mesh=axes=dp:2", "--hp-fsdp=axes=dp units=layers.*")
    succeed("hp-opt", "step.mlir", *passes, "-o", "fsdp.mlir", cwd=path)
    succeed("hp-translate", "--to-program", "fsdp.mlir", "-o", "prog", "--joint", "step.mlir", cwd=path)
    return path


def test_the_whole_road_on_the_command_line(folder: Path) -> None:
    done = run_installed("hp-translate", "--export", "my_model:build", cwd=folder)
    assert done == Done(0, (folder / "step.mlir").read_text(), "")
    passes = ("--hp-set-mesh=axes=dp:2", "--hp-fsdp=axes=dp units=layers.*")
    done = run_installed("hp-opt", *passes, cwd=folder, stdin=done.stdout)
    assert done == Done(0, (folder / "fsdp.mlir").read_text(), "")
    done = run_installed(
        "hp-translate", "--to-program", "-o", "own", "--joint", "step.mlir", cwd=folder, stdin=done.stdout
    )
    assert done == Done(0, "", "")
    done = run_installed("hp-run", "own", "--check", cwd=folder)
    assert done.returncode == 0, done.stderr
    verdicts = [line.split()[0] for line in done.stdout.splitlines()]
    assert len(verdicts) > 10 and set(verdicts) == {"equal"}
    assert succeed("hp-run", "prog", "--simulate", cwd=folder).startswith("loss ")


def test_real_processes_have_the_simulated_loss(folder: Path) -> None:
    case = BY_NAME["rotary"]
    torch.save(case.data(8), folder / "batch.pt")
    torch.save({**case.model().state_dict(), **dict(case.model().named_buffers())}, folder / "state.pt")
    data = ("--state", "state.pt", "--batch", "batch.pt")
    simulated = succeed("hp-run", "prog", "--simulate", *data, cwd=folder).splitlines()[0].split()[1]
    steps = succeed("hp-run", "prog", "--nproc", "2", "--steps", "2", *data, cwd=folder).splitlines()
    assert len(steps) == 2
    for line in steps:
        assert float(line.split()[3]) == pytest.approx(float(simulated), rel=1e-6)


def test_check_names_the_first_result_that_differs(folder: Path) -> None:
    text = (folder / "fsdp.mlir").read_text()
    last = text.rindex('reduce = "avg"')
    broken = text[:last] + 'reduce = "sum"' + text[last + len('reduce = "avg"') :]
    succeed("hp-translate", "--to-program", "-o", "broken", "--joint", "step.mlir", cwd=folder, stdin=broken)
    done = run("hp-run", "broken", "--check", cwd=folder)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].split()[:3] == ["differs", "grad", "embed.weight"]
    assert "grad 'embed.weight' differs by 1 (relative); 1 of " in done.stderr


def test_check_takes_the_joint_module_where_the_program_has_none(folder: Path) -> None:
    succeed("hp-translate", "--to-program", "fsdp.mlir", "-o", "bare", cwd=folder)
    assert "holds no reference" in fail("hp-run", "bare", "--check", cwd=folder)
    assert "differs" not in succeed("hp-run", "bare", "--check", "step.mlir", cwd=folder)


def test_to_python_prints_the_code_of_a_rank(folder: Path) -> None:
    code = succeed("hp-translate", "--to-python", "prog", cwd=folder)
    compile(code, "rank0.py", "exec")
    assert "def stage0_step(" in code and "hp.all_gather(" in code
    assert succeed("hp-translate", "--to-python", "fsdp.mlir", cwd=folder).count("hp.all_gather(") == code.count(
        "hp.all_gather("
    )
    assert "ranks 0 to 1, got: 2" in fail("hp-translate", "--to-python", "prog", "--rank", "2", cwd=folder)


def test_export_prints_locations_on_demand(folder: Path) -> None:
    text = succeed("hp-translate", "--export", "my_model:build", "--mlir-print-debuginfo", cwd=folder)
    assert "models.py" in text
    assert "models.py" not in (folder / "step.mlir").read_text()


def test_mistakes_are_one_located_line(folder: Path) -> None:
    assert "no function 'buil', did you mean 'build'?" in fail("hp-translate", "--export", "my_model:buil", cwd=folder)
    assert "cannot import 'nothing'" in fail("hp-translate", "--export", "nothing:build", cwd=folder)
    assert "expected PKG.MOD:FUNCTION" in fail("hp-translate", "--export", "my_model", cwd=folder)
    assert "must return (model, train_fn, batch)" in fail("hp-translate", "--export", "my_model:wrong", cwd=folder)
    assert "name it with -o" in fail("hp-translate", "--to-program", "fsdp.mlir", cwd=folder)
    assert "no such file" in fail("hp-translate", "--to-program", "gone.mlir", "-o", "x", cwd=folder).lower()
    assert ":1:" in fail("hp-translate", "--to-program", "-o", "x", cwd=folder, stdin="garbage")
    assert not (folder / "x").exists()
    assert "did you mean" in fail(
        "hp-translate",
        "--to-program",
        "-o",
        "x",
        cwd=folder,
        stdin=(folder / "fsdp.mlir").read_text().replace('hp.role = "buffer"', 'hp.role = "bufer"'),
    )
    assert "no such file" in fail("hp-run", "gone", "--simulate", cwd=folder).lower()
    assert "(dp:2) has 2 ranks" in fail("hp-run", "prog", "--nproc", "3", cwd=folder)
    (folder / "text").write_text("no tensors")
    assert "was not written by torch.save" in fail("hp-run", "prog", "--simulate", "--state", "text", cwd=folder)
    assert "cannot read --batch" in fail("hp-run", "prog", "--simulate", "--batch", "gone", cwd=folder)
    torch.save([1], folder / "list.pt")
    assert "expected a dict of tensors" in fail("hp-run", "prog", "--simulate", "--state", "list.pt", cwd=folder)
    torch.save({"ids": torch.zeros(3, dtype=torch.long)}, folder / "short.pt")
    assert "'labels'" in fail("hp-run", "prog", "--simulate", "--batch", "short.pt", cwd=folder)


def test_a_damaged_program_is_refused(folder: Path) -> None:
    shutil.copytree(folder / "prog", folder / "damaged")
    file = folder / "damaged" / "program.json"
    text = file.read_text()
    file.write_text(text.replace('"microbatches":1', '"microbatches":2'))
    assert "digest does not match" in fail("hp-run", "damaged", "--simulate", cwd=folder)
    file.write_text(text[: len(text) // 2])
    assert "not a Program" in fail("hp-run", "damaged", "--simulate", cwd=folder)
    file.write_bytes(b"\xff\x00\x01")
    assert "not a Program" in fail("hp-run", "damaged", "--simulate", cwd=folder)
    file.write_text(json.dumps({"schema": 99}))
    assert "schema version 99" in fail("hp-run", "damaged", "--simulate", cwd=folder)


def test_python_values_of_a_batch_are_compared(folder: Path) -> None:
    class Kind(enum.Enum):
        PLAIN = 1

    def train(model: torch.nn.Module, x: dict[str, torch.Tensor], rate: float, dtype: torch.dtype, kind: Kind) -> Any:
        return (model(x["a"]).to(dtype) * rate).mean()

    def batch(rows: int) -> dict[str, Any]:
        return {"x": {"a": torch.ones(rows, 3)}, "rate": 2.5, "dtype": torch.float64, "kind": Kind.PLAIN}

    exported = hpir.export(torch.nn.Linear(3, 3), train, batch(2))
    hpir.compile_program(exported, {"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"]}}).save(folder / "values")
    assert succeed("hp-run", "values", "--check", cwd=folder)
    assert "step 0: loss" in succeed("hp-run", "values", "--nproc", "2", cwd=folder)
    torch.save({"x": {"a": torch.ones(4, 3)}, "dtype": torch.float32}, folder / "other.pt")
    assert "input 'dtype': the step was compiled for the value torch.float64, got: torch.float32" in fail(
        "hp-run", "values", "--simulate", "--batch", "other.pt", cwd=folder
    )
    torch.save({"x": UserDict(a=torch.ones(4, 3))}, folder / "objects.pt")
    assert "--batch is no file of tensors: it holds objects of other types; save tensors and Python values" in fail(
        "hp-run", "values", "--simulate", "--batch", "objects.pt", cwd=folder
    )
