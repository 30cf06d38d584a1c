"""Modules at level "program" as Programs: what their functions keep, what is refused, and what the commands do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from staged_modules import Chain
from torch_mlir import ir

import hpir
from hpir.dialect.diagnostics import IRError
from hpir.dialect.parsing import parse_module
from hpir.errors import PlanError
from hpir.lowering.to_program import to_program
from hpir.runtime.program import Program
from hpir.runtime.python_text import to_python
from hpir.tools.hp_run import run
from hpir.tools.hp_translate import translate


def scheduled(chain: Chain, options: str = "microbatches=2") -> ir.Module:
    module = parse_module(chain.text())
    hpir.run_passes(module.operation, f"hp-schedule-pipeline{{{options}}}")
    return module


def roles(program: Program, name: str) -> list[str]:
    return [result.role for result in program.functions[name].results]


def test_each_kind_of_step_has_the_results_that_it_uses() -> None:
    program = to_program(scheduled(Chain(3, 3, outputs=True, buffer=True)))
    assert program.train == ("rank0", "rank1", "rank2")
    assert program.evaluate == ("evaluate0", "evaluate1", "evaluate2")
    assert roles(program, "stage0_forward") == ["outgoing"]
    assert roles(program, "stage0_forward_evaluate") == ["outgoing", "output"]
    assert roles(program, "stage1_forward") == ["outgoing", "buffer"]
    assert roles(program, "stage1_forward_evaluate") == ["outgoing"]
    assert roles(program, "stage2_forward") == ["saved", "loss"]
    assert roles(program, "stage2_forward_evaluate") == ["loss", "output"]
    targets = [op.target for op in program.functions["stage1_forward_evaluate"].ops]
    assert "aten.sum.dim_IntList" not in targets
    called = {op.kwargs["function"] for op in program.functions["evaluate1"].ops if op.target == "call"}
    assert called == {"stage1_forward_evaluate"}


def test_stages_that_both_kinds_use_alike_are_one_function() -> None:
    program = to_program(scheduled(Chain(2, 2)))
    assert "stage0_forward_evaluate" not in program.functions
    assert "stage1_forward_evaluate" in program.functions


def test_calls_say_their_microbatch_and_messages_their_channel() -> None:
    program = to_program(scheduled(Chain(2, 2)))
    ops = program.functions["rank0"].ops
    calls = [(op.kwargs["function"], op.kwargs["microbatch"]) for op in ops if op.target == "call"]
    forward, backward = "stage0_forward", "stage0_backward"
    assert calls == [(forward, 0), (forward, 1), (backward, 0), (backward, 1)]
    assert [op.kwargs["peer"] for op in ops if op.target in ("hp.send", "hp.recv")] == [1, 1, 1, 1]


def test_a_program_survives_saving_and_is_written_as_python(tmp_path: Path) -> None:
    program = to_program(scheduled(Chain(2, 2, rows=None, weighted=True, scaled=True)))
    program.save(tmp_path / "prog")
    loaded = Program.load(tmp_path / "prog")
    assert loaded.digest == program.digest
    assert (loaded.pipeline_axis, loaded.microbatches) == ("pp", 2)
    text = to_python(loaded, 1)
    assert "header=True" in text
    assert "def rank1(" in text and "def evaluate1(" in text and "def rank0(" not in text


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "step.mlir").write_text(str(scheduled(Chain(2, 2, data=2))))
    step, prog = str(tmp_path / "step.mlir"), str(tmp_path / "prog")
    assert translate(["--to-program", step, "-o", prog]) == 0
    assert run(["--simulate", prog]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [["grad", "w0"], ["grad", "w1"]]
    with pytest.raises(PlanError, match="expected 2 microbatches, which the module is scheduled for, got: 4"):
        translate(["--to-program", step, "--microbatches", "4", "-o", prog])


def test_a_plan_is_compiled_to_a_pipeline_that_equals_its_reference(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    def train(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        return loss

    exported = hpir.export(model, train, {"x": torch.randn(2, 3)})
    plan = {"mesh": {"pp": 2}, "data": {"microbatches": 3}, "pipeline": {"schedule": "gpipe"}}
    program = hpir.compile_program(exported, plan)
    assert (program.pipeline_axis, program.microbatches, program.reference) == ("pp", 3, "joint")
    program.save(tmp_path / "prog")
    assert run(["--check", "", str(tmp_path / "prog")]) == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hp.microbatches = 2 : i64, ", "", "expected hp.microbatches to be an integer, got: none"),
        ('hp.pipeline_axis = "pp", ', "", "expected hp.pipeline_axis to be a mesh axis, got: none"),
        (
            'hp.coordinate = 1 : i64, hp.kind = "train"',
            'hp.coordinate = 2 : i64, hp.kind = "train"',
            "expected a function with hp.kind = 'train' for each of 2 ranks, got: [0, 2]",
        ),
        (
            'hp.coordinate = 1 : i64, hp.kind = "train"',
            'hp.coordinate = 0 : i64, hp.kind = "train"',
            "is a second 'train' function of this hp.coordinate",
        ),
        ('hp.coordinate = 0 : i64, hp.kind = "train"', 'hp.kind = "train"', "expected hp.coordinate to be an integer"),
    ],
)
def test_malformed_modules(old: str, new: str, message: str) -> None:
    text = str(scheduled(Chain(2, 2)))
    assert old in text
    with pytest.raises(IRError) as raised:
        to_program(parse_module(text.replace(old, new)))
    assert message in str(raised.value)
