"""What a rank of a compiled pipeline owns: values, names, buffers, initialisation, and a whole model's state."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_case import run_ranks
from models import BY_NAME, RotaryLM, TiedLM
from torch import Tensor, nn

import hpir
from hpir.errors import RuntimeFault
from hpir.runtime.program import Program
from hpir.runtime.step import STEPS, Step

PLAN: dict[str, Any] = {"mesh": {"pp": 2}, "data": {"microbatches": 2}, "pipeline": {}}


class Mixed(nn.Module):
    """A module whose own parameters belong to two stages, with an initialisation that draws both."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(4, 4))
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.last = nn.Parameter(torch.empty(4))
        self.register_buffer("shift", torch.zeros(4))
        self.shift: Tensor
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.first)
        nn.init.normal_(self.last)
        nn.init.ones_(self.shift)

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.first
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x * self.last + self.shift


def train_mixed(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return Mixed()


def values_of(step: Step) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in step.state_dict().items()}


def initialised(rank: int, where: str) -> dict[str, Tensor]:
    """Return what a rank has of a model that was on the meta device; nothing of the other stage was made."""
    step = Step(Program.load(where), on_meta())
    state = step.model.state_dict()
    own = step.state_dict()
    for name, value in state.items():
        assert value.is_meta == (name not in own), name
    assert step(x=torch.ones(4, 4)).isfinite()
    return values_of(step)


@pytest.mark.timeout(120)
def test_a_meta_model_starts_with_the_values_it_has_without_a_pipeline(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        exported = hpir.export(Mixed(), train_mixed, {"x": torch.ones(2, 4)})
    hpir.compile_program(exported, PLAN).save(tmp_path)
    whole = values_of(Step(hpir.compile_program(exported), on_meta()))
    results = run_ranks(initialised, 2, str(tmp_path))
    assert {name for result in results for name in result} == set(whole)
    assert [name for name in results[0] if name in results[1]] == [STEPS]
    for result in results:
        for name, value in result.items():
            if name != STEPS:
                assert torch.equal(value, whole[name]), name


def loading(rank: int, where: str) -> list[str]:
    """Load a whole model's state, a rank's own, and what is neither; return the names this rank owns."""
    torch.manual_seed(0)
    model, other = RotaryLM(layers=4), RotaryLM(layers=4)
    step = Step(Program.load(where), model)
    state = other.state_dict()
    step.load_state_dict(state)
    owned = [name for name in step.state_dict() if name != STEPS]
    for name, value in step.state_dict().items():
        assert name == STEPS or torch.equal(value, state[name]), name
    step.load_state_dict(values_of(step))
    foreign = next(name for name in state if name not in owned)
    with pytest.raises(RuntimeFault, match=rf"'{foreign}': expected shape \[.*\], got: \[1\]"):
        step.load_state_dict({**state, foreign: torch.ones(1)})
    with pytest.raises(RuntimeFault, match=f"state lacks '{owned[0]}'"):
        step.load_state_dict({name: value for name, value in state.items() if name != owned[0]})
    with pytest.raises(RuntimeFault, match=f"state lacks '{foreign}'"):
        step.load_state_dict({name: value for name, value in state.items() if name != foreign})
    with pytest.raises(RuntimeFault, match="state has no parameter or buffer 'nobody'"):
        step.load_state_dict({**state, "nobody": torch.ones(1)})
    # Buffers that a checkpoint does not have are where they are used, and nowhere else.
    buffers = dict(model.named_buffers())
    assert buffers and all(buffer.is_meta or buffer.isfinite().all() for buffer in buffers.values())
    assert list(model.state_dict()) == list(state)
    return owned


@pytest.mark.timeout(120)
def test_a_whole_models_state_is_taken_from(tmp_path: Path) -> None:
    case = BY_NAME["rotary"]
    torch.manual_seed(0)
    model = RotaryLM(layers=4)
    hpir.compile_program(hpir.export(model, case.train, case.data(2), batch_dims=case.batch_dims), PLAN).save(tmp_path)
    first, second = run_ranks(loading, 2, str(tmp_path))
    assert first and second and set(first) | set(second) == set(model.state_dict())


class Plain(nn.Module):
    """Two layers; on the first stage alone a parameter, or buffers, that nothing here initialises."""

    def __init__(self, scaled: bool = False, shifted: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4)) if scaled else None
        self.register_buffer("shift", torch.zeros(4) if shifted else None)
        self.shift: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x if self.shift is None else x + self.shift)
        out: Tensor = self.last(x if self.scale is None else x * self.scale)
        return out


class Lopsided(nn.Module):
    """All parameters are in the first stage."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x))
        return out


def refused(rank: int) -> list[str]:
    """Do on real ranks what concerns one stage's state alone; return what this rank is told."""
    plan = {**PLAN, "pipeline": {"stages": [["first"], ["last"]]}}
    batch = {"x": torch.ones(4, 4)}
    told = []

    def note(model: nn.Module, plan: dict[str, Any]) -> None:
        with pytest.raises(RuntimeFault) as caught:
            hpir.compile(model, train_mixed, batch, plan=plan)
        told.append(str(caught.value))

    for model in (Plain(), Lopsided()):
        torch.manual_seed(0)
        model.apply(lambda module: module.reset_parameters() if isinstance(module, nn.Linear) else None)
        step = hpir.compile(model, train_mixed, batch, plan=plan)
        loss = step(**batch)
        note(model, plan)
        note(copy.deepcopy(model), plan)
        assert torch.equal(step(**batch), loss)
    with torch.device("meta"):
        divided, scaled, shifted = Plain(), Plain(scaled=True), Plain(shifted=True)
    hpir.compile(divided, train_mixed, batch, plan=plan)
    for model in (divided, scaled, shifted):
        note(model, plan)
    return told


@pytest.mark.timeout(120)
def test_what_is_wrong_on_one_stage_all_ranks_are_told_of() -> None:
    results = run_ranks(refused, 2, timeout=100)
    already = "is another rank's already: compile the model before it is divided into stages"
    root = "has parameters or buffers on the meta device and no reset_parameters(): pass init="
    for rank, told in enumerate(results):
        foreign = ("last.weight", "first.weight")[rank]
        assert told[:2] == [f"parameter '{foreign}' {already}"] * 2
        front = "rank 1: " if rank == 0 else ""
        assert told[2:4] == [f"{front}parameter 'first.weight' {already}"] * 2
        assert told[4] == f"parameter '{foreign}' {already}"
        assert len(told) == 7
        for text in told[5:]:
            assert f"the root module (Plain) {root}" in text
    assert [sum(told[number].startswith("rank ") for told in results) for number in (5, 6)] == [1, 1]


def compiled(rank: int) -> list[float]:
    """Compile on every rank, train and evaluate."""
    case = BY_NAME["tied"]
    torch.manual_seed(0)
    model = TiedLM(layers=4)
    batch = case.data(4)
    step = hpir.compile(model, case.train, batch, plan=PLAN, batch_dims=case.batch_dims)
    optimiser = torch.optim.AdamW(step.parameters(), lr=1e-2)
    losses = []
    for _ in range(2):
        optimiser.zero_grad()
        losses += [float(step.evaluate(**batch)[0]), float(step(**batch))]
        step.clip_grad_norm_(1.0)
        optimiser.step()
    return losses


@pytest.mark.timeout(180)
def test_compiled_on_every_rank() -> None:
    case = BY_NAME["tied"]
    torch.manual_seed(0)
    model = TiedLM(layers=4)
    batch = case.data(4)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    expected = []
    for _ in range(2):
        optimiser.zero_grad()
        loss: Any = sum(
            case.train(model, **{name: leaf.chunk(2)[part] for name, leaf in batch.items()}) for part in range(2)
        )
        (loss / 2).backward()
        expected += [float(loss.detach() / 2)] * 2
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    for losses in run_ranks(compiled, 2, timeout=150):
        assert losses == pytest.approx(expected, rel=1e-5)
