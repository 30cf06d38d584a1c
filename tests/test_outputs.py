"""Extra outputs: any structure, any dtype, with and without a batch dim, put together as the plain loop gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from distributed_case import run_ranks
from models import reference_step
from torch import Tensor, nn

import hpir
from hpir.runtime.program import Program
from hpir.runtime.simulate import simulate_evaluate

pytestmark = pytest.mark.one_in(2)


class Statistics(NamedTuple):
    right: Tensor
    hardest: tuple[Tensor, None]


@dataclass
class Hidden:
    first: Tensor
    names: list[str]
    last: Tensor | None = None


@dataclass
class Classified:
    loss: Tensor | None = None


class Model(nn.Module):
    """A classifier with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 6)
        self.down = nn.Linear(6, 3)
        self.seen: Tensor
        self.register_buffer("seen", torch.arange(3.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.up(x))
        return hidden, self.down(hidden)


def everything(model: Model, x: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Any]]:
    hidden, logits = model(x)
    loss = F.cross_entropy(logits, labels)
    guessed = logits.argmax(-1)
    right = guessed == labels
    return loss, {
        "loss": loss,
        "scaled": 2 * loss,
        "logits": logits,
        "same": logits,
        "per_class": logits.t(),
        "similar": logits @ logits.t(),
        "flat": hidden.flatten(),
        "guessed": guessed,
        "small": guessed.to(torch.uint8),
        "right": right,
        "any": right.any(),
        "spectrum": torch.fft.fft(hidden, dim=-1),
        "statistics": Statistics(right.sum(), (logits.amax(0), None)),
        "hidden": Hidden(hidden, ["tanh", "up"]),
        "nothing": None,
        "empty": {"of": [], "it": ()},
        "rows": x.shape[0],
        "rate": 0.25,
        "kind": "train",
        "given": x.clone(),
        "weight": model.down.weight.clone(),
        "bias": 2 * model.down.bias[:2],
        "seen": model.seen + 1,
        "constant": torch.tensor([1, 2]),
    }


BATCH_DIMS: dict[str, int] = {
    "logits": 0,
    "same": 0,
    "per_class": 1,
    "flat": 0,
    "guessed": 0,
    "small": 0,
    "right": 0,
    "spectrum": 0,
    "hidden.first": 0,
    "given": 0,
}
"""The batch dims of the outputs of `everything`; the others are stacked."""


def batch_of(rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    return {"x": x, "labels": torch.randint(0, 3, (rows,), generator=generator)}


def model_of() -> Model:
    torch.manual_seed(0)
    return Model().double()


def put_together(values: list[Any], dims: dict[str, int], path: str = "") -> Any:
    """Put outputs of the loop's turns together, written down independently of the package."""
    first = values[0]

    def inner(key: object, parts: list[Any]) -> Any:
        return put_together(parts, dims, f"{path}.{key}" if path else str(key))

    if isinstance(first, Tensor):
        if len(values) == 1:
            return first.detach()
        join = torch.cat if path in dims else torch.stack
        return join([value.detach() for value in values], dim=dims.get(path, 0))
    if isinstance(first, dict):
        return {key: inner(key, [value[key] for value in values]) for key in first}
    if isinstance(first, Hidden):
        return {key: inner(key, [getattr(value, key) for value in values]) for key in ("first", "names", "last")}
    if isinstance(first, (list, tuple)):
        items = [inner(index, [value[index] for value in values]) for index in range(len(first))]
        return items if isinstance(first, list) else tuple(items)
    assert all(value == first for value in values)
    return first


def assert_same(found: Any, expected: Any) -> None:
    """Compare nested outputs; containers by type."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    else:
        assert found == expected


PLANS: dict[str, dict[str, Any]] = {
    "one": {},
    "microbatches": {"data": {"microbatches": 3}},
    "dp2": {"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"]}},
    "dp2 microbatches": {"mesh": {"dp": 2}, "data": {"microbatches": 2}, "fsdp": {"axes": ["dp"]}},
    "hsdp": {"mesh": {"rep": 2, "dp": 2}, "fsdp": {"axes": ["dp"], "replicate_axes": ["rep"]}},
}


@pytest.mark.parametrize("plan", PLANS)
def test_outputs_are_those_of_the_plain_loop(plan: str, tmp_path: Any) -> None:
    keys = PLANS[plan]
    ranks, microbatches = hpir.Plan.model_validate(keys).device_mesh(), keys.get("data", {}).get("microbatches", 1)
    parts = (ranks.size if ranks is not None else 1) * microbatches
    batch = batch_of(2 * parts)
    exported = hpir.export(model_of(), everything, batch_of(2))
    hpir.compile_program(exported, keys).save(tmp_path / "prog")
    program = Program.load(tmp_path / "prog")
    expected = put_together(
        reference_step(model_of(), everything, batch, data_ranks=parts).outputs, BATCH_DIMS if parts > 1 else {}
    )
    result = hpir.simulate(program, exported.state, batch, check_types=True)
    assert_same(result.outputs, expected)
    loss, outputs = simulate_evaluate(program, exported.state, batch, check_types=True)
    assert torch.equal(loss, result.loss)
    assert_same(outputs, result.outputs)


def evaluate_on_ranks(rank: int) -> Any:
    batch = {name: leaf[4 * rank : 4 * rank + 4] for name, leaf in batch_of(8).items()}
    step = hpir.compile(model_of(), everything, batch, plan=PLANS["dp2 microbatches"])
    before = step.evaluate(**batch)[1]
    step(**batch)
    assert_same(step.evaluate(**batch)[1], before)
    return before


@pytest.mark.timeout(120)
def test_outputs_on_two_processes_are_those_of_the_plain_loop() -> None:
    expected = reference_step(model_of(), everything, batch_of(8), data_ranks=4).outputs
    for found in run_ranks(evaluate_on_ranks, 2):
        assert_same(found, put_together(expected, BATCH_DIMS))


def with_tuple(model: Model, x: Tensor, labels: Tensor) -> Any:
    hidden, logits = model(x)
    return F.cross_entropy(logits, labels), (hidden, logits.sum())


def with_tensor(model: Model, x: Tensor, labels: Tensor) -> Any:
    logits = model(x)[1]
    return F.cross_entropy(logits, labels), logits


def with_number(model: Model, x: Tensor, labels: Tensor) -> Any:
    return F.cross_entropy(model(x)[1], labels), 7


def with_weight(model: Model, x: Tensor, labels: Tensor) -> Any:
    logits = model(x)[1]
    total = F.cross_entropy(logits, labels, reduction="sum")
    return hpir.WeightedLoss(total, len(labels)), [logits, {"sum": total}]


@pytest.mark.parametrize(
    ("train", "dims"),
    ((with_tuple, {"0": 0}), (with_tensor, {"": 0}), (with_number, {}), (with_weight, {"0": 0})),
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_second_value_may_be_anything(train: Callable[..., Any], dims: dict[str, int]) -> None:
    batch = batch_of(6)
    exported = hpir.export(model_of(), train, batch_of(2))
    result = hpir.simulate(hpir.compile_program(exported, PLANS["microbatches"]), exported.state, batch)
    expected = reference_step(model_of(), train, batch, microbatches=3)
    torch.testing.assert_close(result.loss, expected.loss, rtol=1e-12, atol=0)
    assert_same(result.outputs, put_together(expected.outputs, dims))


class OneSize(nn.Module):
    """Written for batches of two rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x.reshape(1, 8))
        return y


def of_one_size(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    y = model(x)
    return y.square().mean(), y


def test_outputs_of_a_model_for_one_batch_size_are_stacked() -> None:
    model, batch = OneSize(), {"x": torch.randn(4, 4)}
    exported = hpir.export(model, of_one_size, {"x": batch["x"][:2]})
    outputs = hpir.simulate(
        hpir.compile_program(exported, {"data": {"microbatches": 2}}), exported.state, batch
    ).outputs
    assert outputs.shape == (2, 1, 2)
    assert torch.equal(outputs[1], model(batch["x"][2:]).detach())


def three(model: Model, x: Tensor, labels: Tensor) -> Any:
    hidden, logits = model(x)
    return F.cross_entropy(logits, labels), logits, hidden


def swapped(model: Model, x: Tensor, labels: Tensor) -> Any:
    logits = model(x)[1]
    return logits, F.cross_entropy(logits, labels)


def swapped_dict(model: Model, x: Tensor, labels: Tensor) -> Any:
    logits = model(x)[1]
    return {"logits": logits}, F.cross_entropy(logits, labels)


def as_list(model: Model, x: Tensor, labels: Tensor) -> Any:
    return list(with_tensor(model, x, labels))


def as_dict(model: Model, x: Tensor, labels: Tensor) -> Any:
    return {"loss": F.cross_entropy(model(x)[1], labels)}


def as_output(model: Model, x: Tensor, labels: Tensor) -> Any:
    return Classified(loss=F.cross_entropy(model(x)[1], labels))


def no_loss(model: Model, x: Tensor, labels: Tensor) -> Any:
    return model(x)


def without_weight(model: Model, x: Tensor, labels: Tensor) -> Any:
    return hpir.WeightedLoss(F.cross_entropy(model(x)[1], labels), None)  # type: ignore[arg-type]


def weight_per_row(model: Model, x: Tensor, labels: Tensor) -> Any:
    return hpir.WeightedLoss(F.cross_entropy(model(x)[1], labels), labels)


def weight_of_truth(model: Model, x: Tensor, labels: Tensor) -> Any:
    return hpir.WeightedLoss(F.cross_entropy(model(x)[1], labels), labels.any())


def sum_per_row(model: Model, x: Tensor, labels: Tensor) -> Any:
    return hpir.WeightedLoss(F.cross_entropy(model(x)[1], labels, reduction="none"), len(labels))


def sum_as_number(model: Model, x: Tensor, labels: Tensor) -> Any:
    return hpir.WeightedLoss(2.0, x.shape[0])  # type: ignore[arg-type]


def odd_key(model: Model, x: Tensor, labels: Tensor) -> Any:
    return F.cross_entropy(model(x)[1], labels), {"a": {1: x}}


REFUSED: tuple[tuple[Callable[..., Any], str], ...] = (
    (
        three,
        "the step function returned a tuple of 3 whose first value is a tensor, expected the loss as a tensor: "
        "return (loss, outputs), with all further values in one dict or tuple",
    ),
    (
        swapped,
        "expected the loss to have shape [] or [1], got: [2, 3] in the first of the two values returned: "
        "return (loss, outputs), the loss first",
    ),
    (
        swapped_dict,
        "the step function returned a tuple of 2 whose first value is a dict, expected the loss as a tensor: "
        "return (loss, outputs), the loss first",
    ),
    (
        as_list,
        "the step function returned a list, expected the loss as a tensor: return a tuple (loss, outputs)",
    ),
    (
        as_dict,
        "the step function returned a dict, expected the loss as a tensor: "
        "return its 'loss', or the pair of it and the whole",
    ),
    (
        as_output,
        "the step function returned a Classified, expected the loss as a tensor: "
        "return its .loss, or the pair of it and the whole",
    ),
    (no_loss, "expected the loss to have shape [] or [1], got: [2, 6] in the first of the two values returned"),
    (without_weight, "expected the weight of the WeightedLoss to be a tensor or a number, got: NoneType"),
    (weight_per_row, "expected the weight of the WeightedLoss to be of shape [] or [1], got: [2]: sum it"),
    (
        weight_of_truth,
        "expected the weight of the WeightedLoss to be an integer or floating tensor, got: torch.bool",
    ),
    (sum_per_row, "expected the sum of the WeightedLoss to have shape [] or [1], got: [2]"),
    (
        sum_as_number,
        "the step function returned a WeightedLoss of a float, expected the sum of the WeightedLoss as a tensor",
    ),
    (odd_key, "key 1 in 'a' is of type int, expected a string"),
)


@pytest.mark.parametrize(("train", "message"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_no_loss_with_outputs_is_an_error_that_says_what_to_return(
    train: Callable[..., Any], message: str
) -> None:
    with pytest.raises(hpir.CaptureError) as error:
        hpir.export(model_of(), train, batch_of(2))
    assert str(error.value) == f"{__file__}:{train.__code__.co_firstlineno}: {message}"


def counted(model: Model, x: Tensor, labels: Tensor) -> Any:
    return F.cross_entropy(model(x)[1], labels), {"rate": 0.5, "kind": "train", "count": {"rows": x.shape[0]}}


def filled(model: Model, x: Tensor, labels: Tensor) -> Any:
    return F.cross_entropy(model(x)[1], labels), {"rate": 0.5, "rows": torch.full((), x.shape[0])}


def test_numbers_that_follow_a_dynamic_size_are_refused() -> None:
    dynamic = {"x": {0: "rows"}, "labels": {0: "rows"}}
    with pytest.raises(hpir.CaptureError) as error:
        hpir.export(model_of(), counted, batch_of(2), dynamic=dynamic)
    assert str(error.value) == (
        f"{__file__}:{counted.__code__.co_firstlineno}: output 'count.rows' is a number that follows a dynamic size, "
        "and numbers are compiled in: return a tensor, such as torch.full((), x.shape[1])"
    )
    exported = hpir.export(model_of(), filled, batch_of(2), dynamic=dynamic)
    program = hpir.compile_program(exported, {})
    for rows in (2, 5):
        outputs = hpir.simulate(program, exported.state, batch_of(rows)).outputs
        assert outputs == {"rate": 0.5, "rows": torch.tensor(rows)}
