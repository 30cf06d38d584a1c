"""What of a stage function reduces its gradients: the ops from the gradients of one microbatch to what it returns.

Reductions are linear: the reduction of a sum is the sum of the reductions. So these ops may as well follow the sum over
all microbatches, where nothing else reads what they make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch_mlir import ir

from ...dialect.signature import body_of
from ...dialect.types import tensor_type
from ..views import CASTS, VIEWS, operator_name
from .call_sites import Stage

REDUCTIONS = frozenset({"hp.all_reduce", "hp.reduce_scatter"})
_BEHIND = frozenset({"hp.pack", "hp.unpack", "hp.wait", *REDUCTIONS})
_LINKS = VIEWS | CASTS | {"aten.cat", "prim.ListConstruct"}


@dataclass(eq=False)
class ReductionChain:
    """Gradients that are reduced together.

    Attributes:
        start: the first collective.
        ops: that reduce them, in an order in which they can run; constants left out.
        sources: the unreduced gradients, each with the numbers of the results that are made of it.
        results: per number of a result that is made of them, the value.
        obstacle: why it must stay; empty where it need not.
    """

    start: ir.Operation
    ops: list[ir.Operation] = field(default_factory=list)
    sources: dict[ir.Value, list[int]] = field(default_factory=dict)
    results: dict[int, ir.Value] = field(default_factory=dict)
    obstacle: str = ""


def find_chains(stage: Stage) -> list[ReductionChain]:
    """Return what reduces gradients in a stage function, in the order of the first collectives."""
    search = _Search(stage)
    chains = [chain for chain in search.chains if chain.results]
    for chain in chains:
        if not chain.obstacle:
            _complete(chain)
    return chains


def is_constant(value: ir.Value) -> bool:
    """Tell whether a value is a constant or a list of constants."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return False
    op = owner.operation  # the view of an op may have an accessor `name` of its own
    if op.name == "torch.prim.ListConstruct":
        return all(is_constant(operand) for operand in op.operands)
    return bool(op.name.startswith("torch.constant."))


class _Search:
    """Finds chains by one walk: a reduction begins one, and what reads a chain is of it, or an obstacle to it."""

    def __init__(self, stage: Stage):
        self._of: dict[ir.Value, ReductionChain] = {}
        self._joined: dict[ReductionChain, ReductionChain] = {}
        self.chains: list[ReductionChain] = []
        for view in body_of(stage.op).operations:
            op = view.operation
            read = [self._root(self._of[operand]) for operand in op.operands if operand in self._of]
            starts = op.name in REDUCTIONS and "coordinates" not in op.attributes
            if not read and not starts:
                continue
            if op.name == "func.return":
                self._end(op, stage)
            elif not starts and op.name not in _BEHIND and operator_name(op) not in _LINKS:
                for chain in read:
                    chain.obstacle = chain.obstacle or f"'{op.name}' reads what it gives"
            else:
                self._extend(op, read)

    def _root(self, chain: ReductionChain) -> ReductionChain:
        while chain in self._joined:
            chain = self._joined[chain]
        return chain

    def _extend(self, op: ir.Operation, read: Sequence[ReductionChain]) -> None:
        if read:
            chain, *others = dict.fromkeys(read)
            for other in others:
                chain.ops += other.ops
                chain.obstacle = chain.obstacle or other.obstacle
                self._joined[other] = chain
                self.chains.remove(other)
        else:
            chain = ReductionChain(op)
            self.chains.append(chain)
        chain.ops.append(op)
        self._of.update((result, chain) for result in op.results)

    def _end(self, op: ir.Operation, stage: Stage) -> None:
        for number, (value, info) in enumerate(zip(op.operands, stage.signature.results, strict=True)):
            if value not in self._of:
                continue
            chain = self._root(self._of[value])
            if info.role == "grad":
                chain.results[number] = value
            else:
                chain.obstacle = chain.obstacle or f"{info.role} '{info.name}' is made of what it gives"


def _complete(chain: ReductionChain) -> None:
    """Find the unreduced gradients of a chain, before padding and packing, and what is made of each."""
    made = {result for op in chain.ops for result in op.results}
    given = dict.fromkeys(
        operand for op in chain.ops for operand in op.operands if operand not in made and not is_constant(operand)
    )
    ahead: list[ir.Operation] = []
    sources: dict[ir.Value, None] = {}
    for value in given:
        for source in _unpacked(value, made, ahead):
            sources[source] = None
    for source in sources:
        if tensor_type(source.type) is None:
            chain.obstacle = f"it reads a value of type {source.type}"
            return
    chain.ops[:0] = ahead
    chain.sources = {source: [] for source in sources}
    parts = _Parts(chain)
    for number, value in chain.results.items():
        for source in parts.of(value):
            chain.sources[source].append(number)


def _unpacked(value: ir.Value, made: set[ir.Value], ahead: list[ir.Operation]) -> Iterator[ir.Value]:
    """Yield what a value is packed and padded from; the ops that do so, which the chain alone reads, go to `ahead`."""
    ops, sources = _packing(value)
    inner = made | {result for op in ops for result in op.results}
    if not all(_read_only_by(result, inner) for op in ops for result in op.results):
        ops, sources = [], [value]
    if not ops:
        yield value
        return
    made |= {result for op in ops for result in op.results}
    for source in sources:
        yield from _unpacked(source, made, ahead)
    ahead += ops


def _packing(value: ir.Value) -> tuple[list[ir.Operation], list[ir.Value]]:
    """Return the ops that pack or pad a value, in order, and what they are given; none where it is not made so."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return [], [value]
    op = owner.operation
    if op.name == "hp.pack":
        return [op], list(op.operands)
    if _is_padding(op):
        return [op], [op.operands[0]]
    if operator_name(op) != "aten.cat" or not is_constant(op.operands[1]):
        return [], [value]
    # Shards with padding in between: pieces of one tensor, each padded.
    listed = op.operands[0].owner.operation
    pieces: dict[ir.Value, ir.Operation] = {}
    sources: dict[ir.Value, None] = {}
    for piece in listed.operands:
        steps = {}
        for is_step in (_is_padding, _is_slice):
            if not isinstance(piece.owner, ir.Block) and is_step(piece.owner.operation):
                steps[piece] = piece.owner.operation
                piece = steps[piece].operands[0]
        pieces.update(reversed(steps.items()))
        sources[piece] = None
    return ([*pieces.values(), listed, op], list(sources)) if len(sources) == 1 else ([], [value])


def _is_padding(op: ir.Operation) -> bool:
    if operator_name(op) != "aten.constant_pad_nd" or not all(map(is_constant, list(op.operands)[1:])):
        return False
    filled = op.operands[2].owner.operation.attributes
    return "value" in filled and isinstance(filled["value"], ir.FloatAttr) and filled["value"].value == 0.0


def _is_slice(op: ir.Operation) -> bool:
    return operator_name(op) == "aten.slice.Tensor" and all(map(is_constant, list(op.operands)[1:]))


def _read_only_by(value: ir.Value, made: set[ir.Value]) -> bool:
    users = (use.owner.operation for use in value.uses)
    return all(len(user.results) and user.results[0] in made for user in users)


class _Parts:
    """Which sources of a chain each of its values is made of, those of a packed tensor's members told apart."""

    def __init__(self, chain: ReductionChain):
        self._members: dict[ir.Value, list[set[ir.Value]]] = {source: [{source}] for source in chain.sources}
        for op in chain.ops:
            given = [self._members.get(operand, []) for operand in op.operands]
            for number, result in enumerate(op.results):
                self._members[result] = self._made(op, number, [members for members in given if members])

    def of(self, value: ir.Value) -> list[ir.Value]:
        """Return the sources of a value."""
        return list(_union(self._members[value]))

    def _made(self, op: ir.Operation, number: int, given: list[list[set[ir.Value]]]) -> list[set[ir.Value]]:
        if op.name == "hp.pack":
            return [_union(members) for members in given]
        if op.name == "hp.unpack":
            return [given[0][number]] if len(given[0]) == len(op.results) else [_union(given[0])]
        if op.name in REDUCTIONS:
            return [member for members in given for member in members]
        if op.name == "hp.wait":
            return given[0] if len(op.results) == 1 else self._arrived(op, number)
        if operator_name(op) in CASTS:
            return given[0]
        return [_union([member for members in given for member in members])]

    def _arrived(self, op: ir.Operation, number: int) -> list[set[ir.Value]]:
        return self._members[op.operands[0].owner.operation.operands[number]]


def _union(members: Sequence[set[ir.Value]]) -> set[ir.Value]:
    return set().union(*members)
