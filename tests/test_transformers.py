"""Tiny Hugging Face models: the captured step against the graph and eager, and on data-parallel plans."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import Case, reference_step
from test_one_rank import run_graph, simulated

import hpir
from hpir.lowering.to_program import to_program

transformers = pytest.importorskip("transformers")


def tiny(kind: str, **options: Any) -> Any:
    """Build a causal LM of two layers from a configuration; nothing is downloaded."""
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        use_cache=False,
        **options,
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def train(model: Any, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=input_ids, labels=labels).loss
    return loss


def batch(rows: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, 32, (rows, 8)), "labels": torch.randint(0, 32, (rows, 8))}


CASES = (
    Case("llama", lambda: tiny("Llama"), batch, train, units=("model.layers.*",)),
    Case(
        "qwen3_tied",
        lambda: tiny("Qwen3", tie_word_embeddings=True, head_dim=4),
        batch,
        train,
        units=("model.layers.*",),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_rank_is_bit_equal_to_the_graph_and_close_to_eager(case: Case) -> None:
    model, data = case.model(), case.data(4)
    exported = hpir.export(model, case.train, data)
    graph = run_graph(exported, data)
    result = hpir.simulate(to_program(exported.module), exported.state, data)
    for key, value in simulated(result).items():
        assert torch.equal(value, graph[key]), key
    expected = reference_step(model, case.train, data)
    torch.testing.assert_close(result.loss.double(), expected.loss, rtol=1e-6, atol=0)
    assert set(result.grads) == set(expected.grads)
    for name, gradient in expected.grads.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(result.grads[name], gradient, rtol=0, atol=1e-6 * scale, msg=name)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("pipeline", ("cse", "canonicalize", "hp-simplify,canonicalize,cse"))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cleanups_change_no_result(case: Case, pipeline: str) -> None:
    model, data = case.model(), case.data(2)
    exported = hpir.export(model, case.train, data)
    before = simulated(hpir.simulate(to_program(exported.module), exported.state, data))
    hpir.run_passes(exported.module, pipeline)
    for key, value in simulated(hpir.simulate(to_program(exported.module), exported.state, data)).items():
        assert torch.equal(value, before[key]), key


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mesh", ({"dp": 2}, {"dp": 3}, {"rep": 2, "dp": 2}), ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_data_parallel_steps_equal_the_plain_loop(case: Case, mesh: dict[str, int]) -> None:
    ranks = mesh["dp"] * mesh.get("rep", 1)
    model, data = case.model(torch.float64), case.data(2 * ranks)
    exported = hpir.export(model, case.train, {name: leaf[:2] for name, leaf in data.items()})
    fsdp = {"axes": ["dp"], "replicate_axes": [axis for axis in mesh if axis != "dp"], "units": list(case.units)}
    program = hpir.compile_program(exported, {"mesh": mesh, "fsdp": fsdp})
    result = hpir.simulate(program, exported.state, data, check_types=True)
    expected = reference_step(model, case.train, data, data_ranks=ranks)
    # The models compute parts (norms, rotary angles, the loss) in float32 whatever their dtype.
    torch.testing.assert_close(result.loss.double(), expected.loss, rtol=1e-6, atol=0)
    for name, gradient in expected.grads.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(result.grads[name], gradient, rtol=0, atol=2e-6 * scale, msg=name)


def train_with_output(model: Any, input_ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, Any]:
    output = model(input_ids=input_ids, labels=labels)
    return output.loss, output


def test_a_models_output_class_becomes_a_dict_without_what_is_none() -> None:
    torch.manual_seed(0)
    model = tiny("Llama").double()
    data = batch(4)
    exported = hpir.export(model, train_with_output, {name: leaf[:2] for name, leaf in data.items()})
    outputs = hpir.simulate(to_program(exported.module, microbatches=2), exported.state, data, check_types=True).outputs
    first, second = reference_step(model, train_with_output, data, microbatches=2).outputs
    assert list(outputs) == list(first) == ["loss", "logits"]
    torch.testing.assert_close(outputs["loss"], torch.stack([first.loss, second.loss]).detach())
    torch.testing.assert_close(outputs["logits"], torch.cat([first.logits, second.logits]).detach())
