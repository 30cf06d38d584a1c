"""`Step` in one process, without a process group: what it checks, changes and leaves alone."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from models import BY_NAME, Case
from program_builder import FunctionBuilder, program_of
from runtime_cases import assert_equal_models, expected_step, load_step, own_batch, plan_of, save_program
from torch import Tensor, nn

from hpir.errors import RuntimeFault
from hpir.mesh import Mesh
from hpir.runtime.program import Program, TensorType
from hpir.runtime.step import STEPS, Step

pytestmark = pytest.mark.one_in(2)

ONE = Mesh(("all",), (1,))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], str]:
    """Saved programs of acceptance models on one rank, each compiled once."""
    folder = tmp_path_factory.mktemp("programs")
    made: dict[tuple[str, int], str] = {}

    def program(name: str, microbatches: int = 1) -> str:
        if (name, microbatches) not in made:
            plan = {**plan_of(BY_NAME[name], {"dp": 1}, microbatches=microbatches)}
            made[name, microbatches] = save_program(folder, name, plan)
        return made[name, microbatches]

    return program


def pair(where: str, name: str, **options: Any) -> tuple[Step, nn.Module, nn.Module, Case]:
    """Return a step, its model, an equal plain model and their case."""
    case = BY_NAME[name]
    model, reference = case.model(), case.model()
    return load_step(where, model, **options), model, reference, case


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_three_optimiser_steps_equal_plain_training(programs: Any, name: str, microbatches: int) -> None:
    step, model, reference, case = pair(programs(name, microbatches), name)
    optimisers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, reference)]
    for number in range(3):
        loss = step(**own_batch(case, step.program, 0, number))
        expected = expected_step(case, step.program, reference, number, step=number)
        torch.testing.assert_close(loss.double(), expected.loss, rtol=1e-5, atol=1e-6)
        assert_equal_models(model, reference)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
    assert step.steps == 3


def test_one_rank_without_a_process_group_keeps_plain_parameters(programs: Any) -> None:
    case = BY_NAME["tied"]
    model = case.model()
    before = dict(model.named_parameters())
    step = load_step(programs("tied"), model)
    assert all(type(p) is nn.Parameter and p is before[name] for name, p in step.named_parameters())
    assert [id(p) for p in step.parameters()] == [id(p) for p in model.parameters()]


def test_gradients_accumulate_over_calls_and_evaluate_changes_nothing(programs: Any) -> None:
    step, model, reference, case = pair(programs("convnet", 2), "convnet")
    step(**own_batch(case, step.program, 0, 0))
    expected_step(case, step.program, reference, 0)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    loss, outputs = step.evaluate(**own_batch(case, step.program, 0, 1))
    assert loss.shape == ()
    assert outputs is None
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    assert all(torch.equal(p.grad, grads[name]) for name, p in model.named_parameters() if p.grad is not None)
    assert step.steps == 1
    step(**own_batch(case, step.program, 0, 1))
    expected_step(case, step.program, reference, 1)
    assert_equal_models(model, reference)


def test_evaluate_returns_outputs_in_their_structure(programs: Any) -> None:
    step, _, reference, case = pair(programs("outputs", 2), "outputs")
    loss, outputs = step.evaluate(**own_batch(case, step.program, 0))
    expected = expected_step(case, step.program, reference)
    torch.testing.assert_close(loss.double(), expected.loss, rtol=1e-5, atol=1e-6)
    assert set(outputs) == set(expected.outputs[0])
    wanted = torch.cat([part["logits"].detach() for part in expected.outputs])
    torch.testing.assert_close(outputs["logits"], wanted)


def test_gradients_are_nobody_elses_memory() -> None:
    """Two parameters with one gradient, and one whose gradient is an argument."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Parameter(torch.ones(3)) for _ in range(3))

    f = FunctionBuilder("rank0", ONE)
    _, _, c = (f.param(name, (3,)) for name in "abc")
    x = f.argument("x", (3,))
    shared = f.aten("mul.Tensor", x, c)
    f.result(f.aten("sum.default", shared, type_=TensorType((), "float32")), "loss")
    for name, value in (("a", shared), ("b", shared), ("c", x)):
        f.result(value, "grad", name)
    step = Step(program_of(f.build(), mesh=ONE), Pair())
    given = torch.arange(3.0)
    for calls in (1, 2):
        step(x=given)
        for _, parameter in step.named_parameters():
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, calls * torch.arange(3.0))
    assert torch.equal(given, torch.arange(3.0))
    memory = {p.grad.untyped_storage().data_ptr() for p in step.parameters() if p.grad is not None}
    assert len(memory | {given.untyped_storage().data_ptr()}) == 4


def test_a_parameter_frozen_later_gets_no_gradient(programs: Any) -> None:
    step, model, _, case = pair(programs("uneven"), "uneven")
    frozen = next(iter(model.parameters()))
    frozen.requires_grad_(False)
    step(**own_batch(case, step.program, 0))
    assert frozen.grad is None
    assert all(p.grad is not None for p in list(model.parameters())[1:])


@pytest.mark.parametrize("context", ["grad", "no_grad", "inference", "autocast"])
def test_the_callers_modes_change_nothing(programs: Any, context: str) -> None:
    step, model, reference, case = pair(programs("uneven"), "uneven")
    modes: dict[str, Any] = {
        "grad": torch.enable_grad(),
        "no_grad": torch.no_grad(),
        "inference": torch.no_grad(),
        "autocast": torch.autocast("cpu", torch.bfloat16),
    }
    with modes[context]:
        loss = step(**own_batch(case, step.program, 0))
    expected = expected_step(case, step.program, reference)
    assert loss.dtype == torch.float32
    assert not loss.requires_grad
    torch.testing.assert_close(loss.double(), expected.loss, rtol=1e-5, atol=1e-6)
    assert_equal_models(model, reference)


def test_clipping_equals_torchs_bitwise(programs: Any) -> None:
    step, model, _, case = pair(programs("tied"), "tied")
    step(**own_batch(case, step.program, 0))
    for norm_type in (1.0, 2.0, 3.5, float("inf")):
        twin = copy.deepcopy(model)
        for parameter, other in zip(twin.parameters(), model.parameters(), strict=True):
            parameter.grad = None if other.grad is None else other.grad.clone()
        expected = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.1, norm_type)
        norm = step.clip_grad_norm_(0.1, norm_type)
        assert torch.equal(norm, expected), norm_type
        for parameter, other in zip(twin.parameters(), model.parameters(), strict=True):
            assert parameter.grad is not None
            assert other.grad is not None
            assert torch.equal(parameter.grad, other.grad)


def test_clipping_refuses_what_is_no_norm(programs: Any) -> None:
    step, model, _, case = pair(programs("uneven"), "uneven")
    assert step.clip_grad_norm_(1.0) == 0
    step(**own_batch(case, step.program, 0))
    with pytest.raises(RuntimeFault, match=r"expected norm_type > 0, got: 0"):
        step.clip_grad_norm_(1.0, 0.0)
    grad = next(iter(model.parameters())).grad
    assert grad is not None
    grad.fill_(float("nan"))
    with pytest.raises(
        RuntimeFault, match=r"the total norm of order 2\.0 of the gradients is nan, expected a finite one"
    ):
        step.clip_grad_norm_(1.0, error_if_nonfinite=True)
    assert step.clip_grad_norm_(1.0).isnan()


def bad_batches(batch: dict[str, Tensor]) -> Iterator[tuple[dict[str, Any], str]]:
    x = batch["x"]
    yield {**batch, "x": x[:1]}, r"rank 0: input 'x': the step was compiled for float32\[2, 3\], got: float32\[1, 3\]"
    yield {**batch, "x": x.double()}, r"input 'x': the step was compiled for float32\[2, 3\], got: float64\[2, 3\]"
    yield {**batch, "x": 3}, r"input 'x': the step was compiled for float32\[2, 3\], got: 3"
    yield {**batch, "x": x.to("meta")}, "input 'x' is a meta tensor, expected a dense one with values"
    yield {"y": batch["y"]}, r"rank 0: missing input 'x' of type float32\[2, 3\]"
    yield {**batch, "z": x}, "unexpected input 'z': the step was compiled without it"
    yield {"xs": x, "y": batch["y"]}, "unexpected input 'xs': the step was compiled without it, did you mean 'x'"


def test_another_batch_than_compiled_for_is_refused(programs: Any) -> None:
    step, model, _, case = pair(programs("uneven"), "uneven")
    batch = own_batch(case, step.program, 0)
    for bad, message in bad_batches(batch):
        for run in (step, step.evaluate):
            with pytest.raises(RuntimeFault, match=message):
                run(**bad)
    assert all(p.grad is None for p in model.parameters())
    assert step.steps == 0
    step(**batch)


def test_an_operator_that_fails_is_named_and_the_next_step_works(programs: Any) -> None:
    step, model, reference, case = pair(programs("tied"), "tied")
    batch = own_batch(case, step.program, 0)
    bad = {**batch, "ids": batch["ids"] + 1000}
    with pytest.raises(RuntimeFault) as caught:
        step(**bad)
    text = str(caught.value)
    assert re.match(r"rank 0: stage0_step: op \d+ 'aten\.embedding\.default' \(", text)
    assert "models.py:" in text
    assert "in 'embed')" in text
    assert "index out of range" in text
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert all(p.grad is None for p in model.parameters())
    step(**batch)
    expected_step(case, step.program, reference)
    assert_equal_models(model, reference)


def test_state_is_loaded_by_the_whole_models_names(programs: Any) -> None:
    step, model, _, case = pair(programs("convnet"), "convnet")
    with torch.random.fork_rng():
        torch.manual_seed(5)
        other = case.build()
    assert list(step.state_dict()) == [*other.state_dict(), STEPS]
    step.load_state_dict(other.state_dict())
    assert_equal_models(model, other)
    state = dict(other.state_dict())
    name, value = next(iter(state.items()))
    with pytest.raises(RuntimeFault, match=rf"state has no parameter or buffer '{name}s', did you mean '{name}'"):
        step.load_state_dict({**state, f"{name}s": value})
    with pytest.raises(RuntimeFault, match=rf"'{name}': expected shape \[.*\], got: \[1\]"):
        step.load_state_dict({**state, name: torch.ones(1)})
    with pytest.raises(RuntimeFault, match=rf"'{name}': expected a tensor, got: str"):
        step.load_state_dict({**state, name: "x"})
    del state[name]
    with pytest.raises(RuntimeFault, match=f"state lacks '{name}'"):
        step.load_state_dict(state)
    step.load_state_dict(state, strict=False)


def test_the_number_of_steps_is_part_of_the_state(programs: Any) -> None:
    step, model, _, case = pair(programs("uneven"), "uneven")
    batch = own_batch(case, step.program, 0)
    step(**batch)
    step(**batch)
    saved = {name: value.clone() for name, value in step.state_dict().items()}
    assert saved[STEPS].dtype == torch.int64 and saved[STEPS].item() == step.steps == 2
    step(**batch)
    assert step.state_dict()[STEPS].item() == step.steps == 3
    step.load_state_dict(saved)
    assert step.steps == 2
    # A plain model's state has none, and leaves it; a number will do as well as a tensor.
    step.load_state_dict(model.state_dict())
    assert step.steps == 2
    step.load_state_dict({**model.state_dict(), STEPS: 11})
    assert step.steps == 11
    # A checkpoint is loaded into the tensors themselves.
    step.state_dict()[STEPS].fill_(5)
    assert step.steps == 5
    with pytest.raises(RuntimeFault, match=f"'{STEPS}': expected a number, got: '2'"):
        step.load_state_dict({**saved, STEPS: "2"})


def test_a_model_that_is_not_the_programs_is_refused(programs: Any) -> None:
    where = programs("uneven")
    case = BY_NAME["uneven"]
    model = case.model()
    del model.up
    with pytest.raises(RuntimeFault, match=r"the model has no parameter 'up.weight', which the Program needs"):
        load_step(where, model)
    with pytest.raises(
        RuntimeFault, match=r"parameter 'up.weight': the Program was compiled for float32\[5, 3\], got: float64\[5, 3\]"
    ):
        load_step(where, case.model(torch.float64))
    model = case.model()
    assert isinstance(model.up, nn.Linear)
    assert isinstance(model.mid, nn.Linear)
    model.up.bias = nn.Parameter(torch.zeros(2))
    with pytest.raises(RuntimeFault, match=r"parameter 'up.bias': the Program was compiled for float32\[5\]"):
        load_step(where, model)
    with pytest.raises(RuntimeFault, match="are one in the Program but two in the model"):
        untied = BY_NAME["tied"].model()
        assert isinstance(untied.head, nn.Linear)
        untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
        load_step(programs("tied"), untied)
    with pytest.raises(RuntimeFault, match=r"buffer '.*': the Program was compiled for float32\["):
        convnet = BY_NAME["convnet"].model()
        batch_norm = next(m for m in convnet.modules() if isinstance(m, nn.BatchNorm2d))
        batch_norm.running_mean = torch.zeros(1)
        load_step(programs("convnet"), convnet)


def test_a_mesh_of_several_ranks_needs_a_process_group(programs: Any, tmp_path: Path) -> None:
    where = save_program(tmp_path, "uneven", plan_of(BY_NAME["uneven"], {"dp": 2}))
    with pytest.raises(
        RuntimeFault, match="mesh dp:2 has 2 ranks but there is no process group; start 2 processes, for example with"
    ):
        load_step(where, BY_NAME["uneven"].model())


def test_operators_off_the_allow_list_are_refused(programs: Any) -> None:
    program = Program.load(programs("uneven"))
    functions = dict(program.functions)
    function = functions["stage0_step"]
    functions["stage0_step"] = replace(
        function, ops=(replace(function.ops[0], target="evil.run.default"), *function.ops[1:])
    )
    with pytest.raises(RuntimeFault, match="operator is not on the allow-list"):
        Step(replace(program, functions=functions), BY_NAME["uneven"].model())


def on_meta(case: Case) -> nn.Module:
    with torch.device("meta"):
        return case.build()


def test_a_meta_model_is_initialised_from_the_seed(programs: Any) -> None:
    case = BY_NAME["convnet"]
    before = torch.random.get_rng_state()
    models = [on_meta(case) for _ in range(2)]
    steps = [load_step(programs("convnet"), model) for model in models]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert_equal_models(models[0], models[1], rtol=0, atol=0)
    plain = case.model()
    for name, parameter in models[0].named_parameters():
        wanted = dict(plain.named_parameters())[name]
        assert type(parameter) is nn.Parameter
        if wanted.numel() > 20:
            assert parameter.std().item() == pytest.approx(wanted.std().item(), rel=0.5), name
    assert all(torch.equal(b, dict(plain.named_buffers())[name]) for name, b in models[0].named_buffers())
    assert steps[0](**own_batch(case, steps[0].program, 0)).isfinite()


def test_a_meta_model_that_cannot_initialise_itself_is_refused(programs: Any) -> None:
    case = BY_NAME["rotary"]
    with pytest.raises(
        RuntimeFault, match=r"the root module \(RotaryLM\) has parameters or buffers on the meta device and no"
    ):
        load_step(programs("rotary"), on_meta(case))
    called: list[str] = []

    def init(module: nn.Module) -> None:
        called.append(type(module).__name__)
        for parameter in module.parameters(recurse=False):
            parameter.fill_(0.5)
        for buffer in module.buffers(recurse=False):
            buffer.fill_(0.25)

    model = on_meta(case)
    load_step(programs("rotary"), model, init=init)
    assert "RotaryLM" in called
    assert all(bool((parameter == 0.5).all()) for parameter in model.parameters())
    assert all(bool((buffer == 0.25).all()) for buffer in model.buffers())

    def lazy(module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            parameter.fill_(0.5)

    with pytest.raises(
        RuntimeFault, match=r"buffer '.*' is on the meta device and its module's reset_parameters\(\) does"
    ):
        load_step(programs("rotary"), on_meta(case), init=lazy)

    def failing(module: nn.Module) -> None:
        raise ValueError("no")

    with pytest.raises(RuntimeFault, match="cannot be initialised shard by shard: no"):
        load_step(programs("rotary"), on_meta(case), init=failing)
