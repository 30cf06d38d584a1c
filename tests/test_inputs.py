"""Inputs of every structure: the step function is given objects of the user's types, and a step equals the loop."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from input_cases import KINDS, STATIC, Checked, Copying, Mode, Spent
from models import Reference, reference_step
from torch import Tensor, nn

import hpir
from hpir.lowering.exported import Exported
from hpir.runtime.program import Program
from hpir.runtime.trees import flatten_batch

pytestmark = pytest.mark.one_in(2)

DP2 = {"mesh": {"dp": 2}, "data": {"microbatches": 2}, "fsdp": {"axes": ["dp"]}}


def model_of() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(3, 3).double()


def rows_of(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, w = torch.randn(2, count, 3, generator=generator, dtype=torch.float64)
    return x, w


def loop(kind: str, count: int, ranks: int, microbatches: int) -> Reference:
    make, train = KINDS[kind]
    x, w = rows_of(count)
    return reference_step(
        model_of(),
        lambda model, x, w: train(model, **make(x, w)),
        {"x": x, "w": w},
        data_ranks=ranks,
        microbatches=microbatches,
    )


def exported_of(kind: str, rows: int = 2) -> Exported:
    make, train = KINDS[kind]
    return hpir.export(model_of(), train, make(*rows_of(rows)))


def assert_equal(result: Any, expected: Reference, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(result.loss, expected.loss, rtol=tolerance, atol=0)
    assert set(result.grads) == set(expected.grads)
    for name, gradient in expected.grads.items():
        torch.testing.assert_close(result.grads[name], gradient, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_on_any_structure_equals_the_loop(kind: str, tmp_path: Any) -> None:
    make, _ = KINDS[kind]
    exported = exported_of(kind)
    one = hpir.simulate(hpir.compile_program(exported), exported.state, make(*rows_of(2)))
    expected = loop(kind, 2, 1, 1)
    assert torch.equal(one.loss, expected.loss)
    assert all(torch.equal(one.grads[name], gradient) for name, gradient in expected.grads.items())

    hpir.compile_program(exported, DP2).save(tmp_path / "prog")
    program = Program.load(tmp_path / "prog")
    assert_equal(hpir.simulate(program, exported.state, make(*rows_of(8))), loop(kind, 8, 2, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_step_takes_the_same_structure(kind: str) -> None:
    make, train = KINDS[kind]
    batch = make(*rows_of(4))
    step = hpir.compile(model_of(), train, batch, plan={"data": {"microbatches": 2}})
    expected = loop(kind, 4, 1, 2)
    torch.testing.assert_close(step.evaluate(**batch)[0], expected.loss)
    torch.testing.assert_close(step(**batch), expected.loss)
    for name, parameter in step.named_parameters():
        torch.testing.assert_close(parameter.grad, expected.grads[name])


def test_python_values_are_kept_by_path_exactly(tmp_path: Any) -> None:
    from hpir.dialect.parsing import parse_module_file
    from hpir.lowering.to_program import to_program

    exported = exported_of("values")
    text = exported.text()
    assert 'flag = true, huge = {int = "1180591620717411303424"}, mode = {enum = "Mode.EXACT"}' in text
    assert 'name = "a.b", nothing, phase = {complex = [1.000000e+00, -3.000000e-01]}, rate = 1.000000e-01 : f64' in text
    exported.save(tmp_path / "step.mlir")
    program = to_program(parse_module_file(tmp_path / "step.mlir"))
    assert program.static_inputs == to_program(exported.module).static_inputs
    assert {name: program.static_inputs[name] for name in ("flag", "count", "rate", "phase", "huge", "sizes.1")} == {
        "flag": True,
        "count": 3,
        "rate": 0.1,
        "phase": 1 - 0.3j,
        "huge": 2**70,
        "sizes.1": 2,
    }
    program.save(tmp_path / "prog")
    loaded = Program.load(tmp_path / "prog")
    assert loaded.static_inputs == program.static_inputs
    assert loaded.digest == program.digest


CHANGED: tuple[tuple[str, Any, str], ...] = (
    ("flag", 1, "'flag': the step was compiled for the value True, got: 1;"),
    ("count", 3.0, "'count': the step was compiled for the value 3, got: 3.0;"),
    ("count", True, "'count': the step was compiled for the value 3, got: True;"),
    ("rate", 0.10000000000000002, "'rate': the step was compiled for the value 0.1, got: 0.10000000000000002;"),
    ("phase", 1 + 0.3j, r"'phase': the step was compiled for the value \(1-0.3j\), got: \(1\+0.3j\);"),
    ("name", "a.c", "'name': the step was compiled for the value 'a.b', got: 'a.c';"),
    ("mode", Mode.FAST, "'mode': the step was compiled for the value Mode.EXACT, got: Mode.FAST;"),
    ("dtype", torch.float32, "'dtype': the step was compiled for the value torch.float64, got: torch.float32;"),
    ("sizes", [1, 3], "'sizes.1': the step was compiled for the value 2, got: 3;"),
    ("nothing", torch.ones(2), r"'nothing': the step was compiled for the value None, got: float32\[2\];"),
    ("w", None, r"'w'.*: .*float64\[2, 3\], got: None"),
    ("x", 0.5, r"'x'.*: .*float64\[2, 3\], got: 0.5"),
    ("x", torch.ones(2, 3).numpy(), r"'x'.* got: ndarray \(of numpy: torch.from_numpy makes it a tensor\)"),
)


@pytest.mark.parametrize(("name", "value", "message"), CHANGED, ids=lambda value: str(value)[:12])
def test_a_changed_value_is_refused_never_stale(name: str, value: Any, message: str) -> None:
    make, train = KINDS["values"]
    batch = {**make(*rows_of(2)), name: value}
    exported = exported_of("values")
    program = hpir.compile_program(exported)
    step = hpir.compile(model_of(), train, make(*rows_of(2)))
    from hpir.lowering.check import check_program

    for run in (
        lambda: hpir.simulate(program, exported.state, batch),
        lambda: check_program(program, exported.state, batch),
        lambda: step(**batch),
        lambda: step.evaluate(**batch),
    ):
        with pytest.raises(hpir.RuntimeFault, match=message) as error:
            run()
        if "compiled for the value" in message:
            assert "pass a tensor for what changes from step to step, or compile again" in str(error.value)
    assert torch.isfinite(step(**make(*rows_of(2))))


@pytest.mark.parametrize("name", STATIC)
def test_a_missing_value_is_refused(name: str) -> None:
    make, _ = KINDS["values"]
    exported = exported_of("values")
    batch = {key: value for key, value in make(*rows_of(2)).items() if key != name}
    with pytest.raises(hpir.RuntimeFault, match=rf"missing input '{name}[.0-9]*': the step was compiled for the value"):
        hpir.simulate(hpir.compile_program(exported), exported.state, batch)


def test_a_value_where_none_was_compiled_is_refused() -> None:
    make, _ = KINDS["whole batch encoding"]
    exported = exported_of("whole batch encoding")
    for value in (None, 3, torch.ones(2)):
        with pytest.raises(hpir.RuntimeFault, match="unexpected input 'extra'"):
            hpir.simulate(hpir.compile_program(exported), exported.state, {**make(*rows_of(2)), "extra": value})


def test_a_second_capture_sees_the_second_value() -> None:
    def train(model: nn.Module, x: Tensor, scale: float, count: int) -> Tensor:
        loss: Tensor = (model(x) * scale).mean() * count
        return loss

    x = rows_of(2)[0]
    for scale, count in ((0.5, 2), (0.25, 3), (float("inf"), 4), (-0.0, 5)):
        batch: dict[str, Any] = {"x": x, "scale": scale, "count": count}
        exported = hpir.export(model_of(), train, batch)
        result = hpir.simulate(hpir.compile_program(exported), exported.state, batch)
        torch.testing.assert_close(result.loss, train(model_of(), **batch).detach(), rtol=0, atol=0, equal_nan=True)


def test_a_nan_and_the_sign_of_zero_are_values() -> None:
    def train(model: nn.Module, x: Tensor, fill: float, zero: float) -> Tensor:
        loss: Tensor = model(x.nan_to_num(fill)).mean() + zero
        return loss

    batch = {"x": rows_of(2)[0], "fill": float("nan"), "zero": 0.0}
    exported = hpir.export(model_of(), train, batch)
    program = hpir.compile_program(exported)
    assert torch.equal(
        hpir.simulate(program, exported.state, {**batch, "fill": float("nan")}).loss,
        hpir.simulate(program, exported.state, copy.deepcopy(batch)).loss,
    )
    with pytest.raises(hpir.RuntimeFault, match=r"'zero': the step was compiled for the value 0.0, got: -0.0"):
        hpir.simulate(program, exported.state, {**batch, "zero": -0.0})


def mean_of(model: nn.Module, x: Any) -> Tensor:  # here
    loss: Tensor = model(next(iter(flatten_batch({"x": x}).values()))).mean()
    return loss


X = torch.ones(2, 3, dtype=torch.float64)

UNFIT: tuple[tuple[Any, str], ...] = (
    (X.numpy(), r"input 'x' is a ndarray, expected a tensor, .* \(of numpy: torch.from_numpy makes it a tensor\)"),
    (X.numpy()[0, 0], r"input 'x' is a float64, .* \(of numpy: .item\(\) makes it a number\)"),
    ("\ud800", r"input 'x' is a str, expected a tensor, .* \(of characters that UTF-8 can encode\)"),
    ({"y": {1, 2}}, "input 'x.y' is a set, expected a tensor, a number, a string, None or a dict, list, tuple or"),
    ({"y": {0: X}}, "batch: key 0 in 'x.y' is of type int, expected a string"),
    ({"y.z": X}, "batch: key 'y.z' in 'x': expected a name without dots"),
    (Spent(X, 2.0), "input 'x' is a Spent that keeps 'scaled', which is no field, and whose constructor does not make"),
    (Copying({"y": X}), "attribute '_items' of 'x' is a tensor that is no item of it: give a plain dict"),
    (Checked, "input 'x' is a type, expected a tensor"),
    (X.clone().requires_grad_(), "input 'x' requires gradients, which a compiled step gives to parameters only"),
    (X.to_sparse(), "input 'x' is a tensor of layout torch.sparse_coo: give its values as dense tensors"),
)


@pytest.mark.parametrize(("x", "message"), UNFIT, ids=lambda value: type(value).__name__)
def test_what_cannot_be_an_input_is_refused_at_the_users_line(x: Any, message: str) -> None:
    with pytest.raises(hpir.CaptureError, match=message) as error:
        hpir.export(model_of(), mean_of, {"x": x})
    assert str(error.value).startswith(f"{__file__}:{mean_of.__code__.co_firstlineno}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["sparse", "csr", "nested", "meta"])
def test_a_tensor_that_is_not_dense_is_refused_when_the_step_runs(kind: str) -> None:
    found: dict[str, Callable[[], Any]] = {
        "sparse": X.to_sparse,
        "csr": X.to_sparse_csr,
        "nested": lambda: torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged),
        "meta": lambda: X.to("meta"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = found[kind]()
    message = f"input 'x' is a {'sparse' if kind == 'csr' else kind} tensor, expected a dense one with values"
    exported = hpir.export(model_of(), mean_of, {"x": X})
    with pytest.raises(hpir.RuntimeFault, match=message):
        hpir.simulate(hpir.compile_program(exported, {}), exported.state, {"x": x})
    step = hpir.compile(model_of(), mean_of, {"x": X})
    with pytest.raises(hpir.RuntimeFault, match=f"rank 0: {message}"):
        step(x=x)


@pytest.mark.parametrize("called", ["step", "step.evaluate"])
def test_an_input_without_a_name_is_refused(called: str) -> None:
    batch = dict(zip("xw", rows_of(2), strict=True))
    step: Any = hpir.compile(model_of(), lambda model, x, w: (model(x) * w).sum(), batch, plan={})
    with pytest.raises(TypeError, match=rf"{called} takes its inputs by name, as in {called}\(\*\*batch\), got: dict"):
        (step if called == "step" else step.evaluate)(batch)
    assert step.steps == 0


def test_a_batch_that_is_no_mapping_is_refused() -> None:
    for batch in (Checked(X, X), [X], X):
        with pytest.raises(hpir.CaptureError, match="expected the batch to be a mapping of inputs, got: "):
            hpir.export(model_of(), mean_of, batch)  # type: ignore[arg-type]


def test_a_malformed_attribute_of_values_is_an_error_at_the_function() -> None:
    from torch_mlir import ir

    from hpir.lowering.to_program import to_program

    module = exported_of("values").module
    function = module.body.operations[0].operation
    for text, message in (
        ("3 : i64", "expected hp.static_inputs to be a dictionary of values by input, got: 3 : i64"),
        ("{a = {complex = [1.0]}}", "hp.static_inputs: expected a Python value for 'a', got: {complex = "),
        ('{a = {layout = "strided"}}', "expected a Python value for 'a'"),
        ('{a = {int = "1x"}}', "expected a Python value for 'a'"),
        ("{a = [1]}", "expected a Python value for 'a'"),
    ):
        with module.context:
            function.attributes["hp.static_inputs"] = ir.Attribute.parse(text)
        with pytest.raises(hpir.HpirError) as error:
            to_program(module)
        assert message in str(error.value)
