"""What `hpir.export` refuses, and that it says where and why; what the captured module carries."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import BY_NAME
from torch import Tensor, nn

import hpir
from hpir.dialect.signature import Signature, read_signature, step_functions

pytestmark = pytest.mark.one_in(2)

X = torch.ones(8, 4)
ODD = object()


def signature_of(exported: Any) -> Signature:
    return read_signature(next(step_functions(exported.module.operation)))


def branch(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x)
    if y.sum() > 0:  # here
        y = y * 2
    loss: Tensor = y.mean()
    return loss


def change_parameter(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        model.weight.mul_(0.9)  # type: ignore[operator]  # here
    loss: Tensor = model(x).mean()
    return loss


def change_input(model: nn.Module, x: Tensor) -> Tensor:
    x.mul_(2)  # here
    loss: Tensor = model(x).mean()
    return loss


def value_as_output(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, float]]:
    loss: Tensor = model(x).mean()
    return loss, {"loss": float(loss)}  # here


def wrong_shape(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x.t()).mean()  # here
    return loss


def raises(model: nn.Module, x: Tensor) -> Tensor:
    raise KeyError("nothing of that name")  # here


def draws(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = torch.poisson(model(x)).mean()  # here
    return loss


def no_scalar(model: nn.Module, x: Tensor) -> Tensor:  # here
    y: Tensor = model(x)
    return y


def no_tensor(model: nn.Module, x: Tensor) -> float:  # here
    return 1.0


def integer_loss(model: nn.Module, x: Tensor) -> Tensor:  # here
    y: Tensor = model(x).argmax(-1).sum()
    return y


def no_gradient(model: nn.Module, x: Tensor) -> Tensor:  # here
    return x.mean()


def odd_output(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, object]]:  # here
    return model(x).mean(), {"shape": {"of": ODD}}


REFUSED: tuple[tuple[Callable[..., Any], str], ...] = (
    (branch, "data-dependent branching"),
    (change_parameter, "parameter 'weight' is changed in place"),
    (change_input, "input 'x' is changed in place"),
    (value_as_output, "needs the values of a tensor, which are not known before the step runs"),
    (wrong_shape, r"got \[4, 8\] X \[4, 4\]"),
    (raises, "KeyError: 'nothing of that name'"),
    (draws, "random operator 'aten.poisson.default'"),
    (no_scalar, r"expected the loss to have shape \[\] or \[1\], got: \[8, 4\]"),
    (no_tensor, "returned a float, expected the loss as a tensor"),
    (integer_loss, "expected the loss to be a floating tensor, got: torch.int64"),
    (no_gradient, "does not depend on any trainable parameter"),
    (odd_output, "output 'shape.of' is of type object, expected tensors, numbers and strings"),
)


@pytest.mark.parametrize(("train", "message"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_what_cannot_be_captured_is_an_error_at_the_users_line(
    train: Callable[..., Any], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    lines, first = inspect.getsourcelines(train)
    line = first + next(number for number, text in enumerate(lines) if "# here" in text)
    with pytest.raises(hpir.CaptureError, match=message) as error:
        hpir.export(nn.Linear(4, 4), train, {"x": X.clone()})
    assert str(error.value).startswith(f"{__file__}:{line}: ")
    assert "\n" not in str(error.value)
    assert "Traceback" not in capfd.readouterr().err


def mean(model: nn.Module, x: Tensor, y: Tensor | None = None) -> Tensor:
    loss: Tensor = model(x).mean() if y is None else (model(x) * y).mean()
    return loss


def scaled_by_value(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x)
    loss: Tensor = y.mean() * float(y.detach().sum())
    return loss


def chosen_by_value(model: nn.Module, x: Tensor) -> Tensor:
    y = model(x)
    loss: Tensor = y[x[:, 0] > 0].mean()
    return loss


@pytest.mark.parametrize("train", (scaled_by_value, chosen_by_value))
def test_values_read_within_the_step_are_read_at_run_time(train: Callable[..., Any]) -> None:
    model, x = nn.Linear(4, 4), torch.linspace(-1, 1, 32).reshape(8, 4)
    exported = hpir.export(model, train, {"x": X})
    result = hpir.simulate(hpir.compile_program(exported), exported.state, {"x": x})
    loss = train(model, x)
    loss.backward()
    torch.testing.assert_close(result.loss, loss.detach())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(result.grads[name], parameter.grad)


def test_inputs_with_other_row_counts_need_batch_dims() -> None:
    batch = {"x": X, "y": torch.ones(1, 4)}
    with pytest.raises(hpir.CaptureError, match=r"'x' has 8 rows .* but 'y' has 1: .*batch_dims=\{'y': None\}"):
        hpir.export(nn.Linear(4, 4), mean, batch)
    inputs = signature_of(hpir.export(nn.Linear(4, 4), mean, batch, batch_dims={"y": None})).with_role("input")
    assert [(info.name, info.batch_dim) for info in inputs] == [("x", 0), ("y", None)]


def test_batch_dims_of_an_unknown_input_names_the_nearest() -> None:
    batch = {"tokens": X}
    with pytest.raises(hpir.CaptureError, match="no input 'token', did you mean 'tokens'"):
        hpir.export(nn.Linear(4, 4), lambda model, tokens: model(tokens).mean(), batch, batch_dims={"token": 0})


def test_a_dtype_without_a_type_is_refused_by_name() -> None:
    batch = {"x": X, "y": torch.zeros(8, dtype=torch.uint16)}
    with pytest.raises(hpir.CaptureError, match="'y' has dtype uint16"):
        hpir.export(nn.Linear(4, 4), lambda model, x, y: model(x).mean() + y.float().mean(), batch)


def test_capture_leaves_the_model_as_it_was() -> None:
    case = BY_NAME["convnet"]
    model = case.model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hpir.export(model, case.train, case.data(4))
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())


class Running(nn.Module):
    """Keeps a running mean in a buffer, in one of several ways."""

    def __init__(self, way: str):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.mean: Tensor
        self.way, self.calls = way, 0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if self.way == "in place":  # with its history: the loss does not depend on the new value
            self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
        elif self.way == "used":
            self.mean.copy_(y.mean(0))
            return y * self.mean
        elif self.way == "assigned":
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        else:
            self.calls += 1
            return y * self.calls
        return y


def square(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


@pytest.mark.parametrize("way", ("in place", "used", "assigned"))
def test_a_buffers_new_value_adds_nothing_to_the_gradients(way: str) -> None:
    model, x = Running(way), torch.randn(4, 3)
    exported = hpir.export(model, square, {"x": x})
    state = {name: tensor.detach().clone() for name, tensor in exported.state.items()}
    result = hpir.simulate(hpir.compile_program(exported), state, {"x": x})
    torch.autograd.backward(square(model, x))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(result.grads[name], parameter.grad)
    torch.testing.assert_close(result.buffers["mean"], model.mean.detach())


def test_state_that_a_compiled_step_would_not_keep_is_refused() -> None:
    model = nn.Sequential(Running("counted"))
    with pytest.raises(hpir.CaptureError, match="assigns to attribute 'calls' of module '0', which a compiled step"):
        hpir.export(model, square, {"x": torch.randn(4, 3)})
    assert model[0].calls == 0


def test_a_module_under_two_names_is_captured_and_left_as_it_was() -> None:
    shared = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model, x = nn.Sequential(shared, nn.Tanh(), shared), torch.randn(4, 3)
    before = dict(model.named_parameters(remove_duplicate=False))
    exported = hpir.export(model, square, {"x": x})
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[name] is parameter for name, parameter in before.items())
    result = hpir.simulate(hpir.compile_program(exported), exported.state, {"x": x})
    torch.autograd.backward(square(model, x))
    for name, parameter in after.items():
        torch.testing.assert_close(result.grads[name], parameter.grad)


def test_gradient_hooks_are_refused() -> None:
    model = nn.Linear(3, 4)
    model.weight.register_hook(lambda gradient: gradient * 0)  # type: ignore[no-untyped-call]
    with pytest.raises(hpir.CaptureError, match="parameter 'weight' has a gradient hook"):
        hpir.export(model, square, {"x": torch.randn(4, 3)})


def test_capture_does_not_depend_on_the_grad_mode_around_it() -> None:
    with torch.no_grad():
        exported = hpir.export(nn.Linear(3, 4), square, {"x": torch.randn(4, 3)})
    assert len(signature_of(exported).results_with_role("grad")) == 2


def test_wrong_arguments_are_capture_errors() -> None:
    model, x = nn.Linear(3, 4), torch.randn(4, 3)
    with pytest.raises(hpir.CaptureError, match=r"expected a torch.nn.Module, got: int"):
        hpir.export(3, square, {"x": x})  # type: ignore[arg-type]
    with pytest.raises(hpir.CaptureError, match="expected an int or None for 'x', got: '0'"):
        hpir.export(model, square, {"x": x}, batch_dims={"x": "0"})  # type: ignore[dict-item]
    scalar = nn.ParameterDict({"a": torch.ones(())})
    with pytest.raises(hpir.CaptureError, match="the loss is a parameter itself"):
        hpir.export(scalar, lambda model, x: model["a"], {"x": x})


def test_what_cannot_be_written_is_an_error_that_names_the_file(tmp_path: Any) -> None:
    exported = hpir.export(nn.Linear(3, 4), square, {"x": torch.randn(4, 3)})
    with pytest.raises(hpir.RuntimeFault, match=r"gone/step.mlir: cannot write the module: no such file"):
        exported.save(tmp_path / "gone" / "step.mlir")
    (tmp_path / "file").write_text("")
    with pytest.raises(hpir.RuntimeFault, match=r"file: cannot write a Program: "):
        hpir.compile_program(exported).save(tmp_path / "file")
    assert exported.text().endswith("}\n")


def test_sizes_that_no_machine_has_are_refused() -> None:
    exported = hpir.export(nn.Linear(3, 4), square, {"x": torch.randn(4, 3)})
    for size in (2**40, 2**70):
        with pytest.raises(hpir.HpirError, match="expected at most 1048576"):
            hpir.compile_program(exported, {"mesh": {"dp": size}, "fsdp": {"axes": ["dp"]}})
    with pytest.raises(hpir.PlanError, match="expected 1 to 65536, got: 1000000000000"):
        hpir.compile_program(exported, {"data": {"microbatches": 10**12}})
    wrong: Any
    for wrong in ("x", 3, []):
        with pytest.raises(hpir.PlanError, match="expected a table"):
            hpir.compile_program(exported, wrong)


def test_importing_leaves_the_captured_graph_as_it_was() -> None:
    exported = hpir.export(nn.Linear(3, 4), square, {"x": torch.randn(4, 3)})
    (seed,) = exported.graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.full.default)
    assert seed.kwargs["device"] == torch.device("cpu")


def test_a_tied_parameter_is_one_argument_with_all_its_names_and_one_gradient() -> None:
    case = BY_NAME["tied"]
    signature = signature_of(hpir.export(case.model(), case.train, case.data(2)))
    names = ("embed.weight", "head.weight")
    assert [info.names for info in signature.with_role("param")].count(names) == 1
    assert [info.names for info in signature.results_with_role("grad")].count(names) == 1


def test_frozen_and_unused_parameters_have_no_gradient() -> None:
    adapters = BY_NAME["adapters"]
    signature = signature_of(hpir.export(adapters.model(), adapters.train, adapters.data(2)))
    assert not any(name.startswith("encoder") for info in signature.results_with_role("grad") for name in info.names)
    frozen = [info for info in signature.with_role("param") if info.name.startswith("encoder")]
    assert frozen and not any(info.trainable for info in frozen)

    unused = BY_NAME["unused"]
    signature = signature_of(hpir.export(unused.model(), unused.train, unused.data(2)))
    assert {info.name for info in signature.with_role("param")} >= {"forgotten.weight", "forgotten.bias"}
    gradients = [info.name for info in signature.results_with_role("grad")]
    assert gradients == ["first.weight", "first.bias", "last.weight", "last.bias"]
    assert [info.name for info in signature.with_role("input")] == ["x", "ignored", "y"]


@pytest.mark.parametrize("plan", (None, {"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"]}}), ids=("one", "dp2"))
def test_a_parameter_that_is_only_used_detached_is_not_trained(plan: Any) -> None:
    def train(model: nn.Module, x: Tensor) -> Tensor:
        y = model[0](x) + model[1](x).detach()  # type: ignore[index]
        loss: Tensor = y.square().mean()
        return loss

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    exported = hpir.export(model, train, {"x": X})
    trained = [info.name for info in signature_of(exported).with_role("param") if info.trainable]
    assert trained == ["0.weight", "0.bias"]
    batch = {"x": torch.randn(8 * (2 if plan else 1), 4)}
    result = hpir.simulate(hpir.compile_program(exported, plan), exported.state, batch)
    assert list(result.grads) == ["0.weight", "0.bias"]
    torch.testing.assert_close(result.loss, train(model, batch["x"]).detach())


def test_buffers_are_arguments_and_their_new_values_results() -> None:
    case = BY_NAME["convnet"]
    signature = signature_of(hpir.export(case.model(), case.train, case.data(4)))
    assert {info.name for info in signature.with_role("buffer")} == {
        info.name for info in signature.results_with_role("buffer")
    }
    rotary = BY_NAME["rotary"]
    signature = signature_of(hpir.export(rotary.model(), rotary.train, rotary.data(2)))
    assert [info.name for info in signature.with_role("buffer")] == ["cos", "sin"]
    assert not signature.results_with_role("buffer")


def test_ops_carry_module_phase_and_source_line() -> None:
    case = BY_NAME["rotary"]
    exported = hpir.export(case.model(), case.train, case.data(2))
    modules: dict[str, set[str]] = {"forward": set(), "backward": set()}
    function = next(step_functions(exported.module.operation))
    for view in function.regions[0].blocks[0].operations:
        op = view.operation
        if op.name == "torch.aten.mm" or "attention" in str(op.attributes):
            modules[op.attributes["hp.phase"].value].add(op.attributes["hp.module"].value)
            assert "models.py" in str(op.location)
    assert {"layers.0.qkv", "layers.1.out", "head"} <= modules["forward"]
    assert {"layers.0.qkv", "layers.1.out", "head"} <= modules["backward"]


class Constants(nn.Module):
    """Tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(20))
        self.large = torch.arange(20.0)
        self.small = torch.tensor([0.1, float("inf"), -0.0, 1e-45])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.weight * self.large + torch.where(x[:, :4] > 2, self.small, 1.0).sum()
        return y


def test_large_constants_are_arguments_and_small_ones_exact_literals() -> None:
    model, x = Constants(), torch.ones(2, 20)
    exported = hpir.export(model, mean, {"x": x})
    constants = signature_of(exported).with_role("constant")
    assert [info.type.shape for info in constants] == [(20,)]
    assert torch.equal(exported.state[constants[0].name], model.large)
    assert "torch.vtensor.literal" in str(exported.module)
    for value in (1.0, 3.0):
        batch = {"x": torch.full((2, 20), value)}
        result = hpir.simulate(hpir.compile_program(exported), exported.state, batch)
        assert torch.equal(result.loss, model(batch["x"]).mean().detach())


def test_a_model_on_the_meta_device_is_captured_without_memory() -> None:
    model = nn.Linear(4, 4, device="meta")
    exported = hpir.export(model, mean, {"x": X})
    plain = hpir.export(nn.Linear(4, 4), mean, {"x": X})
    assert exported.text() == plain.text()
    assert "cpu" not in plain.text() and "meta" not in exported.text()


def test_nested_inputs_have_dotted_paths_and_partials_are_bound() -> None:
    def train(model: nn.Module, images: dict[str, Tensor], pair: list[Tensor], scale: float) -> Tensor:
        loss: Tensor = (model(images["left"]) * pair[1]).mean() * scale
        return loss

    batch = {"images": {"left": X}, "pair": [X, X]}
    exported = hpir.export(nn.Linear(4, 4), functools.partial(train, scale=2.0), batch)
    assert [info.name for info in signature_of(exported).with_role("input")] == ["images.left", "pair.0", "pair.1"]
    result = hpir.simulate(hpir.compile_program(exported), exported.state, batch)
    model = nn.Linear(4, 4)
    model.load_state_dict(exported.state)
    assert torch.equal(result.loss, train(model, batch["images"], batch["pair"], 2.0).detach())  # type: ignore[arg-type]


def test_saving_writes_what_parses_back(tmp_path: Any) -> None:
    from hpir.dialect.parsing import parse_module_file

    case = BY_NAME["rotary"]
    exported = hpir.export(case.model(), case.train, case.data(2))
    exported.save(tmp_path / "step.mlir")
    assert str(parse_module_file(tmp_path / "step.mlir")) == str(exported.module)
    assert [path.name for path in tmp_path.iterdir()] == ["step.mlir"]
