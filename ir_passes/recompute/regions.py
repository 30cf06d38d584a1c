"""What a function offers for recomputation: the ops of checkpointed regions, and what stands between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from torch_mlir import ir

from ...dialect.attributes import read_ints
from ...dialect.diagnostics import IRError, error_at
from ...dialect.signature import body_of
from ..effects import Effect, effect_of
from ..phases import FORWARD, Phases
from ..views import VIEWS, holds_tensors, is_link, operator_name

RECOMPUTE, RECOMPUTED, SAVED = "hp.recompute", "hp.recomputed", "hp.saved"

# Of what `views` lists, these give new memory.
_COPIES = frozenset({"aten.clone", "aten.contiguous"})
_LISTS = frozenset({"torch.prim.ListConstruct", "torch.prim.TupleConstruct"})
_NOT_TWICE = {
    Effect.RANDOM: "draws from torch's generator: computed again, it would draw other numbers",
    Effect.MUTATING: "changes an operand, which cannot be done twice",
    Effect.OPAQUE: "nothing is known of it that would allow to compute it again",
}


class Kind(Enum):
    """What may be done with an op that stands between the forward's values and the backward."""

    REPEAT = "repeat"
    """In a region: cloned where the backward needs it."""

    GATHER = "gather"
    """Of a parameter's gather, in no region: cloned where a clone needs it, unless the backward has its value."""

    VIEW = "view"
    """A view in no region: alive with what it is a view of."""

    KEEP = "keep"
    """In a region, and its results stay as they are: scalars, constants, operators of which nothing is known."""


@dataclass(frozen=True)
class Candidate:
    """An op that matters for recomputation, `region` its region's number, or None for one that is in none."""

    op: ir.Operation
    kind: Kind
    region: int | None = None

    @property
    def is_view(self) -> bool:
        """Whether its results share memory with its operands."""
        return is_view(self.op)


def is_view(op: ir.Operation) -> bool:
    """Return whether an op's results share the memory of its one tensor operand, as far as its name tells."""
    name = operator_name(op)
    return name in VIEWS and name not in _COPIES and is_link(op)


class Candidates:
    """All candidates of a function, in order, from one walk.

    Args:
        function: a `func.func` with one block.
        phases: of the function.

    Attributes:
        found: the candidates.
        made: number of the candidate that makes a value.

    Raises:
        IRError: `hp.recompute` is malformed, or a region has an op that cannot be computed twice.
    """

    def __init__(self, function: ir.Operation, phases: Phases):
        self.found: list[Candidate] = []
        self.made: dict[ir.Value, int] = {}
        self._phases = phases
        self._state = set(_parameters(function))
        for view in body_of(function).operations:
            op = view.operation
            candidate = self._classify(op)
            if candidate is not None:
                self.made.update((result, len(self.found)) for result in op.results)
                self.found.append(candidate)

    def of(self, value: ir.Value) -> Candidate | None:
        """Return the candidate that makes a value, if one does."""
        number = self.made.get(value)
        return None if number is None else self.found[number]

    def _classify(self, op: ir.Operation) -> Candidate | None:
        if RECOMPUTE in op.attributes:
            return self._tagged(op)
        name = op.name
        if name.startswith("torch.constant.") or self._phases.of(op) != FORWARD:
            return None
        if name == "hp.all_gather":
            is_parameters = all(operand in self._state for operand in op.operands)
            return Candidate(op, Kind.GATHER) if is_parameters else None
        makers = [maker for maker in map(self.of, op.operands) if maker is not None]
        if not makers:
            if any(operand in self._state for operand in op.operands) and is_link(op):
                self._state.update(op.results)
            return None
        if name == "hp.wait":
            return Candidate(op, Kind.GATHER) if makers[0].kind is Kind.GATHER else None
        if name in _LISTS:
            # A list is no value of its own: it goes where what it holds goes.
            held = next((maker for kind in (Kind.REPEAT, Kind.GATHER) for maker in makers if maker.kind is kind), None)
            return None if held is None else Candidate(op, held.kind, held.region)
        if all(maker.kind is Kind.GATHER for maker in makers) and (is_link(op) or _is_joined(op)):
            return Candidate(op, Kind.GATHER)
        return Candidate(op, Kind.VIEW) if is_view(op) else None

    def _tagged(self, op: ir.Operation) -> Candidate:
        region = region_of(op)
        if self._phases.of(op) != FORWARD:
            raise error_at(op, "is in a checkpointed region, but of the backward; expected ops of the forward alone")
        effect = effect_of(op)
        results = op.results
        if effect is Effect.COMMUNICATION:
            return self._communication(op, region)
        if effect is Effect.PURE:
            # Numbers take no memory, literals little.
            whole = op.name != "torch.vtensor.literal" and any(holds_tensors(result.type) for result in results)
            return Candidate(op, Kind.REPEAT if whole else Kind.KEEP, region)
        # Assertions have no results, operators of other namespaces no known effect.
        if effect is Effect.OPAQUE and (op.name == "torch.operator" or not len(results)) and not len(op.regions):
            return Candidate(op, Kind.KEEP, region)
        raise _refused(op, region, _NOT_TWICE[effect])

    def _communication(self, op: ir.Operation, region: int) -> Candidate:
        if op.name in ("hp.send", "hp.recv"):
            raise _refused(op, region, "what is sent once is received once")
        if op.name == "hp.wait":
            # Start and wait are one: a future is waited for once.
            start = self.of(op.operands[0])
            return Candidate(op, Kind.KEEP, region) if start is None else Candidate(op, start.kind, start.region)
        return Candidate(op, Kind.REPEAT, region)


def region_of(op: ir.Operation) -> int:
    """Return the number of the region that an op with `hp.recompute` is in.

    Raises:
        IRError: it is no number of a region.
    """
    attribute = op.attributes[RECOMPUTE]
    if not isinstance(attribute, ir.IntegerAttr) or attribute.value < 0:
        raise error_at(op, f"expected hp.recompute to be the number of a region, got: {attribute}")
    return int(attribute.value)


def saved_results(op: ir.Operation) -> list[ir.Value]:
    """Return the results of an op that something outside of its region keeps for the backward (`hp.saved`).

    Raises:
        IRError: `hp.saved` does not list numbers of results.
    """
    if SAVED not in op.attributes:
        return []
    numbers = read_ints(op.attributes[SAVED])
    results = list(op.results)
    if numbers is None or not all(0 <= number < len(results) for number in numbers):
        raise error_at(op, f"expected hp.saved to list numbers of its results, got: {op.attributes[SAVED]}")
    return [results[number] for number in numbers]


def _refused(op: ir.Operation, region: int, reason: str) -> IRError:
    return error_at(op, f"is in checkpointed region {region}: {reason}")


def _is_joined(op: ir.Operation) -> bool:
    """Return whether an op puts the rows of gathered shards together."""
    return operator_name(op) == "aten.cat"


def _parameters(function: ir.Operation) -> list[ir.Value]:
    if "arg_attrs" not in function.attributes:
        return []
    attributes: list[Mapping[str, ir.Attribute]] = [
        ir.DictAttr(item) for item in ir.ArrayAttr(function.attributes["arg_attrs"])
    ]
    role = ir.StringAttr.get("param", function.context)
    arguments = body_of(function).arguments
    return [
        argument
        for argument, named in zip(arguments, attributes, strict=True)
        if "hp.role" in named and named["hp.role"] == role
    ]
