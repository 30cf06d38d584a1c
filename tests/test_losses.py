"""Losses with a weight: the mean over all tokens of a step, however they are spread; in which dtype, and in what IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exports import captured
from models import BY_NAME, IGNORED, reference_step
from test_acceptance import PLANS, data_ranks, plan_for
from torch import Tensor, nn

import hpir
from hpir.dialect.signature import body_of, read_signature, step_functions
from hpir.lowering.check import check_program
from hpir.lowering.to_program import to_program
from hpir.runtime.simulate import simulate_evaluate
from hpir.runtime.step import Step

pytestmark = pytest.mark.one_in(2)

CASE = BY_NAME["ignored_tokens"]


def loss_and_gradients(model: nn.Module, loss: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a loss and its gradients by name, with the names of ties."""
    model.zero_grad()
    torch.autograd.backward(loss)
    named = model.named_parameters(remove_duplicate=False)
    return loss.detach(), {name: parameter.grad for name, parameter in named if parameter.grad is not None}


@pytest.mark.parametrize("microbatches", (1, 2, 4))
@pytest.mark.parametrize("plan", ("dp1", "dp2", "dp3", "hsdp2x2", "ddp2"))
def test_the_result_is_the_mean_over_all_tokens_of_the_step(plan: str, microbatches: int) -> None:
    batch = CASE.data(2 * data_ranks(plan) * microbatches, torch.float64)
    model = CASE.model(torch.float64)
    logits = model(batch["ids"])
    mean = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED)
    loss, gradients = loss_and_gradients(model, mean)

    program = hpir.compile_program(captured("ignored_tokens", 2), plan_for(CASE, plan, microbatches))
    state = captured("ignored_tokens", 2).state
    result = hpir.simulate(program, state, batch, check_types=True)
    torch.testing.assert_close(result.loss, loss, rtol=1e-12, atol=0)
    for name, gradient in gradients.items():
        torch.testing.assert_close(result.grads[name], gradient, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(result.outputs["logits"], logits.detach(), rtol=1e-12, atol=0)
    assert int(result.outputs["right"].sum()) == int((logits.argmax(-1) == batch["labels"]).sum())

    evaluated, outputs = simulate_evaluate(program, state, batch, check_types=True)
    assert torch.equal(evaluated, result.loss)
    assert torch.equal(outputs["logits"], result.outputs["logits"])


@pytest.mark.parametrize("plan", PLANS)
def test_gradients_of_a_weighted_step_are_summed(plan: str) -> None:
    for name, expected in (("ignored_tokens", "sum"), ("tied", "avg")):
        exported = captured(name, 2)
        module = exported.module.operation
        hpir.run_passes(module, plan_for(BY_NAME[name], plan, 2).pipeline())
        hpir.run_passes(module, "hp-verify-level")
        ops = [view.operation for view in body_of(next(step_functions(module))).operations]
        kinds = {op.attributes["reduce"].value for op in ops if "reduce" in op.attributes}
        assert kinds == {expected}


def test_the_other_kind_of_reduction_is_refused() -> None:
    for name, wrong, right in (("ignored_tokens", "avg", "sum"), ("tied", "sum", "avg")):
        exported = captured(name, 2)
        hpir.run_passes(exported.module.operation, plan_for(BY_NAME[name], "dp2", 1).pipeline())
        text = exported.text().replace(f'reduce = "{right}"', f'reduce = "{wrong}"')
        module = type(exported.module).parse(text, context=exported.module.operation.context)
        with pytest.raises(hpir.PassError, match=f"by '{wrong}', expected '{right}': the function returns a"):
            hpir.run_passes(module, "hp-verify-level")


class Scalars(nn.Module):
    """Parameters of several shapes, one without dims."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(()))
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) * self.scale + self.shift
        return y


def squares(model: nn.Module, x: Tensor) -> Tensor:
    total: Tensor = model(x).square().sum()
    return total


WEIGHTS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "int64": (lambda x: (x[:, 0] > 0).sum() + 1, "int64"),
    "int32": (lambda x: (x[:, 0] > 0).sum(dtype=torch.int32) + 1, "int64"),
    "uint8": (lambda x: (x[:, :1] > -9).sum(0).to(torch.uint8), "int64"),
    "float64": (lambda x: x.double().square().sum(), "float64"),
    "float32": (lambda x: x.float().square().sum().reshape(1), "float32"),
    "bfloat16": (lambda x: torch.full((), 3, dtype=torch.bfloat16), "float32"),
    "number of rows": (lambda x: x.shape[0], "int64"),
    "number": (lambda x: 0.3, "float32 or wider"),
}


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_of_any_kind_keep_the_dtypes_of_loss_and_gradients(kind: str, dtype: torch.dtype) -> None:
    weigh, stated = WEIGHTS[kind]

    def train(model: nn.Module, x: Tensor) -> hpir.WeightedLoss:
        return hpir.WeightedLoss(squares(model, x), weigh(x))

    torch.manual_seed(0)
    model = Scalars().to(dtype)
    batch = torch.randn(8, 4).to(dtype)
    exported = hpir.export(model, train, {"x": batch[:2]})
    (info,) = read_signature(next(step_functions(exported.module.operation))).results_with_role("weight")
    wide = "float64" if dtype == torch.float64 else "float32"
    assert (info.type.shape, info.type.dtype) == ((), wide if stated == "float32 or wider" else stated)
    plan = {"mesh": {"dp": 2}, "data": {"microbatches": 2}, "fsdp": {"axes": ["dp"]}}
    result = hpir.simulate(hpir.compile_program(exported, plan), exported.state, {"x": batch}, check_types=True)
    expected = reference_step(model, train, {"x": batch}, data_ranks=2, microbatches=2)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 2e-2)
    assert result.loss.dtype == dtype
    torch.testing.assert_close(result.loss.double(), expected.loss.reshape(()), rtol=tolerance, atol=0)
    assert set(result.grads) == {"linear.weight", "linear.bias", "scale", "shift"}
    for name, gradient in expected.grads.items():
        assert result.grads[name].dtype == dtype
        torch.testing.assert_close(result.grads[name], gradient, rtol=tolerance, atol=tolerance)


def test_a_large_count_does_not_overflow_half_precision() -> None:
    def train(model: nn.Module, x: Tensor) -> hpir.WeightedLoss:
        return hpir.WeightedLoss(squares(model, x) * 4096, x.numel() * 100_000)

    model, x = Scalars().half(), torch.ones(2, 4).half()
    result = Step(to_program(hpir.export(model, train, {"x": x}).module), model)
    loss = result(x=x)
    assert loss.dtype == torch.float16
    assert 0 < float(loss) < 1
    assert all(float(parameter.grad.abs().max()) > 0 for parameter in model.parameters() if parameter.grad is not None)


def test_an_input_can_be_the_weight() -> None:
    def train(model: nn.Module, x: Tensor, tokens: Tensor) -> hpir.WeightedLoss:
        return hpir.WeightedLoss(squares(model, x), tokens)

    model, batch = Scalars().double(), {"x": torch.randn(4, 4).double(), "tokens": torch.tensor(5)}
    exported = hpir.export(model, train, {**batch, "x": batch["x"][:2]})
    hpir.run_passes(exported.module, "canonicalize,hp-simplify")
    program = to_program(exported.module, microbatches=2)
    expected = reference_step(model, train, batch, microbatches=2)
    for tokens in (5, 7):
        batch["tokens"] = torch.tensor(tokens)
        result = hpir.simulate(program, exported.state, batch)
        torch.testing.assert_close(result.loss, expected.loss * 5 / tokens, rtol=1e-12, atol=0)


def test_no_gradient_flows_into_the_weight() -> None:
    def train(model: nn.Module, x: Tensor) -> hpir.WeightedLoss:
        y = model(x)
        return hpir.WeightedLoss(y.square().sum(), y.abs().sum())

    model, x = Scalars().double(), torch.randn(2, 4).double()
    exported = hpir.export(model, train, {"x": x})
    result = hpir.simulate(to_program(exported.module), exported.state, {"x": x})
    weighted = train(model, x)
    assert isinstance(weighted.weight, Tensor)
    loss, gradients = loss_and_gradients(model, weighted.sum / weighted.weight.detach())
    torch.testing.assert_close(result.loss, loss, rtol=1e-12, atol=0)
    for name, gradient in gradients.items():
        torch.testing.assert_close(result.grads[name], gradient, rtol=1e-12, atol=1e-15)


def test_without_any_weight_the_result_is_that_of_division_by_zero() -> None:
    batch = CASE.data(4, torch.float64)
    batch["labels"] = torch.full_like(batch["labels"], IGNORED)
    program = hpir.compile_program(captured("ignored_tokens", 2), plan_for(CASE, "dp2", 1))
    result = hpir.simulate(program, captured("ignored_tokens", 2).state, batch)
    assert result.loss.isnan()
    assert result.grads["embed.weight"].isnan().all()


def test_reduced_precision_of_gradients() -> None:
    case = CASE
    plan = plan_for(case, "hsdp2x2", 2).model_dump(exclude_unset=True, by_alias=True)
    plan["fsdp"] |= {"param_dtype": "bfloat16", "reduce_dtype": "float32"}
    exported = captured("ignored_tokens", 2, torch.float32)
    program = hpir.compile_program(exported, plan)
    batch = case.data(16)
    result = hpir.simulate(program, exported.state, batch, check_types=True)
    expected = reference_step(case.model(), case.train, batch, data_ranks=4, microbatches=2)
    torch.testing.assert_close(result.loss.double(), expected.loss, rtol=1e-2, atol=0)
    for name, gradient in expected.grads.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(result.grads[name], gradient, rtol=0, atol=3e-2 * scale)


@pytest.mark.parametrize("plan", ("dp1", "dp3", "hsdp2x2"))
def test_check_compares_with_the_sums_divided_once(plan: str) -> None:
    exported = captured("ignored_tokens", 2)
    program = hpir.compile_program(exported, plan_for(CASE, plan, 2))
    batch = CASE.data(4 * data_ranks(plan))
    differences = check_program(program, exported.state, batch)
    assert {difference.kind for difference in differences} == {"loss", "grad"}
    assert not [difference for difference in differences if difference.differs]


def test_calls_of_the_step_accumulate_and_are_clipped_together() -> None:
    model, plain = CASE.model(torch.float64), CASE.model(torch.float64)
    batches = [CASE.data(4, torch.float64, seed=seed) for seed in (1, 2)]
    step = hpir.compile(model, CASE.train, batches[0], plan={"data": {"microbatches": 2}})
    for batch in batches:
        loss = step(**batch)
        expected = reference_step(plain, CASE.train, batch, microbatches=2)
        torch.testing.assert_close(loss, expected.loss, rtol=1e-12, atol=0)
    norm = step.clip_grad_norm_(0.1)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(plain.parameters(), 0.1), rtol=1e-12, atol=0)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-15)


@pytest.mark.everything
def test_the_inductor_backend_divides_too() -> None:
    model, plain = CASE.model(), CASE.model()
    batch = CASE.data(4)
    step = hpir.compile(model, CASE.train, batch, plan={"data": {"microbatches": 2}}, backend="inductor")
    expected = reference_step(plain, CASE.train, batch, microbatches=2)
    torch.testing.assert_close(step(**batch).double(), expected.loss, rtol=1e-5, atol=0)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)
