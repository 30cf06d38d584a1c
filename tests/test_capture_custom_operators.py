"""Custom operators: kept as they are in the IR and the Program, called only where their namespace is allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from capture_check import assert_captured, build_model, regression
from models import train_regression
from torch import Tensor, nn

import hpir

BATCH = regression(6, 6)
DOUBLE = {name: leaf.double() for name, leaf in BATCH.items()}
NAMESPACE = "hpir_test_operators"


@torch.library.custom_op(f"{NAMESPACE}::blend", mutates_args=())
def blend(
    x: Tensor, others: Sequence[Tensor], bias: Tensor | None, dims: Sequence[int], name: str, *, scale: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Return two mixtures."""
    total = x * scale
    for other in others:
        total = total + other
    return (total.clone() if bias is None else total + bias), x * len(dims)


@blend.register_fake
def _blend_fake(
    x: Tensor, others: Any, bias: Any, dims: Any, name: str, *, scale: float = 2.0
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _blend_setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.others, ctx.biased, ctx.dims = len(inputs[1]), inputs[2] is not None, len(inputs[3])
    ctx.scale = keyword_only_inputs["scale"]


def _blend_backward(ctx: Any, first: Tensor, second: Tensor) -> Any:
    bias = first.sum(0) if ctx.biased else None
    return first * ctx.scale + second * ctx.dims, [first.clone() for _ in range(ctx.others)], bias, None, None


blend.register_autograd(_blend_backward, setup_context=_blend_setup)

LIBRARY: Any = cast(Any, torch.library).Library(NAMESPACE, "FRAGMENT")
LIBRARY.define("twice(Tensor x, *, int factor=2) -> Tensor")
LIBRARY.impl("twice", lambda x, factor=2: x * factor, "CompositeExplicitAutograd")
torch.library.register_fake(f"{NAMESPACE}::twice", lambda x, factor=2: torch.empty_like(x), lib=LIBRARY)
torch.library.register_autograd(
    f"{NAMESPACE}::twice",
    lambda ctx, gradient: gradient * ctx.factor,
    setup_context=lambda ctx, inputs, keyword_only_inputs, output: setattr(
        ctx, "factor", keyword_only_inputs["factor"]
    ),
    lib=LIBRARY,
)


@torch.library.custom_op(f"{NAMESPACE}::fill", mutates_args=("out",))
def fill(x: Tensor, out: Tensor) -> None:
    """Fill `out`."""
    out.copy_(x * 2)


@fill.register_fake
def _fill_fake(x: Tensor, out: Tensor) -> None:
    return None


@torch.library.custom_op(f"{NAMESPACE}::pieces", mutates_args=())
def pieces(x: Tensor) -> list[Tensor]:
    """Return a list."""
    return [x * 1, x * 2]


@pieces.register_fake
def _pieces_fake(x: Tensor) -> list[Tensor]:
    return [torch.empty_like(x), torch.empty_like(x)]


pieces.register_autograd(lambda ctx, gradients: gradients[0] + 2 * gradients[1])


class Around(nn.Module):
    """An operator between two linear layers."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.first, self.second, self.bias = nn.Linear(6, 6), nn.Linear(6, 6), nn.Parameter(torch.randn(6))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.function(self.first(x), self.bias))
        return y


def with_all(y: Tensor, bias: Tensor) -> Tensor:
    first, second = blend(y, [y * 2, y + 1], bias, [1, 2], "name", scale=0.5)
    mixed: Tensor = first + second
    return mixed


def without_bias(y: Tensor, bias: Tensor) -> Tensor:
    first, second = blend(y, [y * 2], None, [1], "name")
    mixed: Tensor = first * second + bias
    return mixed


def defined(y: Tensor, bias: Tensor) -> Tensor:
    twice: Tensor = getattr(torch.ops, NAMESPACE).twice(y, factor=3)
    return twice + bias


def filled(y: Tensor, bias: Tensor) -> Tensor:
    out = torch.empty_like(y)
    fill(y.detach(), out)  # here
    return out * y + bias


def listed(y: Tensor, bias: Tensor) -> Tensor:
    first, second = pieces(y)  # here
    mixed: Tensor = first + second + bias
    return mixed


@pytest.mark.parametrize("function", (with_all, without_bias, defined))
def test_custom_operators(function: Callable[..., Tensor]) -> None:
    exported = assert_captured(lambda: Around(function), train_regression, BATCH, allow=[NAMESPACE])
    assert f'torch.operator "torch.{NAMESPACE}.' in exported.text()


def test_a_namespace_that_is_not_allowed_is_named() -> None:
    exported = hpir.export(build_model(lambda: Around(defined)), train_regression, DOUBLE)
    with pytest.raises(hpir.RuntimeFault, match=rf"name its namespace in allow=\['{NAMESPACE}'\] if you trust it"):
        hpir.compile_program(exported)


@pytest.mark.parametrize(
    ("function", "line", "message"),
    (
        (filled, 2, r"custom operator '.*fill.*' changes an argument in place, .*: let it return the new tensor"),
        (listed, 1, r"custom operator '.*pieces.*' returns a list, .*: let it return a tuple of tensors"),
    ),
)
def test_operators_without_a_form_in_the_ir_are_refused_at_the_line(
    function: Callable[..., Tensor], line: int, message: str
) -> None:
    with pytest.raises(hpir.CaptureError, match=message) as error:
        hpir.export(build_model(lambda: Around(function)), train_regression, DOUBLE)
    assert str(error.value).startswith(f"{__file__}:{function.__code__.co_firstlineno + line}: ")
