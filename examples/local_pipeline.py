"""Train a small language model on a pipeline of local processes, beside the same training in one process.

The scripts ``pipeline_<schedule>.py`` call `main` with their plan.
"""

from __future__ import annotations

import multiprocessing as mp
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from language_model import LanguageModel, global_batch, next_token_loss, standard_library_bytes

import hpir

STEPS = 6
ROWS = 8
LENGTH = 32
LEARNING_RATE = 1e-3


def build_model() -> LanguageModel:
    """The same model on every rank and in the one-process run."""
    torch.manual_seed(0)
    return LanguageModel(dim=64, layers=8, heads=4, length=LENGTH)


def batch(number: int) -> dict[str, torch.Tensor]:
    """What step `number` trains on."""
    return global_batch(standard_library_bytes(), number, ROWS, LENGTH)


def train_rank(rank: int, ranks: int, port: int, plan: Mapping[str, Any]) -> tuple[list[float], int]:
    """Train on one rank; return the losses and how many parameters the rank holds."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    step = hpir.compile(build_model(), next_token_loss, batch(0), plan=plan)
    optimiser = torch.optim.AdamW(step.parameters(), lr=LEARNING_RATE)
    losses = []
    for number in range(STEPS):
        losses.append(float(step(**batch(number))))
        step.clip_grad_norm_(1.0)
        optimiser.step()
        optimiser.zero_grad()
    held = sum(parameter.numel() for parameter in step.parameters())
    dist.destroy_process_group()
    return losses, held


def train_alone() -> list[float]:
    """Train in this process with plain torch; return the losses."""
    model = build_model()
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for number in range(STEPS):
        loss = next_token_loss(model, **batch(number))
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def train_pipelined(plan: Mapping[str, Any], ranks: int) -> list[tuple[list[float], int]]:
    """Train on local gloo processes; return what `train_rank` does, of every rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ProcessPoolExecutor(ranks, mp_context=mp.get_context("spawn")) as pool:
        runs = [pool.submit(train_rank, rank, ranks, port, plan) for rank in range(ranks)]
        return [run.result() for run in runs]


def main(plan: Mapping[str, Any]) -> int:
    """Run both trainings and compare them; return 0 where the losses are the same."""
    pipeline, ranks = plan["pipeline"], plan["mesh"]["pp"]
    begin = time.monotonic()
    pipelined = train_pipelined(plan, ranks)
    print(f"{pipeline['schedule']}: {ranks} ranks, {plan['data']['microbatches']} microbatches, {STEPS} steps")
    for rank, (losses, held) in enumerate(pipelined):
        print(f"  rank {rank}: {held:,} parameters, loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    alone = train_alone()
    difference = max(abs(a - b) / a for losses, _ in pipelined for a, b in zip(alone, losses, strict=True))
    print(f"  largest loss difference to one process: {difference:.1e} (relative), {time.monotonic() - begin:.0f} s")
    return 0 if difference <= 1e-4 else 1
