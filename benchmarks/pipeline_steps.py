"""How long pipelined training steps take: torch.distributed.pipelining against hpir, schedule by schedule."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from language_model import LanguageModel, next_token_loss
from measure import Row, Spread, bounded, repeat
from step_pairs import Made, Sizes, StepMaker, compare_ranks, pair_row
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

import hpir

LIMIT = 0.85
SPLIT_LIMIT = 1.0
TASK_LIMIT_US = 60
RANKS = (2, 4)
MICROBATCHES = (4, 8)
SIZES = Sizes(layers=8, dim=128, rows=16, length=64)
SPLIT_SIZES = replace(SIZES, dim=256)
"""For zb-h1, which holds gradients until it needs them: wider, so that more is computed per byte held."""

_SCHEDULES: dict[str, tuple[Any, int]] = {
    "1f1b": (Schedule1F1B, 1),
    "interleaved": (ScheduleInterleaved1F1B, 2),
    "gpipe": (ScheduleGPipe, 1),
}
"""Ours by name: the peer's class, and stages per rank."""


@dataclass(frozen=True)
class Pipeline:
    """A schedule and the number of microbatches."""

    schedule: str
    microbatches: int


class Part(nn.Module):
    """A stage of the language model, as the peer's users write it: some of the whole model's modules."""

    def __init__(self, whole: LanguageModel, layers: range, *, first: bool, last: bool):
        super().__init__()
        self.embed = whole.embed if first else None
        self.layers = nn.ModuleList([whole.layers[number] for number in layers])
        self.end = nn.Sequential(whole.norm, whole.head) if last else None
        self.register_buffer("cos", whole.cos, persistent=False)
        self.register_buffer("sin", whole.sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map what the stage before gives (token ids for the first) to what the next one takes (logits at last)."""
        if self.embed is not None:
            x = self.embed(x)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return x if self.end is None else self.end(x)


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def peer(pipeline: Pipeline, sizes: Sizes, rank: int, ranks: int) -> Made:
    """Make the step of torch.distributed.pipelining, layers cut evenly."""
    kind, per_rank = _SCHEDULES[pipeline.schedule]
    whole, count = sizes.model(), ranks * per_rank
    each = sizes.layers // count
    stages = []
    for index in range(rank, count, ranks):
        part = Part(whole, range(index * each, (index + 1) * each), first=index == 0, last=index == count - 1)
        stages.append(PipelineStage(part, index, count, torch.device("cpu")))
    schedule = kind(stages if per_rank > 1 else stages[0], pipeline.microbatches, loss_fn=_loss)
    batch = sizes.batch(0)
    owned = {id(parameter) for stage in stages for parameter in stage.submod.parameters()}
    parameters = {name: value for name, value in whole.named_parameters() if id(value) in owned}

    def step() -> Tensor:
        losses: list[Tensor] = []
        given = (batch["ids"],) if rank == 0 else ()
        named = {"target": batch["labels"], "losses": losses} if rank == ranks - 1 else {}
        schedule.step(*given, **named)
        # Only the last rank has it; the mean over all ranks is the loss.
        return torch.stack(losses).mean().detach() * ranks if losses else torch.zeros(())

    return Made(parameters, step)


def ours(pipeline: Pipeline, sizes: Sizes, rank: int, ranks: int) -> Made:
    """Make hpir's step of the same schedule and the same cut."""
    del rank
    model, batch = sizes.model(), sizes.batch(0)
    step = hpir.compile(model, next_token_loss, batch, plan=plan(pipeline, sizes, ranks))
    return Made(dict(step.named_parameters()), lambda: step(**batch))


def plan(pipeline: Pipeline, sizes: Sizes, ranks: int) -> dict[str, Any]:
    """The plan that cuts the layers evenly; what is not a layer is part of the first stage or of the last."""
    per_rank = 2 if pipeline.schedule == "interleaved" else 1
    each = sizes.layers // (ranks * per_rank)
    stages = [[f"layers.{number}" for number in range(at, at + each)] for at in range(0, sizes.layers, each)]
    stages[0].insert(0, "embed")
    stages[-1] += ["norm", "head"]
    return {
        "mesh": {"pp": ranks},
        "data": {"axes": [], "microbatches": pipeline.microbatches},
        "pipeline": {"axis": "pp", "schedule": pipeline.schedule, "stages": stages},
    }


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def time_task(*, stages: int = 4, microbatches: int = 64, rounds: int = 12) -> Spread:
    """Time a task of a pipeline that has next to nothing to compute, on one rank, in seconds."""
    model = nn.Sequential(*(_Scale() for _ in range(stages)))
    batch = {"x": torch.ones(microbatches, 1)}
    plan = {
        "mesh": {"pp": 1},
        "data": {"axes": [], "microbatches": microbatches},
        "pipeline": {"axis": "pp", "schedule": "interleaved", "stages_per_rank": stages},
    }
    step = hpir.compile(model, _sum, batch, plan=plan)
    return repeat(lambda: step(**batch), rounds, warm_up=3).divided(2 * stages * microbatches)


def _sum(model: nn.Module, x: Tensor) -> Tensor:
    total: Tensor = model(x).sum()
    return total


def _maker(make: Callable[[Pipeline, Sizes, int, int], Made], schedule: str, microbatches: int) -> StepMaker:
    return functools.partial(make, Pipeline(schedule, microbatches))


def rows(*, sizes: Sizes = SIZES, split_sizes: Sizes = SPLIT_SIZES, rounds: int = 6) -> list[Row]:
    """Measure every schedule for 2 and 4 ranks and 4 and 8 microbatches; then zb-h1 beside our own 1f1b."""
    task = time_task()
    made = [
        bounded("a task without work", task.text("us", 1e6), 1e6 * task.median, TASK_LIMIT_US, "us"),
    ]
    for ranks in RANKS:
        for microbatches in MICROBATCHES:
            for schedule in _SCHEDULES:
                makers = _maker(ours, schedule, microbatches), _maker(peer, schedule, microbatches)
                comparison = compare_ranks(sizes, rounds, makers, ranks=ranks)
                subject = (
                    f"{schedule} step over torch.distributed.pipelining's, {ranks} ranks, {microbatches} microbatches"
                )
                made.append(pair_row(subject, comparison, LIMIT))
            split = _maker(ours, "zb-h1", microbatches), _maker(ours, "1f1b", microbatches)
            subject = f"zb-h1 step over 1f1b's, dim {split_sizes.dim}, {ranks} ranks, {microbatches} microbatches"
            made.append(pair_row(subject, compare_ranks(split_sizes, rounds, split, ranks=ranks), SPLIT_LIMIT))
    return made
