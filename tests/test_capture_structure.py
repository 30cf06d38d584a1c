"""Shapes that models have: names, sharing, hooks, methods, functional transforms; and a step on two real ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from capture_check import PLAN, assert_captured, assert_close, build_model, regression
from distributed_case import run_ranks
from models import reference_step, train_regression
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import hpir

pytestmark = pytest.mark.one_in(2)

BATCH = regression(6, 6)


class Pair(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def encode(self, x: Tensor) -> Tensor:
        y: Tensor = torch.tanh(self.first(x))
        return y

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.encode(x))
        return y


class Names(nn.Module):
    """Names that are no identifiers, and such that look like torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(6, 6) for name in ("layer 1", "a-b", "größe", "1")})
        self.list = nn.ParameterList([nn.Parameter(torch.randn(6)) for _ in range(2)])
        self.dict = nn.ParameterDict({"k 1": torch.randn(6), "ключ": torch.randn(6)})
        self.model = nn.Linear(6, 6)
        self.add_module("it's", nn.Linear(6, 6))
        self.register_parameter('p"q\\', nn.Parameter(torch.randn(6)))
        self.register_buffer("b c", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = torch.tanh(layer(x))
        for scale in self.list:
            x = x * scale
        for shift in self.dict.values():
            x = x + shift
        y: Tensor = getattr(self, "it's")(self.model(x)) * getattr(self, 'p"q\\') * getattr(self, "b c")
        return y


class Shared(nn.Module):
    """A parameter under three names, a module under two, and weights used without their module."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.b.weight = self.c.weight = self.a.weight
        norm = nn.BatchNorm1d(6)
        self.norms = nn.ModuleList([norm, nn.Tanh(), norm])
        self.table = nn.Embedding(6, 6)
        self.weights = [self.table.weight]

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = norm(x)
        return F.linear(self.c(self.b(torch.tanh(self.a(x)))), self.weights[0])


class Hooked(Pair):
    """Hooks of the forward change what modules take and give; one on a tensor changes its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
        self.first.register_forward_hook(lambda module, inputs, output: output * 3)
        self.register_forward_pre_hook(lambda module, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.encode(x)
        y.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]
        z: Tensor = self.second(y)
        return z


class Variadic(Pair):
    """Takes whatever it is given."""

    def forward(self, *args: Tensor, **kwargs: Any) -> Tensor:
        return super().forward(*args) * float(kwargs["scale"])


class Mapped(Pair):
    """Maps a function and its gradient over the rows."""

    def forward(self, x: Tensor) -> Tensor:
        def energy(row: Tensor) -> Tensor:
            return super(Mapped, self).forward(row).square().sum()

        forces: Tensor = torch.func.vmap(torch.func.grad(energy))(x)
        return forces


class Called(Pair):
    """Calls a layer with another layer's weights."""

    def forward(self, x: Tensor) -> Tensor:
        weights = {"weight": self.second.weight.t(), "bias": self.first.bias}
        y: Tensor = torch.func.functional_call(self.first, weights, (x,))
        return y


class CompiledWithin(Pair):
    """One layer is compiled on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.compile(self.first, backend="eager")  # type: ignore[assignment]


def train_methods(model: Any, x: Tensor, y: Tensor) -> Tensor:
    """Call a method that is not forward."""
    loss: Tensor = F.mse_loss(model.encode(x), y)
    return loss


def train_variadic(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Give more than is used."""
    return F.mse_loss(model(x, scale=2.0, other=None), y)


def train_penalty(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A penalty on the gradient of the model's output with respect to its input."""
    gradient = torch.func.grad(lambda inputs: model(inputs).sum())(x)
    loss: Tensor = train_regression(model, x, y) + gradient.square().mean()
    return loss


class Trainer:
    """Step functions that are no functions."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return train_regression(model, x, y) * 2

    def step(self, model: nn.Module, x: Tensor, y: Tensor, scale: float = 3.0) -> Tensor:
        return train_regression(model, x, y) * scale


def _compiled() -> nn.Module:
    model: Any = torch.compile(Pair(), backend="eager")
    assert isinstance(model, nn.Module)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
    "names": (Names, train_regression),
    "sharing": (Shared, train_regression),
    "hooks": (Hooked, train_regression),
    "another method": (Pair, train_methods),
    "variadic": (Variadic, train_variadic),
    "vmap of grad": (Mapped, train_regression),
    "functional_call": (Called, train_regression),
    "gradient penalty": (Pair, train_penalty),
    "compiled": (_compiled, train_regression),
    "compiled within": (CompiledWithin, train_regression),
    "evaluated": (lambda: Shared().eval(), train_regression),
    "callable": (Pair, Trainer()),
    "bound method": (Pair, Trainer().step),
    "partial": (Pair, functools.partial(Trainer().step, scale=0.5)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_every_shape(name: str) -> None:
    assert_captured(*MODELS[name], BATCH)


def test_parameters_of_several_dtypes() -> None:
    class Mixed(Pair):
        def __init__(self) -> None:
            super().__init__()
            self.first.half()
            self.scale = nn.Parameter(torch.ones(6, dtype=torch.bfloat16))

        def to(self, *args: Any, **kwargs: Any) -> Mixed:
            return self

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.second(self.first(x.half()).float() * self.scale)
            return y

    assert_captured(Mixed, train_regression, BATCH, dtype=torch.float32, tolerance=1e-2)


def test_tensors_that_are_not_the_models_are_not_trained_silently() -> None:
    batch = {name: leaf.float() for name, leaf in BATCH.items()}
    other = nn.Linear(6, 6)

    def with_other(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(model(x), other(y))

    with pytest.raises(hpir.CaptureError, match="a tensor that requires a gradient is not the model's"):
        hpir.export(Pair(), with_other, batch)
    other.requires_grad_(False)
    assert hpir.export(Pair(), with_other, batch).module is not None

    model: Any = Pair()
    model.row = model.first.weight.detach()[0]
    with pytest.raises(hpir.CaptureError, match=r"shares memory with 'first.weight', .*: compute the view in forward"):
        hpir.export(model, lambda model, x, y: F.mse_loss(model(x) * model.row, y), batch)


class Everything(nn.Module):
    """One of each for real ranks: a recurrent layer, a region, a parametrization, assigned state, names, sharing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"layer 1": nn.Linear(6, 6), "a-b": nn.Linear(6, 6)})
        self.layers["a-b"].weight = self.layers["layer 1"].weight
        parametrizations.spectral_norm(self.layers["layer 1"])
        self.recurrent = nn.GRU(6, 6, batch_first=True)
        self.register_buffer("mean", torch.zeros(6))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers["layer 1"](checkpoint(lambda x: torch.tanh(self.layers["a-b"](x)), x, use_reentrant=False))
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        states, _ = self.recurrent((x - self.mean).unsqueeze(1))
        y: Tensor = states[:, 0]
        return y


def step_on_rank(rank: int) -> dict[str, Tensor]:
    """Run one step; return loss, gradients and buffers as full tensors."""
    model = build_model(Everything)
    batch = {name: leaf.double().chunk(2)[rank] for name, leaf in BATCH.items()}
    step = hpir.compile(model, train_regression, batch, plan=PLAN)
    found = {"loss": step(**batch)}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None
        found[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    found.update({name: buffer.clone() for name, buffer in model.named_buffers()})
    return found


@pytest.mark.timeout(180)
def test_on_two_processes() -> None:
    results = run_ranks(step_on_rank, 2)
    batch = {name: leaf.double() for name, leaf in BATCH.items()}
    expected = reference_step(build_model(Everything), train_regression, batch, data_ranks=2, microbatches=2)
    for found in results:
        assert_close(found["loss"], expected.loss, 1e-10, "loss")
        for name, gradient in expected.grads.items():
            if name in found:
                assert_close(found[name], gradient, 1e-10, name)
    for name, buffer in expected.buffers.items():
        assert_close(results[0][name], buffer, 1e-10, name)
