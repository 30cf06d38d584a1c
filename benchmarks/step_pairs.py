"""Two ways to run one training step: what each gives must be the same, then they are timed in turns."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

import torch
import torch.distributed as dist
from language_model import LanguageModel, global_batch, standard_library_bytes
from measure import Pair, Row, alternate, bounded
from torch import Tensor, nn

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


@dataclass(frozen=True)
class Made:
    """A step, ready to run.

    Attributes:
        parameters: those that this rank trains, by name.
        step: forward and backward; returns the loss. Where each rank has its own, the step's is their mean.
    """

    parameters: Mapping[str, nn.Parameter]
    step: StepFunction


StepMaker = Callable[[Sizes, int, int], Made]
"""Makes the step of a rank among ranks."""


def _difference(one: Made, other: Made, losses: tuple[Tensor, Tensor]) -> float:
    """Return the largest difference of losses and (local) gradients, relative to the largest of its kind."""
    found = float((losses[0] - losses[1]).abs() / losses[1].abs())
    if one.parameters.keys() != other.parameters.keys():
        raise RuntimeError(f"the two steps train {list(one.parameters)} and {list(other.parameters)}")
    for name, first in one.parameters.items():
        second = other.parameters[name]
        if first.grad is None or second.grad is None:
            raise RuntimeError(f"parameter '{name}' has no gradient")
        a, b = (grad.to_local() if hasattr(grad, "to_local") else grad for grad in (first.grad, second.grad))
        if a.numel():
            found = max(found, float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)))
    return found


def _forget(made: Made) -> None:
    for parameter in made.parameters.values():
        parameter.grad = None


def _block(made: Made, steps: int, *, distributed: bool) -> Callable[[], None]:
    """Return what runs `steps` steps, each from fresh gradients, on all ranks from and to a common moment."""

    def run() -> None:
        if distributed:
            dist.barrier()
        for _ in range(steps):
            made.step()
            _forget(made)
        if distributed:
            dist.barrier()

    return run


def compare(one: Made, other: Made, rounds: int, *, distributed: bool) -> Comparison:
    """Run both once and compare what they give, then time them in turns.

    Raises:
        RuntimeError: they do not give the same loss and gradients.
    """
    losses = (one.step(), other.step())
    if distributed:
        # Where each rank has its own loss, the other has the mean over ranks; the mean of equal ones changes nothing.
        mean = torch.stack(losses)
        dist.all_reduce(mean)
        losses = (mean[0] / dist.get_world_size(), mean[1] / dist.get_world_size())
    difference = _difference(one, other, losses)
    if difference > TOLERANCE:
        raise RuntimeError(f"the two steps differ by {difference:.1e}, expected at most {TOLERANCE:.0e}")
    for made in (one, other):
        _forget(made)
    per_block = 3
    first, second = (_block(made, per_block, distributed=distributed) for made in (one, other))
    return Comparison(alternate(first, second, rounds, warm_up=2).divided(per_block), difference)


def _compare_rank(
    rank: int, ranks: int, port: int, sizes: Sizes, rounds: int, makers: tuple[StepMaker, StepMaker]
) -> Comparison:
    torch.set_num_threads(1)
    init_process_group("cpu", rank=rank, world_size=ranks, init_method=f"tcp://127.0.0.1:{port}")
    try:
        one, other = (maker(sizes, rank, ranks) for maker in makers)
        return compare(one, other, rounds, distributed=True)
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


def pair_row(subject: str, comparison: Comparison, limit: float) -> Row:
    """Return the row of two steps whose ratio is to be at most `limit`."""
    times = comparison.times
    text = f"{times.ratio.text()}; {times.first.text('ms', 1e3)} and {times.second.text('ms', 1e3)}"
    difference = f"differ by {comparison.difference:.0e}" if comparison.difference else "are equal"
    return bounded(subject, f"{text}; losses and gradients {difference}", times.ratio.median, limit)
