"""How much of a function's communication nothing is computed beside, by the cost model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from ...costs import Costs
from ...dialect.diagnostics import remark
from ...dialect.types import TensorType, tensor_type
from ..views import operator_name
from .collectives import Collective, name_of

Seconds = Callable[[Collective], float]


@dataclass
class Exposure:
    """Times of a function, in seconds.

    Attributes:
        takes: number of each collective to how long it takes.
        exposed: number of each collective to how long the wait for it lasts.
        computation: how long all other ops take.
    """

    takes: dict[int, float]
    exposed: dict[int, float]
    computation: float


def measure(
    ops: Sequence[ir.Operation], order: Sequence[int], collectives: Sequence[Collective], costs: Costs, seconds: Seconds
) -> Exposure:
    """Run the ops through the cost model: one after the other, communication beside them in the order it starts in.

    Args:
        ops: of the function.
        order: their numbers in the order that they run in.
        collectives: all that are waited for once.
        costs: rates of the machine.
        seconds: how long a collective takes.
    """
    starts = {found.number: found for found in collectives}
    waits = {found.wait.number: found for found in collectives}
    found = Exposure({}, {}, 0.0)
    now = free = 0.0
    ready: dict[int, float] = {}
    estimates = _Estimates(costs)
    for number in order:
        if number in starts:
            took = found.takes[number] = seconds(starts[number])
            free = max(now, free) + took
            ready[number] = free
        elif number in waits:
            start = waits[number].number
            found.exposed[start] = max(0.0, ready[start] - now)
            now += found.exposed[start]
        else:
            took = estimates.seconds(ops[number])
            found.computation += took
            now += took
    return found


def report(function: ir.Operation, name: str, collectives: Sequence[Collective], exposure: Exposure, peak: int) -> None:
    """Make a remark at each collective, and one at the function."""
    for found in collectives:
        takes, exposed = exposure.takes[found.number], exposure.exposed[found.number]
        remark(
            found.op,
            f"of {name_of(found.op)}: {found.size} bytes over {', '.join(found.axes)} take {_time(takes)}, "
            f"{_time(exposed)} of it exposed",
        )
    takes, exposed = sum(exposure.takes.values()), sum(exposure.exposed.values())
    remark(
        function,
        f"@{name}: communication takes {_time(takes)}, {_time(exposed)} of it exposed; computation takes "
        f"{_time(exposure.computation)}; gathered parameters take at most {peak} bytes",
    )


def _time(seconds: float) -> str:
    """Spell a time with three digits that count."""
    digits = float(f"{seconds:.3g}")
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if digits >= size:
            return f"{digits / size:.3g} {unit}"
    return f"{digits / 1e-6:.3g} us"


class _Estimates:
    """Times of ops; ops of the same name and types, of which there are many, are looked at once."""

    def __init__(self, costs: Costs):
        self._costs = costs
        self._known: dict[tuple[str, tuple[ir.Type, ...], tuple[ir.Type, ...]], float] = {}

    def seconds(self, op: ir.Operation) -> float:
        """Return how long an op takes."""
        name = operator_name(op)
        if name.startswith(("constant.", "prim.", "func.")):
            return 0.0
        operands = tuple(operand.type for operand in op.operands)
        key = (name, operands, tuple(result.type for result in op.results))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._costs.estimate(name, _tensors(operands), _tensors(key[2]))
        return found


def _tensors(types: Sequence[ir.Type]) -> list[TensorType]:
    return [found for found in map(tensor_type, types) if found is not None]
