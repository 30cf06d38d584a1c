"""hp-split-stages on captured steps: the stage functions together compute what the step did, each op once.

The IR is in filecheck/pipeline/split_stages*.mlir.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from exports import captured
from models import BY_NAME, CASES
from stage_placement import place_by_module
from staged_program import staged_program
from torch_mlir import ir

import hpir
from hpir.lowering.to_program import to_program

Stages = Sequence[Sequence[str]]

# By hand, for every acceptance model: layers that are split, a tie over two stages or three, state on several stages,
# a stage in the middle with nothing trainable.
STAGES: dict[str, tuple[Stages, ...]] = {
    "tied": ([["embed", "layers.0"], ["layers.1", "head"]], [["embed"], ["layers"], ["head"]]),
    "uneven": ([["up"], ["mid", "out"]], [["up"], ["mid"], ["out"]]),
    "long_skip": ([["l1"], ["l2", "l3"]], [["l1"], ["l2"], ["l3"]]),
    "rotary": ([["embed", "layers.0"], ["layers.1", "head"]], [["embed", "layers.0"], ["layers.1"], ["norm", "head"]]),
    "adapters": ([["encoder"], ["down", "up", "head"]], [["encoder"], ["down"], ["up", "head"]]),
    "unused": ([["first"], ["last"]], [["first"], [], ["last"]]),
    "convnet": ([["features"], ["head"]], [["features.0", "features.1"], ["features.3"], ["features.4", "head"]]),
    "image_text": ([["patch", "embed", "layers.0"], ["layers.1", "head"]], [["patch", "embed"], ["layers"], ["head"]]),
    "outputs": ([["embed", "layers.0"], ["layers.1", "head"]], [["embed", "layers.0"], ["layers.1"], ["head"]]),
    "ignored_tokens": ([["embed", "layers"], ["head"]], [["embed"], ["layers"], ["head"]]),
    "dropout": ([["embed", "layers.0"], ["layers.1", "head"]], [["embed"], ["layers"], ["head"]]),
    "twice": ([["shared"], ["head"]], [["shared"], [], ["head"]]),
    "strided": ([["first"], ["second"]], [["first"], ["second"], []]),
    "ignored": ([["up"], ["mid", "out"]], [["up"], ["mid"], ["out"]]),
}


def step_of(name: str) -> ir.Operation:
    """Return a captured acceptance model on a mesh with a pipeline axis."""
    return hpir.run_passes(captured(name, 4).module.operation.clone(), "hp-set-mesh{axes=pp:2},hp-simplify")


def test_every_model_has_stages() -> None:
    assert set(STAGES) == {case.name for case in CASES}


@pytest.mark.parametrize("name", sorted(STAGES))
@pytest.mark.parametrize("split", ["false", "true"])
def test_stages_compute_what_the_step_does(name: str, split: str) -> None:
    batch = BY_NAME[name].data(8, torch.float64)
    state = captured(name, 4).state
    whole = to_program(step_of(name), microbatches=2)
    expected = hpir.simulate(whole, state, batch)
    for stages in STAGES[name]:
        module = step_of(name)
        place_by_module(module, stages)
        staged = hpir.run_passes(module, f"hp-split-stages{{split-backward={split}}}")
        found = hpir.simulate(staged_program(staged, whole), state, batch, check_types=True)
        assert torch.equal(found.loss, expected.loss)
        assert set(found.grads) == set(expected.grads)
        assert set(found.buffers) == set(expected.buffers)
        for mine, theirs in ((found.grads, expected.grads), (found.buffers, expected.buffers)):
            for key, value in theirs.items():
                assert torch.equal(mine[key], value), key
