"""Models too large for this machine: exported on the meta device, with no memory for what they would hold."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import large_export
import llama
import pytest
import torch
from distributed_case import run_ranks
from llama import LLAMA_70B, LlamaSizes, build, next_token_loss
from torch import Tensor, nn
from torch.nn import functional

import hpir

TINY = LlamaSizes(dim=32, layers=2, heads=4, kv_heads=2, hidden=64, vocabulary=64, length=16)
PLAN = {"mesh": {"dp": 2}, "data": {"axes": ["dp"]}, "fsdp": {"axes": ["dp"], "units": ["layers.*"]}}

PATHS = os.pathsep.join(str(Path(file).parent) for file in (__file__, large_export.__file__, llama.__file__))
"""Where processes of their own find what is imported here."""


def tokens(rows: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(TINY.vocabulary, (2, rows, TINY.length), generator=generator)
    return {"ids": drawn[0], "labels": drawn[1]}


def on_meta(dtype: torch.dtype = torch.float32) -> nn.Module:
    with torch.device("meta"):
        return build(TINY, dtype)


def test_eight_layers_of_70b_shape_take_no_storage_and_compile() -> None:
    # The smallest matrix but the norms has 16 MB and the logits 1 GB; all the parameters have 17 GB.
    figures = large_export.fresh(8, limit_mb=900)
    assert figures.parameters == 8 * 855_654_400 + 2 * 128_256 * 8192 + 8192
    assert figures.peak_mb < 1000
    assert figures.road_peak_mb < 1000
    assert 5000 < figures.ops < 6500
    assert figures.text < 150 * figures.ops
    assert figures.debug_text < 170 * figures.ops
    assert figures.text < 400 * (figures.ops - figures.constants)
    assert 0 < figures.program < 800 * (figures.ops - figures.constants)


@pytest.mark.everything
def test_the_whole_70b_step_is_exported_in_8_gb() -> None:
    figures = large_export.fresh(80, limit_mb=8000, road=False)
    assert figures.parameters == 80 * 855_654_400 + 2 * 128_256 * 8192 + 8192
    assert figures.peak_mb < 8 * 1024 / 4
    assert figures.text < 1000 * (figures.ops - figures.constants)


def test_the_same_shape_from_transformers_takes_no_storage() -> None:
    figures = large_export.fresh(2, model="transformers", limit_mb=900, road=False)
    assert figures.parameters == 2 * 855_654_400 + 2 * 128_256 * 8192 + 8192
    assert figures.peak_mb < 1000


@pytest.mark.everything
def test_a_model_that_has_values_is_not_copied() -> None:
    script = """
        import torch
        from large_export import peak_mb
        from llama import LLAMA_70B, LlamaSizes, build, next_token_loss
        import hpir

        def export(dim, layers):
            sizes = LlamaSizes(dim, layers, heads=8, kv_heads=8, hidden=4 * dim, vocabulary=1024, length=32)
            model = build(sizes, torch.float32)
            batch = {name: torch.zeros(1, 32, dtype=torch.int64) for name in ("ids", "labels")}
            before = peak_mb()
            hpir.export(model, next_token_loss, batch)
            return sum(parameter.numel() for parameter in model.parameters()), peak_mb() - before

        export(16, 1)  # what is imported on the way
        print(*export(1536, 6))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"},
    )
    parameters, megabytes = (float(word) for word in done.stdout.split()[-2:])
    assert parameters > 170e6
    assert megabytes < 100


@pytest.mark.everything
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_on_the_meta_device_the_graph_is_that_of_a_model_with_values(dtype: torch.dtype) -> None:
    batch = tokens(2)
    plain = hpir.export(build(TINY, dtype), next_token_loss, batch)
    for inputs in (batch, {name: leaf.to("meta") for name, leaf in batch.items()}):
        model = on_meta(dtype)
        exported = hpir.export(model, next_token_loss, inputs)
        assert exported.text() == plain.text()
        assert hpir.export(build(TINY, dtype), next_token_loss, inputs).text() == plain.text()
        assert exported.state["layers.1.attention.wq.weight"] is model.get_parameter("layers.1.attention.wq.weight")
        assert all(tensor.is_meta and type(tensor) in (Tensor, nn.Parameter) for tensor in exported.state.values())


class Tables(nn.Module):
    """Constants of every kind: made in the forward, in a buffer, in a global, in a plain attribute."""

    def __init__(self, *, attribute: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(20, 20)
        self.register_buffer("scale", torch.arange(20.0), persistent=False)
        self.attribute = torch.ones(20) if attribute else 1.0

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.triu(torch.full((20, 20), float("-inf"), device=x.device), 1)
        value = self.linear(x) * self.scale * GLOBAL * torch.tensor([1.0, 2.0] * 10)
        value = value * self.attribute  # here
        y: Tensor = functional.scaled_dot_product_attention(value, x, x, attn_mask=mask)
        return y


GLOBAL = torch.arange(20.0)


def mean(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    return y.mean()


def test_constants_beside_meta_tensors_keep_their_values() -> None:
    with torch.device("meta"):
        model = Tables(attribute=False)
    batch = {"x": torch.ones(2, 20, 20)}
    exported = hpir.export(model, mean, batch)
    assert exported.text() == hpir.export(Tables(attribute=False), mean, batch).text()
    constants = [tensor for name, tensor in exported.state.items() if name.startswith("constant.")]
    assert any(torch.equal(tensor, GLOBAL) for tensor in constants)
    assert model.scale is exported.state["scale"] and model.scale.is_meta


def test_a_plain_attribute_on_the_meta_device_is_refused() -> None:
    with torch.device("meta"):
        model = Tables(attribute=True)
    lines = Path(__file__).read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(lines) if text.endswith("# here"))
    with pytest.raises(hpir.CaptureError) as caught:
        hpir.export(model, mean, {"x": torch.ones(2, 20, 20)})
    assert str(caught.value) == (
        f"{__file__}:{line}: cannot capture: a tensor on the meta device, which has no values and is no parameter or "
        "buffer, is used (register it as a buffer, or build the model on a device)"
    )
    assert isinstance(model.attribute, Tensor) and model.attribute.is_meta and model.scale.is_meta


def train_from_meta(rank: int) -> tuple[list[float], dict[str, Tensor]]:
    model = on_meta()
    batch = {name: leaf[2 * rank : 2 * rank + 2] for name, leaf in tokens(4).items()}
    step = hpir.compile(model, next_token_loss, batch, plan=PLAN)
    start = {name: tensor.full_tensor().clone() for name, tensor in step.named_parameters()}  # type: ignore[attr-defined]
    assert isinstance(model.get_buffer("freqs_cis"), Tensor) and not model.get_buffer("freqs_cis").is_meta
    optimizer = torch.optim.SGD(step.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        losses.append(float(step(**batch)))
        optimizer.step()
        optimizer.zero_grad()
    return losses, start


def test_a_llama_built_on_the_meta_device_trains_on_two_ranks() -> None:
    (losses, start), (others, _) = run_ranks(train_from_meta, 2, environment={"PYTHONPATH": PATHS})
    assert losses == others
    model = build(TINY, torch.float32)
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for loss in losses:
        expected = next_token_loss(model, **tokens(4))
        assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
        torch.autograd.backward(expected)
        optimizer.step()
        optimizer.zero_grad()
    assert losses[2] < losses[0]


def test_sizes_are_those_of_the_benchmark() -> None:
    assert large_export.LAYERS[-1] == LLAMA_70B.layers == 80
