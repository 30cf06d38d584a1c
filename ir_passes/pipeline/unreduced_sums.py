"""A rank's function that adds up unreduced gradients and reduces the sums, in place of sums of reduced ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch_mlir import ir

from ...dialect.signature import body_of, return_of
from ...dialect.types import DTYPE_BYTES
from ..build import Builder, Site, type_of
from .call_sites import Rank, Stage, call_again
from .gradient_sums import ACCUMULATE, GradientSum
from .messages import by_type
from .reduction_chains import ReductionChain


@dataclass(frozen=True, eq=False)
class Sinking:
    """What moves out of a stage function.

    Attributes:
        stage: the function.
        chains: that move.
        kept: numbers of the results that stay.
        sources: the unreduced gradients to return behind these, each with the numbers of the results made of it.
    """

    stage: Stage
    chains: Sequence[ReductionChain]
    kept: Sequence[int]
    sources: Mapping[ir.Value, Sequence[int]]


Sums = Mapping[tuple[str, int], GradientSum]
"""The sums of a rank's function, by stage function and number of the result."""

_Key = tuple[str, int]
"""A stage function and the number of an unreduced gradient among those that it is to return."""


@dataclass
class _Edit:
    """An `hp.accumulate` in which sums of reduced gradients make room for those of unreduced ones.

    `added` are these, each with the number of the call that makes what is added.
    """

    op: ir.Operation
    dropped: set[int] = field(default_factory=set)
    added: list[tuple[_Key, int]] = field(default_factory=list)


def sum_unreduced(builder: Builder, rank: Rank, sinkings: Mapping[str, Sinking], sums: Sums) -> None:
    """Rewrite a rank's function; nothing here can be refused any more.

    Args:
        builder: of the function.
        rank: it.
        sinkings: by stage function, what moves; the functions still are as they were.
        sums: of all results that change.
    """
    called = {name: sinking for name, sinking in sinkings.items() if name in rank.calls}
    if called:
        _Rewrite(builder, rank, called, sums).run()


class _Rewrite:
    """One function on its way from sums of reduced gradients to reduced sums."""

    def __init__(self, builder: Builder, rank: Rank, sinkings: Mapping[str, Sinking], sums: Sums):
        self._builder = builder
        self._rank = rank
        self._sinkings = sinkings
        self._sums = sums
        self._positions: dict[ir.Value, int] = {}
        for position, view in enumerate(body_of(rank.op).operations):
            if len(view.operation.results):
                self._positions[view.operation.results[0]] = position
        self._end = return_of(rank.op)
        self._keys = {
            name: {source: (name, number) for number, source in enumerate(sinking.sources)}
            for name, sinking in sinkings.items()
        }
        self._partial: dict[_Key, list[ir.Value]] = {}  # of each call
        self._totals: dict[_Key, ir.Value] = {}  # so far
        self._last: dict[_Key, ir.Operation] = {}  # the op that makes it
        self._behind: dict[ir.Value, ir.Operation] = {}  # by what an op makes, the last op that was put behind it
        self._old: list[ir.Operation] = []

    def run(self) -> None:
        """Rewrite calls, then sums, then put the reductions behind these."""
        edits = self._edits()
        waits = {
            chain: self._first_use(name, chain) for name, sinking in self._sinkings.items() for chain in sinking.chains
        }
        for name, sinking in self._sinkings.items():
            self._call_again(name, sinking)
        for edit in edits:
            self._accumulate(edit)
        for name, sinking in self._sinkings.items():
            for chain in sinking.chains:
                self._reduce(name, chain, waits[chain])
        for op in reversed(self._old):
            op.erase()

    def _edits(self) -> list[_Edit]:
        """Return the changed additions, in order."""
        edits: dict[ir.Value, _Edit] = {}

        def edit(op: ir.Operation) -> _Edit:
            return edits.setdefault(op.results[0], _Edit(op))

        for name, sinking in self._sinkings.items():
            keys = self._keys[name]
            added: set[_Key] = set()
            for chain in sinking.chains:
                found = [self._sums[name, number] for number in chain.results]
                for gradient_sum in found:
                    for op, place in gradient_sum.steps:
                        edit(op).dropped.add(place)
                new = [keys[source] for source in chain.sources if keys[source] not in added]
                added.update(new)
                for number, (op, _) in enumerate(found[0].steps, 1):
                    edit(op).added += [(key, number) for key in new]
        return sorted(edits.values(), key=lambda edit: self._positions[edit.op.results[0]])

    def _first_use(self, name: str, chain: ReductionChain) -> ir.Operation:
        uses = [use.owner.operation for number in chain.results for use in self._sums[name, number].total.uses]
        before = [user for user in uses if len(user.results)]  # what has no results is the end
        return min(before, key=lambda user: self._positions[user.results[0]], default=self._end)

    def _call_again(self, name: str, sinking: Sinking) -> None:
        """Make the calls with their new results, and the first of them the first sums."""
        calls = self._rank.calls[name]
        unreduced = [source.type for source in sinking.sources]
        results = []
        for call in calls:
            types = [*(call.results[number].type for number in sinking.kept), *unreduced]
            again = call_again(call, list(call.operands), types)
            for number, result in zip(sinking.kept, again.results, strict=False):
                call.results[number].replace_all_uses_with(result)
            results.append(list(again.results)[len(sinking.kept) :])
            self._old.append(call)
        for (source, leads_to), partial in zip(sinking.sources.items(), zip(*results, strict=True), strict=True):
            key = self._keys[name][source]
            self._partial[key] = list(partial)
            self._totals[key], self._last[key] = partial[0], partial[0].owner.operation
            if len(calls) > 1:
                dtype = self._dtype(source, [self._sums[name, number].total for number in leads_to])
                self._totals[key] = self._cast(partial[0], dtype, self._last[key])
        for chain in sinking.chains:
            casts = [self._sums[name, number].cast for number in chain.results]
            self._old += [cast for cast in casts if cast is not None]

    def _dtype(self, source: ir.Value, totals: Sequence[ir.Value]) -> str:
        """Return the widest dtype: neither the old sums nor what is added may lose bits."""
        return max((type_of(value).dtype for value in (source, *totals)), key=DTYPE_BYTES.__getitem__)

    def _accumulate(self, edit: _Edit) -> None:
        op = edit.op
        count = len(op.results)
        pairs: list[tuple[ir.Value, ir.Value, int | _Key]] = [
            (op.operands[place], op.operands[count + place], place)
            for place in range(count)
            if place not in edit.dropped
        ]
        pairs += [(self._totals[key], self._partial[key][number], key) for key, number in edit.added]
        self._old.append(op)
        if not pairs:
            return
        pairs = by_type(pairs, lambda pair: (pair[0].type, pair[1].type))
        again = ir.Operation.create(
            ACCUMULATE,
            results=[before.type for before, _, _ in pairs],
            operands=[*(before for before, _, _ in pairs), *(value for _, value, _ in pairs)],
            attributes={name: op.attributes[name] for name in op.attributes},
            loc=op.location,
            ip=ir.InsertionPoint(op),
        )
        for (_, _, which), total in zip(pairs, again.results, strict=True):
            if isinstance(which, int):
                op.results[which].replace_all_uses_with(total)
            else:
                self._totals[which], self._last[which] = total, again

    def _reduce(self, name: str, chain: ReductionChain, use: ir.Operation) -> None:
        """Copy a chain: up to its start behind the last sum it needs, the rest to the first use of what it gives."""
        keys = {source: self._keys[name][source] for source in chain.sources}
        last = self._latest([self._last[key] for key in keys.values()])
        values = {source: self._cast(self._totals[key], type_of(source).dtype, last) for source, key in keys.items()}
        late: set[ir.Value] = set()
        for op in chain.ops:
            for operand in op.operands:
                if operand not in values:
                    self._copy_constant(operand, values, last)
            if op.name == "hp.wait" or any(operand in late for operand in op.operands):
                copy = op.clone(ip=ir.InsertionPoint(use)).operation
                late.update(op.results)
            else:
                copy = self._put_behind(last, op)
            for number, operand in enumerate(op.operands):
                copy.operands[number] = values[operand]
            values.update(zip(op.results, copy.results, strict=True))
        for number, value in chain.results.items():
            total = self._sums[name, number].total
            reduced = self._builder.cast(Site.before(use), values[value], type_of(total).dtype)
            total.replace_all_uses_with(reduced)

    def _latest(self, ops: Sequence[ir.Operation]) -> ir.Operation:
        latest, *others = {op.results[0]: op for op in ops}.values()
        for op in others:
            latest = op if latest.is_before_in_block(op) else latest
        return latest

    def _copy_constant(self, value: ir.Value, values: dict[ir.Value, ir.Value], last: ir.Operation) -> None:
        op = value.owner.operation
        for operand in op.operands:
            if operand not in values:
                self._copy_constant(operand, values, last)
        copy = self._put_behind(last, op)
        for number, operand in enumerate(op.operands):
            copy.operands[number] = values[operand]
        values.update(zip(op.results, copy.results, strict=True))

    def _put_behind(self, last: ir.Operation, op: ir.Operation) -> ir.Operation:
        before = self._behind.get(last.results[0], last)
        copy: ir.Operation = op.clone(ip=ir.InsertionPoint.after(before)).operation
        self._behind[last.results[0]] = copy
        return copy

    def _cast(self, value: ir.Value, dtype: str, last: ir.Operation) -> ir.Value:
        before = self._behind.get(last.results[0], last)
        cast = self._builder.cast(Site.after(before), value, dtype)
        if cast != value:
            self._behind[last.results[0]] = cast.owner.operation
        return cast
