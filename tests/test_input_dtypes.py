"""Inputs, parameters and buffers of every dtype, and models that compute with complex numbers, against the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from complex_models import Spectral, train_numbers, train_signal, train_spectral
from models import reference_step
from torch import Tensor, nn

import hpir
from hpir.dialect.parsing import parse_module_file
from hpir.lowering.to_program import to_program

pytestmark = pytest.mark.one_in(2)

PLANS: dict[str, Any] = {
    "dp2": {"mesh": {"dp": 2}, "data": {"microbatches": 2}, "fsdp": {"axes": ["dp"]}},
    "hsdp2x2": {"mesh": {"rep": 2, "dp": 2}, "fsdp": {"axes": ["dp"], "replicate_axes": ["rep"]}},
    "ddp2": {"mesh": {"dp": 2}, "data": {"axes": ["dp"]}, "fsdp": {"axes": []}},
}


def double(model: nn.Module) -> nn.Module:
    """Move a model to double precision, complex parameters too."""
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is not None and tensor.is_complex():
                    wide = tensor.detach().to(torch.complex128)
                    store[name] = nn.Parameter(wide) if isinstance(tensor, nn.Parameter) else wide  # type: ignore[assignment]
                elif tensor is not None:
                    tensor.data = tensor.data.double()
    return model


def spectral() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return double(Spectral())


def linear() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(8, 8).double()


def rows_of(count: int) -> dict[str, Tensor]:
    return {"x": torch.randn(count, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}


def signals_of(count: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    signal = torch.randn(count, 8, generator=generator, dtype=torch.complex128)
    phase = torch.randn(8, generator=generator, dtype=torch.complex128)
    return {"signal": signal.conj(), "phase": phase}


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor], Callable[[int], dict[str, Tensor]], Any]] = {
    "spectral": (spectral, train_spectral, rows_of, 0),
    "numbers": (linear, train_numbers, rows_of, 0),
    "signal": (linear, train_signal, signals_of, {"phase": None}),
}


def assert_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-10) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("name", CASES)
def test_complex_models_equal_the_loop(name: str, tmp_path: Any) -> None:
    build, train, data, batch_dims = CASES[name]
    exported = hpir.export(build(), train, data(2), batch_dims=batch_dims)
    one = hpir.simulate(to_program(exported.module), exported.state, data(2), check_types=True)
    expected = reference_step(build(), train, data(2), batch_dims=batch_dims)
    torch.testing.assert_close(one.loss, expected.loss, rtol=1e-14, atol=0)
    assert_equal(one.grads, expected.grads, 1e-14)

    exported.save(tmp_path / "step.mlir")
    again = to_program(parse_module_file(tmp_path / "step.mlir"))
    assert again.digest == to_program(exported.module).digest

    for plan, keys in PLANS.items():
        ranks, microbatches = (4, 1) if plan == "hsdp2x2" else (2, keys.get("data", {}).get("microbatches", 1))
        batch = data(2 * ranks * microbatches)
        program = hpir.compile_program(exported, keys)
        result = hpir.simulate(program, exported.state, batch, check_types=True)
        expected = reference_step(
            build(), train, batch, data_ranks=ranks, microbatches=microbatches, batch_dims=batch_dims
        )
        torch.testing.assert_close(result.loss, expected.loss, rtol=1e-10, atol=0)
        assert_equal(result.grads, expected.grads)


@pytest.mark.parametrize("name", CASES)
def test_cleanups_change_no_complex_result(name: str) -> None:
    build, train, data, batch_dims = CASES[name]
    exported = hpir.export(build(), train, data(2), batch_dims=batch_dims)
    before = hpir.simulate(to_program(exported.module), exported.state, data(2))
    for pipeline in ("cse", "canonicalize", "hp-simplify", "canonicalize,cse,hp-simplify"):
        module = exported.module.operation.clone()
        hpir.run_passes(module, pipeline)
        after = hpir.simulate(to_program(module), exported.state, data(2))
        assert torch.equal(after.loss, before.loss)
        assert all(torch.equal(after.grads[key], value) for key, value in before.grads.items())


def test_single_precision_complex_parameters_keep_their_dtype() -> None:
    model = Spectral()
    batch = {"x": torch.randn(8, 8)}
    exported = hpir.export(model, train_spectral, {"x": batch["x"][:2]})
    result = hpir.simulate(hpir.compile_program(exported, PLANS["dp2"]), exported.state, batch, check_types=True)
    expected = reference_step(model, train_spectral, batch, data_ranks=2, microbatches=2)
    torch.testing.assert_close(result.loss.double(), expected.loss, rtol=1e-5, atol=0)
    assert_equal(result.grads, expected.grads, 1e-5)
    assert result.grads["weight"].dtype == torch.complex64


def test_a_compiled_step_trains_complex_parameters() -> None:
    plain, model, batch = spectral(), spectral(), rows_of(4)
    step = hpir.compile(model, train_spectral, batch, plan={"data": {"microbatches": 2}})
    optimisers = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (plain, model)]
    for _ in range(3):
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss = reference_step(plain, train_spectral, batch, microbatches=2).loss
        torch.testing.assert_close(step(**batch), loss, rtol=1e-10, atol=0)
        for optimiser in optimisers:
            optimiser.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


TOLERANCES = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-5, torch.complex64: 1e-5}


class Weighted(nn.Module):
    """Has a buffer of any dtype, and a parameter of it where it has gradients."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.linear = nn.Linear(3, 3).double()
        table = torch.tensor([1, 0, 1]).to(dtype)
        self.register_buffer("table", table)
        self.table: Tensor
        trained = dtype.is_floating_point or dtype.is_complex
        self.scale = nn.Parameter(table.clone(), requires_grad=trained)


def train_weighted(model: Weighted, x: Tensor, y: Tensor) -> Tensor:
    """Everything of the dtype takes part: moved to real doubles."""

    def real(value: Tensor) -> Tensor:
        return (torch.view_as_real(value).sum(-1) if value.is_complex() else value).to(torch.float64)

    loss: Tensor = (model.linear(x) * real(y) * real(model.table) * real(model.scale)).square().mean()
    return loss


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inputs_parameters_and_buffers_of_every_dtype(dtype: torch.dtype) -> None:
    def data(rows: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1)
        values = torch.randint(0, 3, (rows, 3), generator=generator)
        return {"x": torch.randn(rows, 3, generator=generator, dtype=torch.float64), "y": values.to(dtype)}

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Weighted(dtype)
    exported = hpir.export(model, train_weighted, data(2))
    for plan, ranks, microbatches in ((None, 1, 1), (PLANS["dp2"], 2, 2)):
        batch = data(2 * ranks * microbatches)
        result = hpir.simulate(hpir.compile_program(exported, plan), exported.state, batch, check_types=True)
        for parameter in model.parameters():
            parameter.grad = None
        expected = reference_step(model, train_weighted, batch, data_ranks=ranks, microbatches=microbatches)
        torch.testing.assert_close(result.loss, expected.loss, rtol=1e-10, atol=0)
        for name, gradient in expected.grads.items():
            tolerance = TOLERANCES.get(dtype, 1e-10) if name == "scale" else 1e-10
            torch.testing.assert_close(result.grads[name], gradient, rtol=tolerance, atol=tolerance)


UNKNOWN = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", UNKNOWN, ids=str)
def test_dtypes_that_the_ir_has_no_type_for_are_refused_by_name(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")

    def train(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = model(x).mean() * y.to(torch.float64).mean()
        return loss

    batch = {"x": torch.ones(2, 8, dtype=torch.float64), "y": torch.ones(2).to(dtype)}
    with pytest.raises(hpir.CaptureError, match=f"input 'y' has dtype {name}, which .*: convert it before the step"):
        hpir.export(linear(), train, batch)
    model = linear()
    model.register_buffer("table", torch.ones(2).to(dtype))
    with pytest.raises(
        hpir.CaptureError, match=f"buffer 'table' has dtype {name}, which .*: convert it before"
    ) as error:
        hpir.export(model, lambda model, x: model(x).mean() * model.table.double().mean(), {"x": batch["x"]})
    assert str(error.value).startswith(f"{__file__}:")

    def cast(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x).to(dtype)  # here
        loss: Tensor = y.double().mean() + model(x).mean()
        return loss

    with pytest.raises(hpir.CaptureError, match=rf":\d+: .*{name}") as error:
        hpir.export(linear(), cast, {"x": batch["x"]})
    assert str(error.value).startswith(f"{__file__}:{cast.__code__.co_firstlineno + 1}: ")
