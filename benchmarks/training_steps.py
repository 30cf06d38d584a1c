"""How long training steps and export take: FSDP2 against hpir on processes, eager autograd against one rank."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from language_model import LanguageModel, global_batch, next_token_loss, standard_library_bytes
from measure import Pair, Row, Spread, alternate, bounded, repeat
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import hpir
from hpir.runtime.device import init_process_group

TOLERANCE = 1e-5
"""Largest difference of losses and gradients, relative to the largest gradient, that counts as the same step."""


@dataclass(frozen=True)
class Sizes:
    """The model and each rank's batch."""

    layers: int = 8
    dim: int = 128
    rows: int = 4
    length: int = 64

    def model(self) -> LanguageModel:
        """Return the model, the same each time."""
        torch.manual_seed(0)
        return LanguageModel(dim=self.dim, layers=self.layers, length=self.length)

    def batch(self, rank: int) -> dict[str, Tensor]:
        """Return a rank's batch."""
        return global_batch(standard_library_bytes(), rank, self.rows, self.length)

    def __str__(self) -> str:
        return f"{self.layers} layers, dim {self.dim}, batch {self.rows}x{self.length}"


@dataclass(frozen=True)
class Comparison:
    """Two ways to run the same step, in turns, and how far apart their losses and gradients are."""

    times: Pair
    difference: float


StepFunction = Callable[[], Tensor]
"""Forward and backward; returns the loss."""


def eager_step(model: nn.Module, batch: dict[str, Tensor]) -> StepFunction:
    """Return what runs forward and backward of `next_token_loss` by autograd."""

    def step() -> Tensor:
        loss = next_token_loss(model, **batch)
        torch.autograd.backward(loss)
        return loss.detach()

    return step


def _difference(one: nn.Module, other: nn.Module, losses: tuple[Tensor, Tensor]) -> float:
    """Return the largest difference of losses and (local) gradients, relative to the largest of its kind."""
    found = float((losses[0] - losses[1]).abs() / losses[1].abs())
    for (name, first), (_, second) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        if first.grad is None or second.grad is None:
            raise RuntimeError(f"parameter '{name}' has no gradient")
        a, b = (grad.to_local() if hasattr(grad, "to_local") else grad for grad in (first.grad, second.grad))
        if a.numel():
            found = max(found, float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)))
    return found


def _block(step: StepFunction, model: nn.Module, steps: int, *, distributed: bool) -> Callable[[], None]:
    """Return what runs `steps` steps, each from fresh gradients, on all ranks from and to a common moment."""

    def run() -> None:
        if distributed:
            dist.barrier()
        for _ in range(steps):
            step()
            model.zero_grad(set_to_none=True)
        if distributed:
            dist.barrier()

    return run


def compare(
    models: tuple[nn.Module, nn.Module], steps: tuple[StepFunction, StepFunction], rounds: int, *, distributed: bool
) -> Comparison:
    """Run both once and compare what they give, then time them in turns.

    Raises:
        RuntimeError: they do not give the same loss and gradients.
    """
    losses = (steps[0](), steps[1]())
    if distributed:
        mean = losses[1].clone()  # each rank has its own loss here, the mean over ranks there
        dist.all_reduce(mean)
        losses = (losses[0], mean / dist.get_world_size())
    difference = _difference(models[0], models[1], losses)
    if difference > TOLERANCE:
        raise RuntimeError(f"the two steps differ by {difference:.1e}, expected at most {TOLERANCE:.0e}")
    for model in models:
        model.zero_grad(set_to_none=True)
    per_block = 3
    blocks = [
        _block(step, model, per_block, distributed=distributed) for step, model in zip(steps, models, strict=True)
    ]
    times = alternate(blocks[0], blocks[1], rounds, warm_up=2)
    return Comparison(times.divided(per_block), difference)


def fully_sharded(model: LanguageModel, ranks: int) -> LanguageModel:
    """Shard a model as FSDP2's users do: each layer, then the root."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    return model


def plan(ranks: int) -> dict[str, Any]:
    """The same as a plan: each layer a unit, gathered again in the backward."""
    return {
        "mesh": {"dp": ranks},
        "data": {"axes": ["dp"]},
        "fsdp": {"axes": ["dp"], "units": ["layers.*"], "reshard_after_forward": True},
    }


def _fsdp_rank(rank: int, ranks: int, port: int, sizes: Sizes, rounds: int) -> Comparison:
    torch.set_num_threads(1)
    init_process_group("cpu", rank=rank, world_size=ranks, init_method=f"tcp://127.0.0.1:{port}")
    try:
        batch = sizes.batch(rank)
        ours = sizes.model()
        compiled = hpir.compile(ours, next_token_loss, batch, plan=plan(ranks))
        theirs = fully_sharded(sizes.model(), ranks)
        steps = (lambda: compiled(**batch), eager_step(theirs, batch))
        return compare((ours, theirs), steps, rounds, distributed=True)
    finally:
        dist.destroy_process_group()


def compare_fsdp(sizes: Sizes, rounds: int, *, ranks: int = 2) -> Comparison:
    """Time hpir's FSDP step and FSDP2's in turns, in the same gloo processes of one thread each.

    Raises:
        RuntimeError: they do not give the same loss and gradients.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ProcessPoolExecutor(ranks, mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = [pool.submit(_fsdp_rank, rank, ranks, port, sizes, rounds) for rank in range(ranks)]
        return next(run.result() for run in as_completed(runs))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compare_one_rank(sizes: Sizes, rounds: int) -> Comparison:
    """Time the one-rank callable and eager autograd in turns, in this process, with one thread.

    Raises:
        RuntimeError: they do not give the same loss and gradients.
    """
    batch = sizes.batch(0)
    ours, theirs = sizes.model(), sizes.model()
    compiled = hpir.compile(ours, next_token_loss, batch)
    steps = (lambda: compiled(**batch), eager_step(theirs, batch))
    with one_thread():
        return compare((ours, theirs), steps, rounds, distributed=False)


def time_export(sizes: Sizes, rounds: int) -> Spread:
    """Time `hpir.export`, in seconds."""
    model, batch = sizes.model(), sizes.batch(0)
    return repeat(lambda: hpir.export(model, next_token_loss, batch), rounds)


def rows(*, sizes: Sizes | None = None, rounds: int = 20) -> list[Row]:
    """Measure everything here.

    Args:
        sizes: the model and batch.
        rounds: turns of the comparisons; exports are fewer.
    """
    sizes = sizes or Sizes()
    made = []
    comparisons = (
        ("FSDP step over FSDP2's, 2 gloo processes", compare_fsdp(sizes, rounds), 0.75),
        ("one-rank step over eager autograd", compare_one_rank(sizes, rounds), 1.0),
    )
    for subject, comparison, limit in comparisons:
        times = comparison.times
        text = f"{times.ratio.text()}; {times.first.text('ms', 1e3)} and {times.second.text('ms', 1e3)}"
        difference = f"differ by {comparison.difference:.0e}" if comparison.difference else "are equal"
        text += f"; losses and gradients {difference}"
        made.append(bounded(f"{subject} ({sizes})", text, times.ratio.median, limit))
    deeper = replace(sizes, layers=2 * sizes.layers)
    exports = {each.layers: time_export(each, max(2, rounds // 5)) for each in (sizes, deeper)}
    made.append(Row(f"`hpir.export` of {sizes.layers} layers", exports[sizes.layers].text("s")))
    per_layer = (exports[deeper.layers].median - exports[sizes.layers].median) / sizes.layers
    made.append(Row(f"`hpir.export`, per layer from {sizes.layers} to {deeper.layers}", f"{per_layer:.3f} s"))
    return made
