"""Custom autograd functions: numbers as in eager torch; what would change the forward's results is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture_check import assert_captured, regression
from models import train_regression
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch_mlir import ir

import hpir
from hpir.dialect.signature import body_of, step_functions
from hpir.ir_passes.phases import BACKWARD, Phases

pytestmark = pytest.mark.one_in(2)

BATCH = regression(6, 6)


class Saved(torch.autograd.Function):
    """Saves input and output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, y = ctx.saved_tensors
        return gradients[0] * (y + 0.1 * x)


class Scaled(torch.autograd.Function):
    """Takes values that are no tensors, and a wrong gradient on purpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, name: str) -> Tensor:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.factor * 2, None, None


class Product(torch.autograd.Function):
    """Gives None where no gradient is needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = ctx.saved_tensors
        of_x = gradients[0] * weight if ctx.needs_input_grad[0] else None
        return of_x, gradients[0] * x if ctx.needs_input_grad[1] else None


class Once(torch.autograd.Function):
    """Differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.saved_tensors[0].cos() * 1.5


class Sorted(torch.autograd.Function):
    """Has a second output without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, order = x.sort(dim=-1)
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return values, order

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.zeros_like(gradients[0]).scatter(-1, ctx.saved_tensors[0], gradients[0])


class Two(torch.autograd.Function):
    """Has two outputs, of which one may get no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        first, second = gradients
        return first * 2 if second is None else first * 2 + second * 4


class Dirty(torch.autograd.Function):
    """Changes its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 5


class SetUp(torch.autograd.Function):
    """Has its context set up apart."""

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.factor = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.factor * ctx.saved_tensors[0], None


class ChangesSaved(torch.autograd.Function):
    """Its backward changes the output that the forward saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (y,) = ctx.saved_tensors
        return y.mul_(gradients[0])


class ChangesInput(torch.autograd.Function):
    """Its backward changes the input that the forward saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = ctx.saved_tensors
        of_x, of_weight = gradients[0] @ weight.t(), x.t() @ gradients[0]
        x.mul_(0.5)
        return of_x, of_weight


class ChangesGradient(torch.autograd.Function):
    """Its backward changes the gradient it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].mul_(3)


class Around(nn.Module):
    """A function between two linear layers, what it takes and gives being used once more."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.weight = nn.Parameter(torch.randn(6))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z = self.function(y + 0, self.weight)
        out: Tensor = self.second(z) + y + z * self.weight
        return out


def _apply(function: Any, *values: Any) -> Any:
    return function.apply(*values)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "saved tensors": lambda y, weight: _apply(Saved, y),
    "other arguments": lambda y, weight: _apply(Scaled, y, 2.5, "name"),
    "needs_input_grad": lambda y, weight: _apply(Product, y, weight),
    "needs_input_grad of one": lambda y, weight: _apply(Product, y, weight.detach()),
    "once_differentiable": lambda y, weight: _apply(Once, y),
    "mark_non_differentiable": lambda y, weight: sum(_apply(Sorted, y), torch.zeros_like(y)),
    "two outputs": lambda y, weight: sum(_apply(Two, y), torch.zeros_like(y)),
    "one of two outputs": lambda y, weight: _apply(Two, y)[0],
    "mark_dirty": lambda y, weight: _apply(Dirty, y),
    "setup_context": lambda y, weight: _apply(SetUp, y, 1.5),
    "backward changes what was saved": lambda y, weight: _apply(ChangesSaved, y),
    "backward changes its gradient": lambda y, weight: _apply(ChangesGradient, y),
    "backward changes an input": lambda y, weight: _apply(ChangesInput, y, weight.diag()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_custom_functions(name: str) -> None:
    assert_captured(lambda: Around(FUNCTIONS[name]), train_regression, BATCH)


def changed_loss(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    return _apply(ChangesSaved, train_regression(model, x, y))


def changed_output(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    found = _apply(ChangesSaved, model(x))
    return nn.functional.mse_loss(found, y), {"found": found}


def changed_input(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    return nn.functional.mse_loss(_apply(ChangesInput, x, model.weight), y)


def changed_parameter(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    return nn.functional.mse_loss(_apply(ChangesInput, model.weight, x.t()), y.t()[:6, :6].mean())


@pytest.mark.parametrize(
    ("train", "what"),
    (
        (changed_loss, "the loss"),
        (changed_output, "an output of the step"),
        (changed_input, "an input"),
        (changed_parameter, "'weight'"),
    ),
)
@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
def test_a_backward_that_changes_results_or_inputs_is_refused(train: Callable[..., Any], what: str) -> None:
    with pytest.raises(hpir.CaptureError, match=f"the backward changes {what} in place: compute a new tensor") as error:
        hpir.export(nn.Linear(6, 6), train, {name: leaf.float() for name, leaf in BATCH.items()})
    assert str(error.value).startswith(f"{__file__}:")


class SavedLayers(nn.Module):
    """A function with a backward of its own between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(_apply(Saved, self.first(x)))
        return y


def test_what_a_functions_own_backward_makes_of_gradients_is_of_the_backward() -> None:
    exported = hpir.export(SavedLayers(), train_regression, BATCH)
    (function,) = step_functions(exported.module.operation)
    phases = Phases(function)
    backward: set[ir.Value] = set()
    for view in body_of(function).operations:
        op = view.operation
        if op.name == "func.return" or not any("tensor" in str(result.type) for result in op.results):
            continue
        if phases.of(op) == BACKWARD:
            backward.update(op.results)
        else:
            assert not any(operand in backward for operand in op.operands), str(op)
    assert backward
