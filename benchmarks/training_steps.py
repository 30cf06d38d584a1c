"""How long training steps and export take: FSDP2 against hpir on processes, eager autograd against one rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import torch
from language_model import LanguageModel, next_token_loss
from measure import Row, Spread, bounded, repeat
from step_pairs import Comparison, Made, Sizes, compare, compare_ranks, pair_row
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import hpir
from hpir.runtime.program import COLLECTIVES


def eager_step(model: nn.Module, batch: dict[str, Tensor]) -> Made:
    """Return the step that runs forward and backward of `next_token_loss` by autograd."""

    def step() -> Tensor:
        loss = next_token_loss(model, **batch)
        torch.autograd.backward(loss)
        return loss.detach()

    return Made(dict(model.named_parameters()), step)


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


def _compiled(sizes: Sizes, rank: int, ranks: int, layout: str) -> Made:
    model, batch = sizes.model(), sizes.batch(rank)
    step = hpir.compile(model, next_token_loss, batch, plan=plan(ranks, layout=layout))
    return Made(dict(step.named_parameters()), lambda: step(**batch))


def flat(sizes: Sizes, rank: int, ranks: int) -> Made:
    """Make hpir's step, the shards of a bucket in one buffer."""
    return _compiled(sizes, rank, ranks, "flat")


def packed(sizes: Sizes, rank: int, ranks: int) -> Made:
    """Make hpir's step, buckets packed by copying."""
    return _compiled(sizes, rank, ranks, "packed")


def fsdp2(sizes: Sizes, rank: int, ranks: int) -> Made:
    """Make FSDP2's step."""
    return eager_step(fully_sharded(sizes.model(), ranks), sizes.batch(rank))


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
    made = Made(dict(compiled.named_parameters()), lambda: compiled(**batch))
    with one_thread():
        return compare(made, eager_step(theirs, batch), rounds, distributed=False)


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
    small = replace(sizes, dim=sizes.dim // 4)
    made = []
    for ranks, size, limit in ((2, sizes, 0.5), (2, small, 0.5), (4, sizes, 0.6), (4, small, 0.6)):
        comparison = compare_ranks(size, rounds, (flat, fsdp2), ranks=ranks)
        made.append(pair_row(f"FSDP step over FSDP2's, {ranks} gloo processes ({size})", comparison, limit))
    for ranks in (2, 4):
        comparison = compare_ranks(sizes, 2 * rounds, (flat, packed), ranks=ranks)
        made.append(pair_row(f"layout `flat` over `packed`, {ranks} gloo processes ({sizes})", comparison, 1.0))
    for reshard, limit in ((True, 3), (False, 2)):
        count = launches_per_unit(sizes, reshard=reshard)
        subject = f"collectives per unit and step, {'with' if reshard else 'without'} gathering again in the backward"
        made.append(bounded(subject, f"{count:g}", count, limit))
    made.append(pair_row(f"one-rank step over eager autograd ({sizes})", compare_one_rank(sizes, rounds), 1.0))
    deeper = replace(sizes, layers=2 * sizes.layers)
    exports = {each.layers: time_export(each, max(2, rounds // 5)) for each in (sizes, deeper)}
    made.append(Row(f"`hpir.export` of {sizes.layers} layers", exports[sizes.layers].text("s")))
    per_layer = (exports[deeper.layers].median - exports[sizes.layers].median) / sizes.layers
    made.append(Row(f"`hpir.export`, per layer from {sizes.layers} to {deeper.layers}", f"{per_layer:.3f} s"))
    return made
