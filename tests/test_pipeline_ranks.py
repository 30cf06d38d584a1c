"""Pipelined steps on real gloo ranks, from Programs built by hand: training, state, evaluation, clipping."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed_case import run_ranks
from models import reference_step
from pipeline_programs import Chain, Layout, batch_of, chain_program, train
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hpir.mesh import Mesh
from hpir.runtime.step import Step

LAYOUTS = {
    2: [Layout(Mesh.of({"pp": 2})), Layout(Mesh.of({"pp": 2}), tied=True)],
    4: [
        Layout(Mesh.of({"pp": 4}), microbatches=3, tied=True),
        Layout(Mesh.of({"pp": 2, "dp": 2}), split=True),
        Layout(Mesh.of({"dp": 2, "pp": 2}), tied=True),
    ],
}


def own_rows(layout: Layout, rank: int, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a data rank's part of a global batch."""
    count, position = layout.mesh.count(layout.data_axes), layout.mesh.position(rank, layout.data_axes)
    return {name: leaf.chunk(count)[position] for name, leaf in batch.items()}


def full(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def rows_of(layout: Layout) -> int:
    return 2 * layout.microbatches * layout.mesh.count(layout.data_axes)


def check_owned(step: Step, model: nn.Module, reference: nn.Module) -> None:
    """Owned parameters and gradients are the plain model's; the others have their names and no memory."""
    plain = dict(reference.named_parameters(remove_duplicate=False))
    owned = {id(parameter) for parameter in step.parameters()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in owned:
            assert parameter.is_meta and parameter.grad is None, name
            assert parameter.shape == plain[name].shape, name
            continue
        torch.testing.assert_close(full(parameter), plain[name].detach(), msg=name)
        expected = plain[name].grad
        assert (parameter.grad is None) == (expected is None), name
        if parameter.grad is not None and expected is not None:
            torch.testing.assert_close(full(parameter.grad), expected, msg=f"gradient of {name}")


def training(rank: int, layouts: list[Layout]) -> None:
    for layout in layouts:
        model, reference = (Chain(layout.stages, tied=layout.tied) for _ in range(2))
        step = Step(chain_program(layout), model)
        names = [name for name, _ in step.named_parameters()]
        stage = layout.mesh.coordinate(rank)["pp"]
        tied_last = layout.tied and stage == layout.stages - 1
        assert names == [f"layers.{0 if tied_last else stage}.weight"]
        assert list(model.state_dict()) == list(reference.state_dict())
        optimisers: list[Any] = [
            torch.optim.AdamW(each, lr=1e-2) for each in (step.parameters(), reference.parameters())
        ]
        for number in range(3):
            batch = batch_of(rows_of(layout), number)
            mine = own_rows(layout, rank, batch)
            evaluated, outputs = step.evaluate(**mine)
            expected_out = reference(batch["x"]).detach()
            loss = step(**mine)
            expected = reference_step(
                reference,
                train,
                batch,
                data_ranks=layout.mesh.count(layout.data_axes),
                microbatches=layout.microbatches,
            )
            torch.testing.assert_close(loss.double(), expected.loss.double())
            torch.testing.assert_close(evaluated, loss)
            torch.testing.assert_close(outputs["out"], expected_out)
            check_owned(step, model, reference)
            for norm_type in (2.0, 1.0, float("inf")):
                norm = step.clip_grad_norm_(1e-3, norm_type)
                wanted = torch.nn.utils.clip_grad_norm_(reference.parameters(), 1e-3, norm_type)
                torch.testing.assert_close(norm, wanted)
                everyone = [torch.empty_like(norm) for _ in range(dist.get_world_size())]
                dist.all_gather(everyone, norm)
                assert all(torch.equal(norm, other) for other in everyone)
            check_owned(step, model, reference)
            for optimiser in optimisers:
                optimiser.step()
                optimiser.zero_grad()
        check_owned(step, model, reference)
    assert "torch_mlir" not in sys.modules


@pytest.mark.parametrize("ranks", LAYOUTS)
def test_training_equals_the_plain_loop(ranks: int) -> None:
    run_ranks(training, ranks, LAYOUTS[ranks])
