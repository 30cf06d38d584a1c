"""What `hpir.export` refuses: each message names the line and says what to do; nothing else is left of the attempt."""

from __future__ import annotations

import inspect
import logging
import os
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import refusal_cases
import torch
from refusal_cases import REFUSALS, Net, Refusal, talkative
from torch import Tensor, nn

import hpir
from hpir.lowering.capture.advice import reason

pytestmark = pytest.mark.one_in(2)

# Of torch's machinery, and its advice on switches that have no say in an export.
INTERNAL = (
    "torch._",
    "fullgraph",
    "Traceback",
    "set_stance",
    "Dynamo",
    "dynamo",
    "FakeTensor",
    "torch.compile(",
    "TORCH_",
)


def batch() -> dict[str, Tensor]:
    return {"x": torch.ones(8, 4), "y": torch.full((8, 4), 2.0)}


def place_of(refusal: Refusal) -> str:
    lines, first = inspect.getsourcelines(refusal.function)
    line = first + next(number for number, text in enumerate(lines) if text.rstrip().endswith("# here"))
    return f"{refusal_cases.__file__}:{line}"


def refuse(refusal: Refusal, model: nn.Module, inputs: dict[str, Tensor]) -> str:
    with pytest.raises(hpir.CaptureError) as caught:
        hpir.export(model, refusal.train, inputs)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return str(caught.value)


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_names_the_line_and_says_what_to_do(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    refusal = REFUSALS[name]
    text = refuse(refusal, refusal.model(), batch())
    assert text.startswith(f"{place_of(refusal)}: ")
    for part in refusal.says:
        assert part in text
    assert not any(word in text for word in INTERNAL), text
    assert "\n" not in text and not text.endswith(".")
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err == ""


def snapshot(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Any]:
    tensors = {**model.state_dict(keep_vars=True), **inputs}
    return {
        "identities": {name: id(tensor) for name, tensor in tensors.items()},
        "flags": [module.training for module in model.modules()],
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [parameter.grad for parameter in model.parameters()],
        "attributes": {name: repr(value) for name, value in vars(model).items() if not name.startswith("_")},
        "python": random.getstate(),
        "numpy": str(np.random.get_state()),
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "dynamo": torch._dynamo.config.save_config(),
        "warnings": list(warnings.filters),
        "logging": (
            logging.root.manager.disable,
            list(logging.root.handlers),
            logging.getLogger("torch._dynamo").level,
        ),
        "streams": (sys.stdout, sys.stderr, print, nn.Module.zero_grad),
        "globals": (list(refusal_cases.SEEN), refusal_cases.COUNT, dict(refusal_cases.TABLE)),
    }


def good(model: Net, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = (model.inner(x) - y).square().mean()
    return loss


@pytest.mark.everything
def test_nothing_is_left_of_refused_attempts_and_a_good_one_works_right_after() -> None:
    values = {name: tensor.clone() for name, tensor in {**Net().state_dict(), **batch()}.items()}
    for name, refusal in REFUSALS.items():
        model, inputs = refusal.model(), batch()
        model.load_state_dict(values, strict=False)
        before, rng = snapshot(model, inputs), torch.get_rng_state()
        refuse(refusal, model, inputs)
        assert torch.equal(torch.get_rng_state(), rng), name
        after = snapshot(model, inputs)
        assert {key for key in before if before[key] != after[key]} == set(), name
        state = {**model.state_dict(), **inputs}
        assert all(torch.equal(tensor, values[key]) for key, tensor in state.items()), name
    model = Net()
    exported = hpir.export(model, good, batch())
    result = hpir.simulate(hpir.compile_program(exported), exported.state, batch())
    loss = good(model, **batch())
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(result.loss, loss.detach())
    torch.testing.assert_close(result.grads["inner.weight"], model.inner.weight.grad)


def test_torchs_settings_are_put_back() -> None:
    def train(model: Net, x: Tensor, y: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        loss: Tensor = model(x).mean() + torch.ones(2).mean()
        return loss

    hpir.export(Net(), train, batch())
    assert torch.get_default_dtype() is torch.float32
    assert not torch.are_deterministic_algorithms_enabled()


# What is kept out of the graph, each line with a remark


def lines_of(function: Any, mark: str) -> list[int]:
    lines, first = inspect.getsourcelines(function)
    return [first + number for number, text in enumerate(lines) if text.rstrip().endswith(mark)]


def test_printing_and_logging_are_left_out_and_each_line_is_named_once(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    model, handlers = Net(), list(logging.root.handlers)
    with caplog.at_level(logging.INFO):
        exported = hpir.export(model, talkative, batch())
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err == ""
    assert {record.name for record in caplog.records} == {"hpir"}
    texts = [record.getMessage() for record in caplog.records]
    expected = lines_of(talkative, "# said")
    assert [int(text.split(":")[1]) for text in texts] == expected
    assert all(text.startswith(f"{refusal_cases.__file__}:") and ": remark: " in text for text in texts)
    says = ("print()", "Logger.info()", "logging.info()", "warnings.warn()", "print()", "assert on a tensor's values")
    assert all(f"remark: {said} is " in text for said, text in zip(says, texts, strict=True))
    assert logging.root.handlers == handlers
    result = hpir.simulate(hpir.compile_program(exported), exported.state, batch())
    torch.testing.assert_close(result.loss, model.inner(batch()["x"]).square().mean().detach())


def test_remarks_can_be_silenced(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "hpir"):
        hpir.export(Net(), talkative, batch())
    assert not caplog.records


def test_a_remark_about_a_library_is_information(caplog: pytest.LogCaptureFixture) -> None:
    transformers = pytest.importorskip("transformers")
    logger = transformers.utils.logging.get_logger("transformers.hpir")

    def train(model: Net, x: Tensor, y: Tensor) -> Tensor:
        logger.warning_once("once")
        loss: Tensor = model(x).mean()
        return loss

    with caplog.at_level(logging.INFO, "hpir"):
        hpir.export(Net(), train, batch())
    (record,) = [record for record in caplog.records if record.name == "hpir"]
    assert "Logger.warning_once() is kept out of the compiled step" in record.getMessage()


# Calls that do not fit


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            lambda model, xs, y: model(xs).mean(),
            "the step function has no parameter 'x' of the batch, did you mean 'xs'?",
        ),
        (lambda model, x, y, z: model(x).mean(), "the batch has no 'z', which the step function needs"),
        (lambda model: model(0).mean(), "the step function has no parameter 'x' of the batch (it takes: none)"),
        (lambda: 0, "expected a step function of the model and the batch, train_fn(model, **batch)"),
        (lambda model, *, x, **rest: model(x).mean(), ""),
        (lambda *arguments, x, y: arguments[0](x).mean(), ""),
        (lambda model, x, y, scale=2.0: model(x).mean() * scale, ""),
    ],
)
def test_a_batch_that_is_not_the_step_functions_is_refused_by_name(train: Any, message: str) -> None:
    if not message:
        hpir.export(Net(), train, batch())
        return
    with pytest.raises(hpir.CaptureError) as caught:
        hpir.export(Net(), train, batch())
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{__file__}:{train.__code__.co_firstlineno}: ")


def test_an_error_within_a_library_names_the_users_line_as_well() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )

    def train(model: nn.Module, ids: Tensor) -> Tensor:
        loss: Tensor = model(ids, token_type_ids=ids[:, :3])[0].mean()  # called
        return loss

    with pytest.raises(hpir.CaptureError) as caught:
        hpir.export(transformers.BertModel(config), train, {"ids": torch.zeros(2, 5, dtype=torch.int64)})
    assert re.match(r".*modeling_bert.py:\d+: cannot capture: ", str(caught.value))
    (line,) = lines_of(train, "# called")
    assert str(caught.value).endswith(f"; called at {__file__}:{line}")


def test_tensors_on_two_devices_are_told_apart() -> None:
    error = RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    )
    assert reason(error) == (
        "tensors are on different devices: at least two devices, cuda:0 and cpu (move the batch, the model and tensors "
        "made within the step to one device)"
    )


def test_the_command_says_one_line_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import torch\n"
        "def train(model, x):\n"
        "    print('loss', model(x))\n"
        "    return model(x).mean() if x.sum() > 0 else model(x).sum()\n"
        "def build():\n"
        "    return torch.nn.Linear(4, 4), train, {'x': torch.ones(2, 4)}\n"
    )
    command = [sys.executable, "-m", "hpir.tools.hp_translate", "--export", "job:build"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=200)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"hp-translate: error: {tmp_path}/job.py:4: cannot capture: data-dependent branching")


def round_a_dynamic_size(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x)[: int(x.shape[0] * 0.5)].mean()  # rounded
    return loss


def test_rounding_a_dynamic_size_is_refused_at_the_line() -> None:
    (line,) = lines_of(round_a_dynamic_size, "# rounded")
    with pytest.raises(
        hpir.CaptureError, match=rf":{line}: a number made of a dynamic size is rounded: divide with //"
    ):
        hpir.export(nn.Linear(4, 4), round_a_dynamic_size, {"x": torch.ones(8, 4)}, dynamic={"x": {0: "rows"}})


# What may fail when the step runs


@pytest.mark.parametrize("name", ("inv", "cholesky"))
def test_linear_algebra_is_captured_with_its_checks(name: str) -> None:
    function = getattr(torch.linalg, name)

    def train(model: Net, x: Tensor, y: Tensor) -> Tensor:
        square = model.weight @ model.weight.t() + torch.eye(4, dtype=x.dtype)
        loss: Tensor = (x @ function(square - y[:4])).square().mean()
        return loss

    model = Net().double()
    inputs = {"x": torch.linspace(0, 1, 32, dtype=torch.float64).reshape(8, 4), "y": torch.zeros(8, 4).double()}
    exported = hpir.export(model, train, inputs)
    program = hpir.compile_program(exported)
    result = hpir.simulate(program, exported.state, inputs)
    loss = train(model, **inputs)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(result.loss, loss.detach())
    torch.testing.assert_close(result.grads["weight"], model.weight.grad)
    singular = (model.weight @ model.weight.t() + torch.eye(4)).detach()
    with pytest.raises(hpir.RuntimeFault, match=rf"'aten\._linalg_check_errors\.default'.*linalg\.{name}"):
        hpir.simulate(program, exported.state, {**inputs, "y": torch.cat([singular, singular])})


def test_memory_that_no_machine_has_is_an_error_at_the_line() -> None:
    def train(model: Net, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = model(x).mean() + torch.ones(1 << 45).sum()  # too much
        return loss

    exported = hpir.export(Net(), train, batch())
    (line,) = lines_of(train, "# too much")
    with pytest.raises(hpir.RuntimeFault, match=rf"test_refusals\.py:{line}: .*can't allocate memory"):
        hpir.simulate(hpir.compile_program(exported), exported.state, batch())


def test_communication_within_the_step_is_refused() -> None:
    script = (
        "import torch, torch.distributed as dist, hpir\n"
        "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
        "dist.init_process_group('fake', rank=0, world_size=2, store=FakeStore())\n"
        "def train(model, x):\n"
        "    y = model(x)\n"
        "    dist.all_reduce(y)\n"
        "    return y.mean()\n"
        "try:\n"
        "    hpir.export(torch.nn.Linear(4, 4), train, {'x': torch.ones(2, 4)})\n"
        "except hpir.CaptureError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert "the step communicates by itself ('_c10d_functional.all_reduce.default'): leave it out" in done.stdout
