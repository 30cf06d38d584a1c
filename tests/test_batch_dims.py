"""Which dim of which input is split, inputs given whole, and inputs of unusual memory layout, against the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import reference_step
from torch import Tensor, nn

import hpir

pytestmark = pytest.mark.one_in(2)

DP2: dict[str, Any] = {"mesh": {"dp": 2}, "data": {"microbatches": 2}, "fsdp": {"axes": ["dp"]}}


def model_of() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(3, 3).double()


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch_of(rows: int) -> dict[str, Any]:
    return {
        "x": random(rows, 3),
        "image": {"pixels": random(2, rows, 3), "masks": {"shared": random(2, 3), "rows": random(3, rows)}},
        "scale": torch.tensor(0.5, dtype=torch.float64),
        "table": random(5, 3),
    }


def train(model: nn.Module, x: Tensor, image: dict[str, Any], scale: Tensor, table: Tensor) -> Any:
    y = model(x) * scale + (image["pixels"] * image["masks"]["shared"].unsqueeze(1)).sum(0)
    loss = (y + image["masks"]["rows"].t()).square().mean() + (model(x) @ table.t()).logsumexp(-1).mean()
    return loss, {"y": y}


DIMS: tuple[dict[str, int | None], ...] = (
    {"image.pixels": 1, "image.masks": None, "image.masks.rows": 1, "table": None},
    {"image": 1, "image.masks.shared": None, "scale": None, "table": None, "x": 0},
    {"image.pixels": -2, "image.masks.rows": -1, "image": None, "x": -2, "table": None},
)


def flat_loop(batch: dict[str, Any], ranks: int, microbatches: int) -> Any:
    """The loop, with the leaves as keywords of their own."""

    def flat(
        model: nn.Module, x: Tensor, pixels: Tensor, shared: Tensor, rows: Tensor, scale: Tensor, table: Tensor
    ) -> Any:
        return train(model, x, {"pixels": pixels, "masks": {"shared": shared, "rows": rows}}, scale, table)

    image = batch["image"]
    leaves = {"x": batch["x"], "pixels": image["pixels"], **image["masks"]}
    leaves |= {"scale": batch["scale"], "table": batch["table"]}
    dims = {"pixels": 1, "rows": 1, "shared": None, "table": None}
    return reference_step(model_of(), flat, leaves, data_ranks=ranks, microbatches=microbatches, batch_dims=dims)


@pytest.mark.parametrize("dims", DIMS, ids=("exact", "container", "negative"))
def test_dims_by_path_and_inputs_given_whole_equal_the_loop(dims: dict[str, int | None]) -> None:
    exported = hpir.export(model_of(), train, batch_of(2), batch_dims=dims)
    program = hpir.compile_program(exported, DP2)
    assert {a.name: a.batch_dim for a in program.entry(0).arguments if a.role == "input"} == {
        "x": 0,
        "image.pixels": 1,
        "image.masks.shared": None,
        "image.masks.rows": 1,
        "scale": None,
        "table": None,
    }
    result, expected = hpir.simulate(program, exported.state, batch_of(8)), flat_loop(batch_of(8), 2, 2)
    torch.testing.assert_close(result.loss, expected.loss, rtol=1e-12, atol=0)
    for name, gradient in expected.grads.items():
        torch.testing.assert_close(result.grads[name], gradient, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(result.outputs["y"], torch.cat([output["y"] for output in expected.outputs]).detach())

    step = hpir.compile(model_of(), train, batch_of(4), plan={"data": {"microbatches": 2}}, batch_dims=dims)
    torch.testing.assert_close(step(**batch_of(4)), flat_loop(batch_of(4), 1, 2).loss)


def test_all_inputs_given_whole_leave_the_ranks_alike() -> None:
    def plain(model: nn.Module, x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().mean()
        return loss

    def weighted(model: nn.Module, x: Tensor) -> Any:
        return hpir.WeightedLoss(model(x).square().sum(), torch.tensor(6.0, dtype=torch.float64))

    batch, one = {"x": random(2, 3)}, {"data": {"microbatches": 2}}
    expected = reference_step(model_of(), plain, batch)
    for function, plan in ((plain, one), (plain, DP2), (weighted, one)):
        exported = hpir.export(model_of(), function, batch, batch_dims={"x": None})
        result = hpir.simulate(hpir.compile_program(exported, plan), exported.state, batch)
        torch.testing.assert_close(result.loss, expected.loss)
        for name, gradient in expected.grads.items():
            torch.testing.assert_close(result.grads[name], gradient)
    with pytest.raises(hpir.PassError, match="the loss is weighted, but no input is split over the data axes"):
        hpir.compile_program(exported, DP2)


REFUSED: tuple[tuple[Any, str], ...] = (
    ({"imag": None}, "no input 'imag', did you mean 'image'"),
    ({"image.mask": None}, "no input 'image.mask', did you mean 'image.masks'"),
    ({"image.pixels": "1"}, "expected an int or None for 'image.pixels', got: '1'"),
    ({"image": 2}, "input 'image.masks.shared' has 2 dims, got dim: 2"),
    ({"scale": 0}, "input 'scale' has 0 dims, got dim: 0"),
    (True, "expected an int or a dict by input, got: True"),
    ("x", "expected an int or a dict by input, got: 'x'"),
    (0, "input 'x' has 4 rows along its batch dim but 'image.masks.shared' has 2"),
)


@pytest.mark.parametrize(("dims", "message"), REFUSED, ids=lambda value: str(value)[:20])
def test_wrong_batch_dims_are_refused_at_the_users_line(dims: Any, message: str) -> None:
    batch = batch_of(4)
    batch["image"]["pixels"] = random(4, 4, 3)
    with pytest.raises(hpir.CaptureError, match=message) as error:
        hpir.export(model_of(), train, batch, batch_dims=dims)
    assert str(error.value).startswith(f"{__file__}:{train.__code__.co_firstlineno}: ")


def two(model: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    loss: Tensor = (model(a) * b).square().mean() + a.reshape(-1)[:2].sum()
    return loss


BIG = random(12, 3, seed=3)

LAYOUTS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "same tensor": lambda: (BIG[:4], BIG[:4]),
    "one tensor": lambda: (BIG, BIG),
    "overlapping views": lambda: (BIG[:4], BIG[2:6]),
    "transposed": lambda: (random(3, 4).t(), random(4, 3)),
    "expanded": lambda: (random(1, 3).expand(4, 3), random(4, 1).expand(4, 3)),
    "strided": lambda: (random(8, 6)[::2, ::2], random(4, 3)),
    "no rows": lambda: (random(0, 3), random(0, 3)),
    "frozen parameter": lambda: (nn.Parameter(random(4, 3), requires_grad=False), random(4, 3)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layout_does_not_count(layout: str) -> None:
    a, b = LAYOUTS[layout]()
    exported = hpir.export(model_of(), two, {"a": a, "b": b})
    program = hpir.compile_program(exported)
    # What was one tensor when it was traced need not be one later, nor the other way round.
    rows = a.shape[0]
    for x, y in (
        (a, b),
        (random(rows, 3, seed=5), random(rows, 3, seed=6)),
        (random(3, rows).t(), random(3, rows).t()),
    ):
        expected = reference_step(model_of(), two, {"a": x, "b": y})
        result = hpir.simulate(program, exported.state, {"a": x, "b": y})
        torch.testing.assert_close(result.loss, expected.loss, equal_nan=True)
        step = hpir.compile(model_of(), two, {"a": a, "b": b})
        torch.testing.assert_close(step(a=x, b=y), expected.loss, equal_nan=True)
        for name, parameter in step.named_parameters():
            torch.testing.assert_close(result.grads[name], expected.grads[name], equal_nan=True)
            torch.testing.assert_close(parameter.grad, expected.grads[name], equal_nan=True)


def test_an_input_that_requires_gradients_is_refused_when_a_step_runs() -> None:
    batch = {"a": random(4, 3), "b": random(4, 3)}
    step = hpir.compile(model_of(), two, batch)
    exported = hpir.export(model_of(), two, batch)
    wrong = {**batch, "b": random(4, 3).requires_grad_()}
    for run in (lambda: step(**wrong), lambda: hpir.simulate(hpir.compile_program(exported), exported.state, wrong)):
        with pytest.raises(hpir.RuntimeFault, match=r"input 'b' requires gradients, .*: give it detached"):
            run()
