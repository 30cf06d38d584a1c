"""Pipelined steps that fail on real ranks: all are told, and the next step is right; or a rank is gone."""

from __future__ import annotations

import os
import re
import signal
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed_case import run_ranks
from models import reference_step
from pipeline_programs import Chain, Layout, batch_of, chain_program, train
from torch import Tensor

from hpir.errors import RuntimeFault
from hpir.mesh import Mesh
from hpir.runtime.step import Step

PAIR = Layout(Mesh.of({"pp": 2}), picky=1)
GRID = Layout(Mesh.of({"pp": 2, "dp": 2}), split=True, picky=0)
ROW = Layout(Mesh.of({"pp": 3}), picky=1)
OPEN = Layout(Mesh.of({"pp": 2}), picky=0, rows=None)


def batches(layout: Layout, rank: int) -> dict[str, Tensor]:
    """Return a rank's part of a batch that is right."""
    count, position = layout.mesh.count(layout.data_axes), layout.mesh.position(rank, layout.data_axes)
    whole = batch_of(2 * layout.microbatches * count)
    whole["pick"] = torch.zeros(layout.microbatches * count, dtype=torch.int64)
    return {name: leaf.chunk(count)[position] for name, leaf in whole.items()}


# The process group's timeout where a rank is gone.
PATIENCE_S = 4


def told(step: Step, batch: dict[str, Any], evaluate: bool = False) -> str:
    with pytest.raises(RuntimeFault) as caught:
        (step.evaluate if evaluate else step)(**batch)
    assert not step._ops._pending
    assert all(not link.sent and not link.asked for link in step._ops.messages._links.values())
    return str(caught.value)


def check_right(step: Step, model: Chain, layout: Layout, batch: dict[str, Tensor]) -> None:
    """Run a step that is right after ones that were not."""
    assert all(parameter.grad is None for parameter in step.parameters())
    loss = step(**batch)
    reference = Chain(layout.stages, tied=layout.tied)
    ranks = layout.mesh.count(layout.data_axes)
    whole = batch_of(2 * layout.microbatches * ranks)
    expected = reference_step(reference, train, whole, data_ranks=ranks, microbatches=layout.microbatches)
    torch.testing.assert_close(loss.double(), expected.loss.double())
    plain = dict(reference.named_parameters())
    for name, parameter in step.named_parameters():
        grad: Any = parameter.grad
        torch.testing.assert_close(grad.full_tensor() if layout.data_axes else grad, plain[name].grad)
    step.evaluate(**batch)


def failing(rank: int, layout: Layout, which: tuple[int, ...]) -> list[str]:
    """Fail in several ways on some ranks; return what this one was told each time."""
    model = Chain(layout.stages)
    step = Step(chain_program(layout), model)
    good = batches(layout, rank)
    bad = {**good, "pick": torch.tensor([0, 0, 99, 0])} if rank in which else good
    texts = [told(step, bad), told(step, bad, evaluate=True)]
    wrong = {**good, "x": good["x"].double()} if rank in which else good
    texts.append(told(step, wrong))
    assert step.steps == 0
    check_right(step, model, layout, good)
    return texts


@pytest.mark.parametrize(
    ("layout", "ranks", "which"), [(PAIR, 2, (1,)), (OPEN, 2, (0,)), (GRID, 4, (0,)), (GRID, 4, (0, 1)), (ROW, 3, (1,))]
)
def test_what_one_rank_cannot_do_all_are_told(layout: Layout, ranks: int, which: tuple[int, ...]) -> None:
    results = run_ranks(failing, ranks, layout, which, timeout=60)
    stage = layout.picky
    for rank, texts in enumerate(results):
        place = rf"rank {'[01]' if which == (0, 1) else which[0]}: "
        # Where several fail, it is the first of them that the others are told of.
        front = rf"rank {rank}: the step failed on "
        front = ("" if len(which) == 1 else f"({front})?") if rank in which else front
        op = rf"stage{stage}_forward, microbatch 2: op \d+ 'aten.index_select.default' "
        op += rf"\(chain.py:\d+ in 'layers.{stage}'\)"
        assert re.match(rf"({front}){place}{op}: ", texts[0]), texts[0]
        evaluated = op.replace("_forward,", "_forward(_out)?,")
        assert re.match(rf"({front}){place}{evaluated}: ", texts[1]), texts[1]
        assert re.match(rf"({front}){place}input 'x': the step was compiled for ", texts[2]), texts[2]


def refused_everywhere(rank: int, layout: Layout) -> list[str]:
    model = Chain(layout.stages)
    step = Step(chain_program(layout), model)
    good = batches(layout, rank)
    texts = [
        told(step, {**good, "x": good["x"].double()}),
        told(step, {name: leaf for name, leaf in good.items() if name != "y"}),
        told(step, {**good, "z": good["x"]}),
        told(step, {**good, "pick": torch.tensor([0, 0, 0, 99])}),
    ]
    check_right(step, model, layout, good)
    return texts


def test_a_batch_that_is_wrong_on_all_ranks() -> None:
    for rank, texts in enumerate(run_ranks(refused_everywhere, 2, PAIR, timeout=60)):
        assert texts[0].startswith(f"rank {rank}: input 'x': the step was compiled for float32[8, 4], got: float64")
        assert texts[1].startswith(f"rank {rank}: missing input 'y' of type float32[8, 4]")
        assert texts[2].startswith(f"rank {rank}: unexpected input 'z'")
        assert "rank 1: stage1_forward, microbatch 3: op 0 'aten.index_select.default'" in texts[3]


def gone(rank: int, layout: Layout, folder: str, victim: int, how: str) -> tuple[str, float] | None:
    """One rank is killed, or stands still, in its third message; return what the others are told, and when."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/{how}",
        rank=rank,
        world_size=layout.mesh.size,
        timeout=timedelta(seconds=PATIENCE_S),
    )
    step = Step(chain_program(layout), Chain(layout.stages))
    good = batches(layout, rank)
    step(**good)
    if rank == victim:
        messages, calls = step._ops.messages, 0
        wait = messages.wait

        def stopping(receive: Any) -> list[Tensor]:
            nonlocal calls
            calls += 1
            if calls == 3 and how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if calls == 3:
                time.sleep(2.25 * PATIENCE_S)
                os._exit(1)
            return wait(receive)

        messages.wait = stopping  # type: ignore[method-assign]
    dist.barrier()
    begin = time.monotonic()
    with pytest.raises(RuntimeFault) as caught:
        step(**good)
    took = time.monotonic() - begin
    return str(caught.value), took


@pytest.mark.parametrize("how", ["killed", "still"])
def test_a_rank_that_is_gone_is_an_error_on_the_others(how: str, tmp_path: Any) -> None:
    told = run_ranks(gone, 3, ROW, str(tmp_path), 1, how, process_group=False, may_die=(1,), timeout=60)
    assert told[1] is None
    for rank in (0, 2):
        text, took = told[rank]
        peer = r"position 1 of 'pp', '(f|b)1.0 mb \d'"
        assert re.match(rf"rank {rank}: rank{rank}: op \d+ 'hp.(wait' of 'hp.recv' from|send' to) {peer}: ", text), text
        # What is waited for after a first failure would take as long again.
        assert took < 1.5 * PATIENCE_S, took
