"""The functions of stages as data, and the attributes of functions and modules that state text or a number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch_mlir import ir

from ..dialect.diagnostics import error_at
from ..dialect.signature import Signature, ValueInfo

FORWARD, BACKWARD = "forward", "backward"
BACKWARD_INPUT, BACKWARD_WEIGHT = "backward_input", "backward_weight"
TASKS = (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
"""What a function of a stage does, in the order in which they run for one microbatch."""

_LETTERS = {FORWARD: "f", BACKWARD: "b", BACKWARD_INPUT: "i", BACKWARD_WEIGHT: "w"}


def value_prefix(task: str, stage: int) -> str:
    """Return what the names of the values that a stage's function makes begin with: ``f0.``."""
    return f"{_LETTERS[task]}{stage}."


@dataclass(frozen=True, eq=False)
class StageFunction:
    """A function of a stage: what it does (one of `TASKS`), and what it takes and returns; compared by identity."""

    op: ir.Operation
    name: str
    stage: int
    task: str
    signature: Signature

    def __str__(self) -> str:
        return f"@{self.name}"

    @property
    def prefix(self) -> str:
        """What the names of values that it makes begin with."""
        return value_prefix(self.task, self.stage)

    @property
    def order(self) -> tuple[int, int]:
        """Its place among all: forwards from the first stage on, then backwards from the last stage on."""
        rank = {FORWARD: 0, BACKWARD: 1, BACKWARD_INPUT: 1, BACKWARD_WEIGHT: 2}[self.task]
        return (rank, self.stage if rank == 0 else -self.stage)

    @property
    def taken(self) -> tuple[ValueInfo, ...]:
        """The arguments that other functions make."""
        return tuple(info for info in self.signature.arguments if info.role in ("incoming", "saved"))

    @property
    def made(self) -> tuple[ValueInfo, ...]:
        """The results that other functions take."""
        return tuple(info for info in self.signature.results if info.role in ("outgoing", "saved"))

    @cached_property
    def result_types(self) -> tuple[ir.Type, ...]:
        """The types of its results in MLIR."""
        return tuple(ir.FunctionType(ir.TypeAttr(self.op.attributes["function_type"]).value).results)


def text_attribute(op: ir.Operation, name: str, expected: str = "a string") -> str:
    """Return an attribute of a module or function that is text; `expected` says what in messages.

    Raises:
        IRError: it is missing or something else.
    """
    attribute = op.attributes.get(name)
    if not isinstance(attribute, ir.StringAttr):
        raise error_at(op, f"expected {name} to be {expected}, got: {_spelled(attribute)}", named=False)
    return str(attribute.value)


def number_attribute(op: ir.Operation, name: str, expected: str = "a number") -> int:
    """Return an attribute of a module or function that is a number, not negative; `expected` says what in messages.

    Raises:
        IRError: it is missing or something else.
    """
    attribute = op.attributes.get(name)
    if not isinstance(attribute, ir.IntegerAttr) or attribute.value < 0:
        raise error_at(op, f"expected {name} to be {expected}, got: {_spelled(attribute)}", named=False)
    return int(attribute.value)


def _spelled(attribute: ir.Attribute | None) -> str:
    return "nothing" if attribute is None else str(attribute)
