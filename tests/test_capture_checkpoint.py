"""Regions of torch.utils.checkpoint: numbers as in eager torch, and in the IR which ops are to be recomputed."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

import pytest
import torch
from capture_check import assert_captured, regression
from models import train_regression
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import hpir
from hpir.dialect.signature import body_of, step_functions

BATCH = regression(6, 3)


class Checkpointed(nn.Module):
    """A norm and a linear layer in a checkpointed region, an output layer outside."""

    def __init__(self, **how: Any):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.how = how

    def region(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y: Tensor = self.norm(torch.tanh(self.inner(x))) * scale
        return y

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.outer(checkpoint(self.region, x, **self.how))
        return y


class Nested(Checkpointed):
    """A region within the region."""

    def region(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y: Tensor = self.norm(checkpoint(lambda y: torch.tanh(self.inner(y)), x, use_reentrant=False)) * scale
        return y


class Layers(nn.Module):
    """Three layers, each its own region."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.outer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(lambda y, layer=layer: torch.tanh(layer(y)), x, use_reentrant=False)
        y: Tensor = self.outer(x)
        return y


def _save_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator == torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE


SELECTIVE = functools.partial(create_selective_checkpoint_contexts, _save_products)


def regions(exported: hpir.Exported) -> dict[int, list[str]]:
    """Return the names of the ops to recompute, by region."""
    found = defaultdict(list)
    for view in body_of(next(step_functions(exported.module.operation))).operations:
        op = view.operation
        if "hp.recompute" in op.attributes:
            assert op.attributes["hp.phase"].value == "forward"
            found[op.attributes["hp.recompute"].value].append(op.name.removeprefix("torch.aten."))
    return dict(found)


PLAIN = ["t", "addmm", "tanh", "native_layer_norm", "mul.Scalar"]


@pytest.mark.parametrize(
    ("model", "how", "expected"),
    (
        (Checkpointed, {}, {0: PLAIN}),
        (Checkpointed, {"scale": 2.0, "preserve_rng_state": False}, {0: PLAIN}),
        (Nested, {}, {0: PLAIN}),
        (Checkpointed, {"context_fn": SELECTIVE}, {0: [name for name in PLAIN if name != "addmm"]}),
    ),
    ids=("plain", "kwargs", "nested", "selective"),
)
def test_a_region_is_captured_and_marked(
    model: type[Checkpointed], how: dict[str, Any], expected: dict[int, list[str]]
) -> None:
    exported = assert_captured(lambda: model(use_reentrant=False, **how), train_regression, BATCH)
    found = {
        number: [name.replace("mul.Tensor", "mul.Scalar") for name in names]
        for number, names in regions(exported).items()
    }
    assert found == expected


def test_each_call_is_a_region_of_its_own_and_stays_one() -> None:
    exported = assert_captured(Layers, train_regression, BATCH)
    expected = {number: ["t", "addmm", "tanh"] for number in range(3)}
    assert regions(exported) == expected
    plan = "cse,canonicalize,hp-simplify,hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp units=layers.*},hp-simplify"
    hpir.run_passes(exported.module, plan)
    kept = regions(exported)
    assert {number: [name for name in names if name != "t"] for number, names in kept.items()} == {
        number: ["addmm", "tanh"] for number in range(3)
    }


def test_what_others_save_of_a_region_is_noted() -> None:
    # Each tanh is saved by the layer after it, in another region or in none; the products within are not.
    exported = hpir.export(Layers(), train_regression, {name: leaf.float() for name, leaf in BATCH.items()})
    assert saved(exported) == {(number, "tanh"): [0] for number in range(3)}


def test_what_a_selective_checkpoint_keeps_saves_nothing_of_its_region() -> None:
    # The norm's input is the kept product; the tanh, which the norm takes, is the region's own.
    model = Checkpointed(use_reentrant=False, context_fn=SELECTIVE)
    exported = hpir.export(model, train_regression, {name: leaf.float() for name, leaf in BATCH.items()})
    assert {name for _, name in saved(exported)} <= {"mul.Scalar", "mul.Tensor"}


def saved(exported: hpir.Exported) -> dict[tuple[int, str], list[int]]:
    """Return numbers of results that are saved outside of their region, by region and op."""
    found = {}
    for view in body_of(next(step_functions(exported.module.operation))).operations:
        attributes = view.operation.attributes
        if "hp.saved" in attributes:
            name = view.operation.name.removeprefix("torch.aten.")
            found[attributes["hp.recompute"].value, name] = list(attributes["hp.saved"])
    return found


@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint. the use_reentrant parameter:UserWarning")
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")
@pytest.mark.parametrize("how", ({}, {"use_reentrant": True}), ids=("default", "reentrant"))
def test_reentrant_regions_are_refused_at_the_call(how: dict[str, Any]) -> None:
    with pytest.raises(hpir.CaptureError, match=r"reentrant checkpoint .*: pass use_reentrant=False") as error:
        hpir.export(Checkpointed(**how), train_regression, {name: leaf.float() for name, leaf in BATCH.items()})
    line = Checkpointed.forward.__code__.co_firstlineno + 1
    assert str(error.value).startswith(f"{__file__}:{line}: ")
