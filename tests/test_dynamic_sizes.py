"""Sizes that change from step to step: capture, one rank, simulated ranks, both backends, guards and refusals."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from dynamic_models import (
    LENGTHS,
    LENGTHS_AND_ROWS,
    Halves,
    LengthLM,
    built,
    lengths_batch,
    train_halves,
    train_lengths,
)
from models import reference_step
from torch import Tensor, nn

import hpir
from hpir.lowering.check import check_program, random_batch, random_state
from hpir.runtime.program import Program

pytestmark = pytest.mark.one_in(2)

PLANS: dict[str, dict[str, Any]] = {
    "dp1": {"mesh": {"dp": 1}, "fsdp": {"axes": ["dp"]}},
    "dp3": {"mesh": {"dp": 3}, "fsdp": {"axes": ["dp"], "units": ["layers.*"]}},
    "ddp2": {"mesh": {"dp": 2}, "fsdp": {"axes": []}},
    "hsdp": {"mesh": {"rep": 2, "dp": 2}, "fsdp": {"axes": ["dp"], "replicate_axes": ["rep"]}},
}


@cache
def exported(rows: bool) -> hpir.Exported:
    return hpir.export(
        built(LengthLM), train_lengths, lengths_batch(4, 6), dynamic=LENGTHS_AND_ROWS if rows else LENGTHS
    )


def program(plan: str, microbatches: int, *, rows: bool = True) -> Program:
    spec = PLANS[plan]
    axes = ["rep", "dp"] if plan == "hsdp" else ["dp"]
    return hpir.compile_program(exported(rows), {**spec, "data": {"axes": axes, "microbatches": microbatches}})


def assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    difference = (found.double() - expected.double()).abs().max().item() if expected.numel() else 0.0
    assert difference <= 1e-10 * max(1.0, expected.double().abs().max().item()), what


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("microbatches", [1, 2])
def test_simulated_ranks_equal_the_plain_loop_at_every_size(plan: str, microbatches: int) -> None:
    compiled = program(plan, microbatches)
    ranks = compiled.mesh.count(compiled.data_axes)
    state = dict(built(LengthLM).state_dict())
    for rows, length in ((2, 6), (3, 2), (2, 12)):
        batch = lengths_batch(rows * ranks * microbatches, length)
        model = built(LengthLM)
        expected = reference_step(model, train_lengths, batch, data_ranks=ranks, microbatches=microbatches)
        found = hpir.simulate(compiled, state, batch, check_types=True)
        assert_close(found.loss, expected.loss, "loss")
        for name, gradient in expected.grads.items():
            assert_close(found.grads[name], gradient, f"gradient of {name} at {rows}x{length}")
        for name in found.buffers:
            assert_close(found.buffers[name], expected.buffers[name], f"buffer {name}")
        assert_close(found.outputs["logits"], torch.cat([output["logits"] for output in expected.outputs]), "logits")


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_one_rank_runs_every_size(backend: str) -> None:
    model, plain = built(LengthLM), built(LengthLM)
    step = hpir.compile(
        model,
        train_lengths,
        lengths_batch(4, 6),
        plan={"data": {"microbatches": 2}},
        dynamic=LENGTHS_AND_ROWS,
        backend=backend,
    )
    for rows, length in ((4, 6), (2, 9), (4, 6)):
        batch = lengths_batch(rows, length)
        for parameter in (*model.parameters(), *plain.parameters()):
            parameter.grad = None
        loss = step(**batch)
        expected = reference_step(plain, train_lengths, batch, microbatches=2)
        assert_close(loss, expected.loss, "loss")
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert_close(parameter.grad, expected.grads[name], name)
        _, outputs = step.evaluate(**batch)
        assert outputs["logits"].shape == (rows, length, 11)


@pytest.mark.everything
def test_inductor_draws_masks_of_every_size() -> None:
    losses = []
    for backend in ("eager", "inductor"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        step = hpir.compile(model, train_halves, {"x": torch.ones(4, 6, 4)}, dynamic={"x": {1: "seq"}}, backend=backend)
        losses.append([float(step(x=torch.ones(4, length, 4))) for length in (6, 3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and losses[0][0] != losses[0][1]


def test_sizes_are_arguments_and_dims_are_named() -> None:
    text = exported(True).text()
    assert ': !torch.int {hp.example = 6 : i64, hp.name = "seq", hp.role = "size"}' in text
    assert '!torch.vtensor<[?,?],si64> {hp.batch_dim = 0 : i64, hp.dim_names = ["rows", "seq"], hp.name = "ids"' in text
    assert 'hp.guards = ["seq <= 12", "(rows*seq) != 1"]' in text


def test_a_batch_dim_is_dynamic_for_all_inputs_or_none() -> None:
    text = exported(False).text()
    assert '!torch.vtensor<[4,?],si64> {hp.batch_dim = 0 : i64, hp.dim_names = ["", "seq"], hp.name = "ids"' in text
    found = hpir.export(built(Halves), lambda model, x, y: (model(x) * y).mean(), _pair(), dynamic={"y": {0: "rows"}})
    assert found.text().count('hp.dim_names = ["rows", "", ""]') == 2


def _pair() -> dict[str, Tensor]:
    return {"x": torch.randn(4, 6, 4).double(), "y": torch.randn(4, 4, 1).double()}


def test_splitting_along_a_dynamic_dim_is_right_and_guarded() -> None:
    taken = hpir.export(built(Halves), train_halves, {"x": torch.randn(2, 8, 4).double()}, dynamic={"x": {1: "seq"}})
    compiled = hpir.compile_program(taken, {"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"]}})
    state = dict(built(Halves).state_dict())
    for length in (8, 4, 14):
        x = torch.randn(4, length, 4, dtype=torch.float64)
        expected = reference_step(built(Halves), train_halves, {"x": x}, data_ranks=2)
        found = hpir.simulate(compiled, state, {"x": x}, check_types=True)
        assert_close(found.loss, expected.loss, "loss")
        for name, gradient in expected.grads.items():
            assert_close(found.grads[name], gradient, name)


@pytest.mark.parametrize(
    ("rows", "length", "message"),
    [
        (4, 13, "rank 0: dim 1 of 'ids' is 13: the step was compiled under the guard 'seq <= 12'"),
        (5, 6, "has 5 rows, which do not divide over 2 data ranks: a plain loss would be a mean of unequal means"),
        (6, 6, "has 3 rows, which do not divide into 2 microbatches: .* return hpir.WeightedLoss"),
        (2, 6, "has 1 rows, too few for 2 microbatches"),
        (1, 6, "has 1 rows, too few for 2 data ranks"),
    ],
)
def test_a_batch_that_breaks_a_promise_is_refused_by_name(rows: int, length: int, message: str) -> None:
    with pytest.raises(hpir.RuntimeFault, match=message):
        hpir.simulate(program("ddp2", 2), dict(built(LengthLM).state_dict()), lengths_batch(rows, length))


def test_inputs_that_disagree_about_a_size_are_refused_on_simulated_and_real_ranks() -> None:
    batch = {"ids": lengths_batch(4, 6)["ids"], "labels": lengths_batch(4, 7)["labels"]}
    message = "input 'labels' has size 7 at dim 1 but dim 1 of 'ids' has 6: both are size 'seq'"
    with pytest.raises(hpir.RuntimeFault, match=message):
        hpir.simulate(program("dp1", 1), dict(built(LengthLM).state_dict()), batch)
    model = built(LengthLM)
    step = hpir.compile(model, train_lengths, lengths_batch(4, 6), dynamic=LENGTHS_AND_ROWS)
    with pytest.raises(hpir.RuntimeFault, match=message):
        step(**batch)
    with pytest.raises(hpir.RuntimeFault, match="compiled under the guard 'seq <= 12'"):
        step(**lengths_batch(4, 13))
    assert float(step(**lengths_batch(2, 3))) > 0


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.w(x)
        z: Tensor = y * 2 if x.shape[1] % 3 == 0 and x.shape[1] * x.shape[0] > 7 else y
        return z


def test_branches_on_sizes_become_guards() -> None:
    taken = hpir.export(
        Branch(), lambda model, x: model(x).mean(), {"x": torch.randn(3, 6, 4)}, dynamic={"x": {0: "n", 1: "t"}}
    )
    text = taken.text()
    assert "(t % 3) == 0" in text and "n*t > 7" in text
    compiled = hpir.compile_program(taken, {})
    state = dict(Branch().state_dict())
    hpir.simulate(compiled, state, {"x": torch.randn(1, 9, 4)})
    with pytest.raises(hpir.RuntimeFault, match=r"dim 1 of 'x' is 7: .* guard '\(t % 3\) == 0'"):
        hpir.simulate(compiled, state, {"x": torch.randn(2, 7, 4)})
    with pytest.raises(hpir.RuntimeFault, match=r"dim 0 of 'x' is 1 and dim 1 of 'x' is 6: .* guard 'n\*t > 7'"):
        hpir.simulate(compiled, state, {"x": torch.randn(1, 6, 4)})


X = torch.randn(4, 6)


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"z": {0: "n"}}, "dynamic: no input 'z'"),
        ({"x": {2: "n"}}, "dynamic: input 'x' has 2 dims, got dim: 2"),
        ({"x": {True: "n"}}, "dynamic: input 'x' has 2 dims, got dim: True"),
        ({"x": {0: "n m"}}, "dynamic: expected an identifier for dim 0 of 'x', got: 'n m'"),
        ({"x": {0: "max"}}, "dynamic: expected an identifier for dim 0 of 'x', got: 'max'"),
        ({"x": {0: "if"}}, "dynamic: expected an identifier for dim 0 of 'x', got: 'if'"),
        ({"x": {0: "x"}}, "dynamic: size 'x' has the name of an input"),
        ({"x": {0: "n", -2: "m"}}, "dynamic: dim -2 of 'x' has two names, 'n' and 'm'"),
        ({"x": {0: "n", 1: "n"}}, "dynamic: size 'n' is 4 at dim 0 of 'x' but 6 at dim 1 of 'x'"),
        ({"x": {0: "n"}, "y": {0: "m"}}, "dynamic: the batch dim is 'n' in 'x' but 'm' in 'y'"),
        ({"x": "n"}, "dynamic: expected a mapping of dims to names for 'x'"),
        (["x"], "dynamic: expected a mapping of inputs, got: list"),
        ({"y": {1: "one"}}, "dynamic: size 'one' is 1 in the example batch: give one of at least 2"),
        ({"x": {1: "t"}}, "dynamic: size 't' must be 6 for this step"),
    ],
)
def test_a_dynamic_argument_that_cannot_be_is_refused_at_the_step(dynamic: Any, message: str) -> None:
    def train(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = (model(x) * y).mean()
        return loss

    place = f"{__file__}:{train.__code__.co_firstlineno}: "
    with pytest.raises(hpir.CaptureError, match=message) as caught:
        hpir.export(nn.Linear(6, 1), train, {"x": X, "y": torch.randn(4, 1)}, dynamic=dynamic)
    assert str(caught.value).startswith(place)


def test_two_names_that_must_be_one_size_are_refused() -> None:
    with pytest.raises(hpir.CaptureError, match=r"sizes '[ab]' and '[ab]' must be equal for this step: give them one"):
        hpir.export(
            nn.Linear(3, 1),
            lambda model, x, y: (model(x) * y).mean(),
            {"x": torch.randn(4, 5, 3), "y": torch.randn(4, 5, 1)},
            dynamic={"x": {1: "a"}, "y": {1: "b"}},
        )


def test_a_saved_program_keeps_its_guards_and_is_checked_with_a_made_up_batch(tmp_path: Any) -> None:
    compiled = program("dp3", 2)
    compiled.save(tmp_path)
    loaded = Program.load(tmp_path)
    assert loaded == compiled and loaded.guards == ("seq <= 12", "(rows*seq) != 1") and loaded.digest == compiled.digest
    batch = random_batch(loaded)
    assert batch["ids"].shape == (4 * 6, 6)
    assert not [found for found in check_program(loaded, random_state(loaded), batch) if found.differs]


def test_a_step_leaves_the_example_batch_as_it_was() -> None:
    batch = lengths_batch(4, 6)
    before = copy.deepcopy(batch)
    hpir.export(built(LengthLM), train_lengths, batch, dynamic=LENGTHS)
    for name, leaf in batch.items():
        assert torch.equal(leaf, before[name]) and not hasattr(leaf, "_dynamo_dynamic_indices")
