"""Exporting one architecture, running it on one and on two ranks, and comparing with eager."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from models import Reference, reference_step
from torch import Tensor

import hpir
from hpir.dialect.signature import body_of, step_functions
from hpir.lowering.exported import Exported
from hpir.lowering.to_program import to_program
from hpir.runtime.simulate import SimulationResult

from .architecture import Architecture
from .results import Result

ROWS = 2
"""Rows of one data rank's batch."""


@dataclass(frozen=True)
class Checked:
    """What was found of one architecture.

    Attributes:
        result: for the record.
        refusal: what `hpir.export` said, where it refused.
        one_rank: the result of one rank that is farthest from eager's, and how far.
        two_ranks: the same for two ranks with sharded parameters.
    """

    result: Result
    refusal: str = ""
    one_rank: tuple[str, float] = ("", 0.0)
    two_ranks: tuple[str, float] = ("", 0.0)


def check(architecture: Architecture) -> Checked:
    """Capture a step once, and run it on one rank and on two."""
    model = architecture.model()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    batch = architecture.data(ROWS)
    try:
        exported = hpir.export(model, architecture.train, batch, batch_dims=architecture.batch_dims)
    except hpir.CaptureError as error:
        return Checked(Result(parameters), str(error))
    one = _farthest(_one_rank(architecture, exported), _eager(architecture, 1))
    two = _farthest(_two_ranks(architecture, exported), _eager(architecture, 2))
    equal = [difference <= architecture.tolerance for _, difference in (one, two)]
    return Checked(Result(parameters, _ops(exported), *equal), "", one, two)


def check_ranks(architecture: Architecture) -> tuple[str, float]:
    """Return the result of two ranks that is farthest from one rank's with two microbatches, and how far."""
    exported = hpir.export(architecture.model(), architecture.train, architecture.data(ROWS))
    one = hpir.simulate(to_program(exported.module, microbatches=2), exported.state, architecture.data(2 * ROWS))
    again = hpir.simulate(
        to_program(exported.module, microbatches=2), exported.state, architecture.data(2 * ROWS), step=1
    )
    if torch.equal(one.loss, again.loss):
        return "the loss of another step", float("inf")  # Nothing was dropped, or the same.
    return _farthest(_two_ranks(architecture, exported), Reference(one.loss.double(), one.grads, one.buffers, []))


def _ops(exported: Exported) -> int:
    function = next(step_functions(exported.module.operation))
    return sum(1 for op in body_of(function).operations if not op.operation.name.startswith("torch.constant."))


def _one_rank(architecture: Architecture, exported: Exported) -> SimulationResult:
    program = to_program(exported.module, allow=architecture.allow)
    return hpir.simulate(program, exported.state, architecture.data(ROWS), check_types=True)


def _two_ranks(architecture: Architecture, exported: Exported) -> SimulationResult:
    plan = {"mesh": {"dp": 2}, "fsdp": {"axes": ["dp"], "units": list(architecture.units)}}
    program = hpir.compile_program(exported, plan, allow=architecture.allow)
    return hpir.simulate(program, exported.state, architecture.data(2 * ROWS), check_types=True)


def _eager(architecture: Architecture, ranks: int) -> Reference:
    return reference_step(
        architecture.model(),
        architecture.train,
        architecture.data(ranks * ROWS),
        data_ranks=ranks,
        batch_dims=architecture.batch_dims,
    )


def _farthest(found: SimulationResult, expected: Reference) -> tuple[str, float]:
    return max(_differences(found, expected), key=lambda pair: pair[1])


def _differences(found: SimulationResult, expected: Reference) -> Iterator[tuple[str, float]]:
    """Give how far each result is from the reference's, relative to its largest value.

    A gradient that is zero but for rounding has no scale of its own: it is measured against a thousandth of the
    model's largest one. A loss that the model computes in float32 is rounded once more when it is averaged.
    """
    rounding = torch.finfo(found.loss.dtype).eps
    distance = _relative(found.loss.double(), expected.loss, float(expected.loss.abs()))
    yield "loss", 0.0 if distance <= rounding else distance
    if set(found.grads) != set(expected.grads):
        yield f"gradients of {sorted(set(found.grads) ^ set(expected.grads))}", float("inf")
    largest = max(float(gradient.abs().max()) for gradient in expected.grads.values())
    for name, gradient in expected.grads.items():
        if name in found.grads:
            scale = max(float(gradient.abs().max()), largest / 1000)
            yield f"gradient of {name}", _relative(found.grads[name], gradient, scale)
    for name, buffer in expected.buffers.items():
        if name in found.buffers:
            yield f"buffer {name}", _relative(found.buffers[name], buffer, float(buffer.abs().max()))


def _relative(found: Tensor, expected: Tensor, scale: float) -> float:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if not expected.numel():
        return 0.0
    difference = float((found.double() - expected.double()).abs().max())
    return difference / scale if scale else difference
