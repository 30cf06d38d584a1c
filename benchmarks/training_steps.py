"""How long training steps and export take: FSDP2 against hpir on processes, eager autograd against one rank."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import torch
import torch.distributed as dist
from language_model import LanguageModel, global_batch, next_token_loss, standard_library_bytes
from measure import Pair, Row, Spread, alternate, bounded, repeat
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import hpir
from hpir.runtime.device import init_process_group
from hpir.runtime.program import COLLECTIVES

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
        # Where each rank has its own loss, the other has the mean over ranks; the mean of equal ones changes nothing.
        mean = torch.stack(losses)
        dist.all_reduce(mean)
        losses = (mean[0] / dist.get_world_size(), mean[1] / dist.get_world_size())
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
    """Shard a model as FSDP2's users do: each layer, then the root; gathers of the forward start a layer ahead."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    # Those of the backward do so by themselves.
    for sharded, following in pairwise(cast(Iterable[FSDPModule], model.layers)):
        sharded.set_modules_to_forward_prefetch([following])
    return model


def plan(ranks: int, *, layout: str = "flat", reshard: bool = True) -> dict[str, Any]:
    """The same as a plan: each layer a unit, gathered one unit ahead, and again in the backward with `reshard`."""
    return {
        "mesh": {"dp": ranks},
        "data": {"axes": ["dp"]},
        "fsdp": {"axes": ["dp"], "units": ["layers.*"], "reshard_after_forward": reshard},
        "buckets": {"by": "module", "layout": layout},
        "overlap": {"prefetch": 1},
    }


StepMaker = Callable[[Sizes, int, int], tuple[nn.Module, StepFunction]]
"""Makes a model and its step, of a rank among ranks."""


def _compiled(sizes: Sizes, rank: int, ranks: int, layout: str) -> tuple[nn.Module, StepFunction]:
    model, batch = sizes.model(), sizes.batch(rank)
    step = hpir.compile(model, next_token_loss, batch, plan=plan(ranks, layout=layout))
    return model, lambda: step(**batch)


def flat(sizes: Sizes, rank: int, ranks: int) -> tuple[nn.Module, StepFunction]:
    """Make hpir's step, the shards of a bucket in one buffer."""
    return _compiled(sizes, rank, ranks, "flat")


def packed(sizes: Sizes, rank: int, ranks: int) -> tuple[nn.Module, StepFunction]:
    """Make hpir's step, buckets packed by copying."""
    return _compiled(sizes, rank, ranks, "packed")


def fsdp2(sizes: Sizes, rank: int, ranks: int) -> tuple[nn.Module, StepFunction]:
    """Make FSDP2's step."""
    model: nn.Module = fully_sharded(sizes.model(), ranks)
    return model, eager_step(model, sizes.batch(rank))


def _compare_rank(
    rank: int, ranks: int, port: int, sizes: Sizes, rounds: int, makers: tuple[StepMaker, StepMaker]
) -> Comparison:
    torch.set_num_threads(1)
    init_process_group("cpu", rank=rank, world_size=ranks, init_method=f"tcp://127.0.0.1:{port}")
    try:
        (one, first), (other, second) = (maker(sizes, rank, ranks) for maker in makers)
        return compare((one, other), (first, second), rounds, distributed=True)
    finally:
        dist.destroy_process_group()


def compare_ranks(sizes: Sizes, rounds: int, makers: tuple[StepMaker, StepMaker], *, ranks: int = 2) -> Comparison:
    """Time two steps in turns, in the same gloo processes of one thread each.

    Raises:
        RuntimeError: they do not give the same loss and gradients.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ProcessPoolExecutor(ranks, mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = [pool.submit(_compare_rank, rank, ranks, port, sizes, rounds, makers) for rank in range(ranks)]
        return next(run.result() for run in as_completed(runs))


def launches_per_unit(sizes: Sizes, *, reshard: bool) -> float:
    """Return how many collectives a training step starts, over its units; the parameters outside layers are one."""
    program = hpir.compile_program(
        hpir.export(sizes.model(), next_token_loss, sizes.batch(0)), plan(2, reshard=reshard)
    )
    step = program.functions["stage0_step"]
    return sum(op.target in COLLECTIVES for op in step.ops) / (sizes.layers + 1)


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


def _row(subject: str, comparison: Comparison, limit: float) -> Row:
    times = comparison.times
    text = f"{times.ratio.text()}; {times.first.text('ms', 1e3)} and {times.second.text('ms', 1e3)}"
    difference = f"differ by {comparison.difference:.0e}" if comparison.difference else "are equal"
    return bounded(subject, f"{text}; losses and gradients {difference}", times.ratio.median, limit)


def rows(*, sizes: Sizes | None = None, rounds: int = 20) -> list[Row]:
    """Measure everything here.

    Args:
        sizes: the model and batch.
        rounds: turns of the comparisons; exports are fewer.
    """
    sizes = sizes or Sizes()
    small = replace(sizes, dim=sizes.dim // 4)
    made = []
    for ranks, size, limit in ((2, sizes, 0.5), (2, small, 0.5), (4, sizes, 0.6), (4, small, 0.6)):
        comparison = compare_ranks(size, rounds, (flat, fsdp2), ranks=ranks)
        made.append(_row(f"FSDP step over FSDP2's, {ranks} gloo processes ({size})", comparison, limit))
    for ranks in (2, 4):
        comparison = compare_ranks(sizes, 2 * rounds, (flat, packed), ranks=ranks)
        made.append(_row(f"layout `flat` over `packed`, {ranks} gloo processes ({sizes})", comparison, 1.0))
    for reshard, limit in ((True, 3), (False, 2)):
        count = launches_per_unit(sizes, reshard=reshard)
        subject = f"collectives per unit and step, {'with' if reshard else 'without'} gathering again in the backward"
        made.append(bounded(subject, f"{count:g}", count, limit))
    made.append(_row(f"one-rank step over eager autograd ({sizes})", compare_one_rank(sizes, rounds), 1.0))
    deeper = replace(sizes, layers=2 * sizes.layers)
    exports = {each.layers: time_export(each, max(2, rounds // 5)) for each in (sizes, deeper)}
    made.append(Row(f"`hpir.export` of {sizes.layers} layers", exports[sizes.layers].text("s")))
    per_layer = (exports[deeper.layers].median - exports[sizes.layers].median) / sizes.layers
    made.append(Row(f"`hpir.export`, per layer from {sizes.layers} to {deeper.layers}", f"{per_layer:.3f} s"))
    return made
