"""The functions of ranks: reading them, and rule V20.

- V20: the module states `hp.schedule`, `hp.microbatches` and `hp.placement`, the position of each stage on the pipeline
  axis. Each position has one ``@rank<i>`` (`hp.kind` "train") and one ``@evaluate<i>`` ("evaluate"), of `hp.coordinate`
  i; there are no functions but these and those of stages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch_mlir import ir

from ...dialect.attributes import read_ints
from ...dialect.diagnostics import error_at
from ...dialect.signature import Signature, body_of, function_name, read_signature, step_functions
from ..stage_function import StageFunction, number_attribute, text_attribute
from .findings import Findings
from .stage_functions import Stages, is_stage_function, read_stages

KINDS = ("train", "evaluate")
"""What rank functions are for: a whole step, or its forwards alone."""

_NAMES = {"train": "rank", "evaluate": "evaluate"}
_NAME = re.compile(r"(rank|evaluate)(\d+)")


@dataclass(frozen=True, eq=False)
class RankFunction:
    """What the ranks at one position of the pipeline axis run, and its ops in order."""

    op: ir.Operation
    name: str
    coordinate: int
    kind: str
    signature: Signature
    ops: tuple[ir.Operation, ...]

    @property
    def end(self) -> ir.Operation:
        """The terminator."""
        return self.ops[-1]


@dataclass(frozen=True)
class Pipeline:
    """A module at level "program".

    Attributes:
        stages: its stage functions.
        callees: these by name.
        microbatches: of each step and data rank.
        placement: position of each stage.
        ranks: by kind, the function of each position.
    """

    stages: Stages
    callees: dict[str, StageFunction]
    microbatches: int
    placement: tuple[int, ...]
    ranks: dict[str, tuple[RankFunction, ...]]

    @property
    def positions(self) -> int:
        """Positions on the pipeline axis."""
        return self.stages.mesh.axis_size(self.stages.axis)


def read_pipeline(module: ir.Operation, findings: Findings) -> Pipeline:
    """Read a module at level "program" (V15, V20).

    Raises:
        IRError: it is not made up of stage functions and one function per position and kind.
    """
    stages = read_stages(module, findings)
    text_attribute(module, "hp.schedule")
    microbatches = number_attribute(module, "hp.microbatches")
    if microbatches < 1:
        raise error_at(module, f"expected hp.microbatches >= 1, got: {microbatches}", named=False)
    positions = stages.mesh.axis_size(stages.axis)
    placement = _placement(module, stages, positions)
    functions: dict[tuple[str, int], RankFunction] = {}
    for function in step_functions(module):
        if not is_stage_function(function):
            rank = _read(function, stages, positions)
            functions[rank.kind, rank.coordinate] = rank
    for kind in KINDS:
        for coordinate in range(positions):
            if (kind, coordinate) not in functions:
                raise error_at(
                    module,
                    f"position {coordinate} of axis '{stages.axis}' has no function @{_NAMES[kind]}{coordinate}",
                    named=False,
                )
    ranks = {kind: tuple(functions[kind, coordinate] for coordinate in range(positions)) for kind in KINDS}
    callees = {function.name: function for function in stages.functions}
    return Pipeline(stages, callees, microbatches, placement, ranks)


def _placement(module: ir.Operation, stages: Stages, positions: int) -> tuple[int, ...]:
    placement = read_ints(module.attributes["hp.placement"]) if "hp.placement" in module.attributes else None
    if placement is None or len(placement) != stages.count or not all(0 <= place < positions for place in placement):
        got = "nothing" if placement is None else str(list(placement))
        raise error_at(
            module,
            f"expected hp.placement to be a position < {positions} on axis '{stages.axis}' for each of "
            f"{stages.count} stages, got: {got}",
            named=False,
        )
    return placement


def _read(function: ir.Operation, stages: Stages, positions: int) -> RankFunction:
    name = function_name(function)
    match = _NAME.fullmatch(name)
    if match is None:
        raise error_at(function, f"@{name} is of no stage and no rank: expected @rank<i> or @evaluate<i>")
    kind, coordinate = text_attribute(function, "hp.kind"), number_attribute(function, "hp.coordinate")
    if _NAMES.get(kind) != match[1] or coordinate != int(match[2]):
        expected = next(kind for kind, prefix in _NAMES.items() if prefix == match[1])
        raise error_at(
            function,
            f"@{name}: expected hp.kind = '{expected}' and hp.coordinate = {match[2]}, got: '{kind}', {coordinate}",
        )
    if coordinate >= positions:
        raise error_at(
            function, f"@{name}: axis '{stages.axis}' has {positions} positions, got a function of {coordinate}"
        )
    ops = tuple(view.operation for view in body_of(function).operations)
    return RankFunction(function, name, coordinate, kind, read_signature(function, stages.mesh), ops)
