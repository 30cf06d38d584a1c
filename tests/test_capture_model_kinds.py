"""Models that a compiled step would train differently from eager torch: each is refused by name, with advice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from models import train_regression
from torch import Tensor, nn

import hpir

BATCH = {"x": torch.randn(4, 6), "y": torch.randn(4, 6)}


class Pair(nn.Module):
    """Two linear layers, changed by `change`."""

    def __init__(self, change: Callable[[Pair], object] = lambda model: None):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        change(self)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.tanh(self.first(x)))
        return y


def _share_a_row(model: Pair) -> None:
    model.row = nn.Parameter(model.first.weight.detach()[0])


def _tie_by_data(model: Pair) -> None:
    model.second.weight.data = model.first.weight.data


def _buffer_of_parameter(model: Pair) -> None:
    model.register_buffer("row", model.first.weight.detach().t()[0])


def _replace(name: str, module: Callable[[], nn.Module]) -> Callable[[Pair], object]:
    return lambda model: setattr(model, name, module())


REFUSED: tuple[tuple[str, Callable[[Pair], object], str], ...] = (
    (
        "backward hook",
        lambda model: model.second.register_full_backward_hook(lambda *_: None),
        "module 'second' has a backward hook, which a compiled step would not call: use a torch.autograd.Function",
    ),
    (
        "backward pre-hook",
        lambda model: model.register_full_backward_pre_hook(lambda *_: None),
        "the model has a backward hook",
    ),
    (
        "scripted",
        lambda model: setattr(model, "second", torch.jit.script(model.second)),
        "module 'second' is scripted, which cannot be captured: give the Python module that it was made from",
    ),
    (
        "data parallel",
        _replace("second", lambda: nn.DataParallel(nn.Linear(6, 6))),
        "module 'second' is wrapped for data parallel training already: give the module inside it",
    ),
    (
        "synchronised batch norm",
        _replace("second", lambda: nn.SyncBatchNorm(6)),
        "module 'second' is a SyncBatchNorm, .* use BatchNorm",
    ),
    (
        "averaging batch norm",
        _replace("second", lambda: nn.BatchNorm1d(6, momentum=None)),
        "module 'second' is a BatchNorm with momentum=None, .* give it a momentum",
    ),
    (
        "sparse gradients",
        _replace("table", lambda: nn.Embedding(3, 6, sparse=True)),
        "module 'table' makes sparse gradients, .* sparse=False",
    ),
    (
        "quantized",
        _replace("second", lambda: torch.ao.nn.quantized.dynamic.Linear(6, 6)),  # type: ignore[no-untyped-call]
        "module 'second' is quantized, which cannot be captured: train the floating-point model",
    ),
    (
        "lazy",
        _replace("second", lambda: nn.LazyLinear(6)),
        "'second.weight' is not initialised: run the model once on an example batch first",
    ),
    (
        "view of a parameter as a parameter",
        _share_a_row,
        "'row' and 'first.weight' share memory|'first.weight' and 'row' share memory",
    ),
    ("tied by data", _tie_by_data, "'first.weight' and 'second.weight' share memory, .*: share one parameter"),
    ("buffer of a parameter", _buffer_of_parameter, "share memory, .*: compute the view in forward"),
)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize(("change", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_would_be_trained_differently_is_refused_by_name(change: Callable[[Pair], object], message: str) -> None:
    with pytest.raises(hpir.CaptureError, match=message) as error:
        hpir.export(Pair(change), train_regression, BATCH)
    code = train_regression.__code__
    assert str(error.value).startswith(f"{code.co_filename}:{code.co_firstlineno}: ")


def test_evaluated_norms_and_hooks_of_the_forward_are_no_reason_to_refuse() -> None:
    model = Pair(_replace("second", lambda: nn.SyncBatchNorm(6)))
    model.second.eval()
    model.first.register_forward_hook(lambda module, inputs, output: output * 2)
    assert hpir.export(model, train_regression, BATCH).module is not None


def test_parameters_side_by_side_in_one_storage_are_their_own() -> None:
    flat = torch.randn(6, 12)

    def columns(model: Pair) -> None:
        model.first.weight, model.second.weight = nn.Parameter(flat[:, :6]), nn.Parameter(flat[:, 6:])

    model = Pair(columns)
    exported = hpir.export(model, train_regression, BATCH)
    result = hpir.simulate(hpir.compile_program(exported), exported.state, BATCH)
    torch.autograd.backward(train_regression(model, **BATCH))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(result.grads[name], parameter.grad)


def test_a_step_function_that_is_a_module_has_no_parameters_of_its_own() -> None:
    class Criterion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return train_regression(model, x, y) * self.scale

    with pytest.raises(hpir.CaptureError, match="step function is a module that holds 'scale': make it part of the"):
        hpir.export(Pair(), Criterion(), BATCH)
