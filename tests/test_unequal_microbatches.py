"""Parts of a batch that differ in rows, length and padding: the weighted loss makes them one exact mean."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from distributed_case import run_ranks
from dynamic_models import LENGTHS_AND_ROWS, PlainLM, built, padded_batch, train_lengths, train_tokens
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import hpir
from hpir.runtime.program import Program

pytestmark = pytest.mark.one_in(2)


def token_mean(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return loss and gradients of the whole batch in one go."""
    loss = F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())
    torch.autograd.backward(loss)
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@cache
def program(ranks: int, microbatches: int) -> Program:
    exported = hpir.export(built(PlainLM), train_tokens, padded_batch(4, 6), dynamic=LENGTHS_AND_ROWS)
    plan = {"mesh": {"dp": ranks}, "data": {"microbatches": microbatches}, "fsdp": {"axes": ["dp"], "units": ["up"]}}
    return hpir.compile_program(exported, plan)


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (1, 3), (2, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize(("rows", "length"), [(16, 6), (17, 5), (6, 12)])
def test_the_loss_is_the_token_mean_of_the_whole_batch(ranks: int, microbatches: int, rows: int, length: int) -> None:
    batch = padded_batch(rows, length)
    loss, grads = token_mean(built(PlainLM), batch)
    found = hpir.simulate(program(ranks, microbatches), dict(built(PlainLM).state_dict()), batch, check_types=True)
    assert abs(float(found.loss - loss)) <= 1e-12 * abs(float(loss))
    for name, gradient in grads.items():
        assert (found.grads[name] - gradient).abs().max() <= 1e-12 * max(1.0, float(gradient.abs().max())), name
    assert torch.equal(found.outputs["guess"], built(PlainLM)(batch["ids"]).argmax(-1))


def train_on_ranks(rank: int) -> dict[str, Any]:
    """Train with 8 rows in 3 microbatches, then with other rows and lengths on each rank; evaluate."""
    model = built(PlainLM)
    plan = {"mesh": {"dp": 2}, "data": {"microbatches": 3}, "fsdp": {"axes": ["dp"], "units": ["up"]}}
    whole = padded_batch(16, 6)
    mine = {name: leaf[rank * 8 : rank * 8 + 8] for name, leaf in whole.items()}
    step = hpir.compile(model, train_tokens, mine, plan=plan, dynamic=LENGTHS_AND_ROWS)
    found: dict[str, Any] = {"loss": step(**mine)}
    found["grads"] = {name: _full(parameter.grad) for name, parameter in model.named_parameters()}
    own = padded_batch(3 + 2 * rank, 5 + 2 * rank, seed=rank)
    model.zero_grad()
    found["ragged loss"] = step(**own)
    found["ragged grads"] = {name: _full(parameter.grad) for name, parameter in model.named_parameters()}
    rows = padded_batch(3 + 2 * rank, 5, seed=rank)
    found["guess"] = step.evaluate(**rows)[1]["guess"]
    try:
        step.evaluate(**own)
    except hpir.RuntimeFault as fault:
        found["fault"] = str(fault)
    found["after"] = step(**mine)
    return found


def _full(tensor: Any) -> Tensor:
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().clone()


def test_real_ranks_with_unequal_microbatches_rows_and_lengths() -> None:
    found = run_ranks(train_on_ranks, 2)
    loss, grads = token_mean(built(PlainLM), padded_batch(16, 6))
    ragged = [padded_batch(3 + 2 * rank, 5 + 2 * rank, seed=rank) for rank in range(2)]
    model = built(PlainLM)
    parts = [train_tokens(model, **batch)[0] for batch in ragged]
    expected = (parts[0].sum + parts[1].sum) / (parts[0].weight + parts[1].weight)
    torch.autograd.backward(expected)
    rows = [padded_batch(3 + 2 * rank, 5, seed=rank) for rank in range(2)]
    guesses = torch.cat([built(PlainLM)(batch["ids"]).argmax(-1) for batch in rows])
    for rank, result in enumerate(found):
        assert abs(float(result["loss"] - loss)) <= 1e-12 and result["after"] == result["loss"]
        assert abs(float(result["ragged loss"] - expected.detach())) <= 1e-12
        for name, parameter in model.named_parameters():
            assert (result["grads"][name] - grads[name]).abs().max() <= 1e-12, name
            assert (result["ragged grads"][name] - parameter.grad).abs().max() <= 1e-12, name
        assert torch.equal(result["guess"], guesses)
        assert f"rank {rank}: evaluate0: op" in result["fault"]
        assert "dim 1 of an output differs between data ranks: pad it to one size" in result["fault"]


def test_unequal_microbatches_need_a_dynamic_batch_dim() -> None:
    with pytest.raises(hpir.CaptureError, match=r"8 rows .* 3 microbatches: .*dynamic=.* hpir.WeightedLoss"):
        hpir.compile(built(PlainLM), train_tokens, padded_batch(8, 6), plan={"data": {"microbatches": 3}})


def test_unequal_microbatches_need_a_weighted_loss() -> None:
    step = hpir.compile(
        built(PlainLM),
        train_lengths,
        padded_batch(8, 6),
        plan={"data": {"microbatches": 3}},
        dynamic=LENGTHS_AND_ROWS,
    )
    with pytest.raises(hpir.RuntimeFault, match=r"'ids' has 8 rows, which do not divide into 3 .*hpir.WeightedLoss"):
        step(**padded_batch(8, 6))
    assert float(step(**padded_batch(9, 6))) > 0
