"""Recording a step: one mark per block, in the order of execution, of training steps that end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from models import BY_NAME

import hpir
from hpir.errors import RuntimeFault
from hpir.reporting.measured import read_profile
from hpir.runtime.blocks import op_blocks
from hpir.runtime.profile import Recorder
from hpir.runtime.program import Program
from hpir.runtime.step import Step

CASE = BY_NAME["rotary"]


@pytest.fixture(scope="module")
def program() -> Program:
    return hpir.compile_program(hpir.export(CASE.model(), CASE.train, CASE.data(2)), {"data": {"microbatches": 2}})


def recorded(program: Program) -> tuple[Step, Recorder]:
    recorder = Recorder(torch.device("cpu"))
    return Step(program, CASE.model(), recorder=recorder), recorder


def test_each_block_is_marked_once_per_call(program: Program) -> None:
    step, recorder = recorded(program)
    assert recorder.spans == []
    step(**CASE.data(4))
    blocks = [recorder.table[number] for number, _, _ in recorder.spans]
    inner = [block for block in op_blocks(program.functions["stage0_step"]) if block.kind != "call"]
    assert [block for function, block in blocks if function == "stage0_step"] == 2 * inner
    times = [time for _, begin, end in recorder.spans for time in (begin, end)]
    assert times == sorted(times) and times[0] >= 0


def test_only_training_steps_are_recorded(program: Program) -> None:
    step, recorder = recorded(program)
    step(**CASE.data(4))
    spans = recorder.spans
    step.evaluate(**CASE.data(4))
    assert recorder.spans is spans
    step(**CASE.data(4))
    assert [number for number, _, _ in recorder.spans] == [number for number, _, _ in spans]


def test_a_step_that_fails_leaves_nothing_behind(program: Program) -> None:
    step, recorder = recorded(program)
    bad = CASE.data(4)
    bad["ids"] = bad["ids"] + 10**6
    with pytest.raises(RuntimeFault):
        step(**bad)
    assert recorder.spans == []
    step(**CASE.data(4))
    plain, _ = recorded(program)
    plain(**CASE.data(4))
    assert len(recorder.spans) == len(plain._recorder.spans if plain._recorder else [])


def test_what_is_saved_can_be_read(program: Program, tmp_path: Path) -> None:
    step, recorder = recorded(program)
    step(**CASE.data(4))
    file = recorder.save(tmp_path / "run", program, 0)
    assert file == tmp_path / "run" / "rank0.json"
    assert json.loads(file.read_text())["digest"] == program.digest
    (timeline,) = read_profile(tmp_path / "run", program).ranks
    assert timeline.ranks == (0,) and timeline.entry == program.train[0]
    assert len(timeline.blocks) == len(recorder.spans)
    assert timeline.exposed() == 0 and not timeline.transfers


def test_without_a_recorder_nothing_is_marked(program: Program) -> None:
    step, _ = recorded(program)
    plain = Step(program, CASE.model())
    assert step.code.count("mark(") > 10
    assert "mark(" not in plain.code
    batch = CASE.data(4)
    assert torch.equal(plain(**batch), step(**batch))
    for (name, mine), (_, other) in zip(plain.named_parameters(), step.named_parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None, name
        assert torch.equal(mine.grad, other.grad), name


def test_compiled_code_is_not_recorded(program: Program) -> None:
    with pytest.raises(RuntimeFault, match="only the eager backend's blocks of ops can be recorded, got: 'inductor'"):
        Step(program, CASE.model(), backend="inductor", recorder=Recorder(torch.device("cpu")))
