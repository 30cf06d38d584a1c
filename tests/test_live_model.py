"""A model that was changed after its step was made: refused by name where the step would not train it as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hpir

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def train(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def build() -> nn.Sequential:
    return nn.Sequential(nn.Sequential(nn.Linear(3, 4)), nn.BatchNorm1d(4))


def linear(model: nn.Sequential) -> nn.Linear:
    found = model.get_submodule("0.0")
    assert isinstance(found, nn.Linear)
    return found


def to_double(model: nn.Sequential) -> None:
    model.double()


def other_shape(model: nn.Sequential) -> None:
    linear(model).weight = nn.Parameter(torch.ones(5, 3))


def double_buffer(model: nn.Sequential) -> None:
    model[1].running_mean = torch.zeros(4, dtype=torch.float64)


def no_buffer(model: nn.Sequential) -> None:
    setattr(model[1], "running_mean", None)  # noqa: B010


def replace_module(model: nn.Sequential) -> None:
    model.set_submodule("0.0", nn.Linear(3, 4))


def replace_parent(model: nn.Sequential) -> None:
    model[0] = nn.Sequential(nn.Linear(3, 4))


def remove_module(model: nn.Sequential) -> None:
    del model[1]


def parametrize(model: nn.Sequential) -> None:
    nn.utils.parametrizations.weight_norm(linear(model))


CHANGES: tuple[tuple[Callable[[nn.Sequential], None], str], ...] = (
    (
        to_double,
        r"parameter '0.0.weight': the step was compiled for float32\[4, 3\], got: float64\[4, 3\]: it was",
    ),
    (
        other_shape,
        r"parameter '0.0.weight': the step was compiled for float32\[4, 3\], got: float32\[5, 3\]: it was",
    ),
    (
        double_buffer,
        r"buffer '1.running_mean': the step was compiled for float32\[4\], got: float64\[4\]: it was",
    ),
    (no_buffer, r"buffer '1.running_mean': the step was compiled for float32\[4\], got: None: it was changed"),
    (replace_module, "module '0.0' of the model was replaced after compile, the step still has the old one"),
    (replace_parent, "module '0' of the model was replaced after compile"),
    (remove_module, "module '1' of the model was replaced after compile"),
    (parametrize, "parameter '0.0.weight' is gone from the model: it was replaced after compile"),
)


@pytest.mark.parametrize(("change", "message"), CHANGES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_model_changed_after_compile_is_refused_by_name(
    change: Callable[[nn.Sequential], None], message: str
) -> None:
    model = build()
    step = hpir.compile(model, train, {"x": X})
    step(x=X)
    change(model)
    for run in (step, step.evaluate):
        with pytest.raises(hpir.RuntimeFault, match=message):
            run(x=X)
    assert step.steps == 1


def test_what_keeps_the_models_form_is_trained_as_it_is() -> None:
    model, plain = build(), build()
    plain.load_state_dict(model.state_dict())
    step = hpir.compile(model, train, {"x": X})
    for each in (model, plain):
        linear(each).weight = nn.Parameter(torch.full((4, 3), 0.5))
        each.double().float()
    loss = train(plain, X)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(step(x=X), loss.detach())
    torch.testing.assert_close(linear(model).weight.grad, linear(plain).weight.grad)
