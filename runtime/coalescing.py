"""Collectives that start together travel together: one of several operands in place of one for each.

Where tensors are small a message costs more than what is in it, and every collective is a launch and a wait. So
adjacent starts of one kind over the same axes become one start, and their waits one wait where the first of them stood:
what was sent together arrives together. Nothing else moves: when communication starts is still what the Program says.
Gathers of several units stay apart. So do collectives over the axis of a pipeline: its ranks run different functions,
in which different ones may be adjacent, and yet all must start the same.

What passes have fused into a bucket stays as it is: how large buckets are was decided there. But where generated code
is run as it is, the wait for a gathered bucket and the op that takes it apart become one: a transport that gets the
pieces apart need not join them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from .program import COLLECTIVES, UNPACK_ARRIVAL, Arg, Function, Op, Program, Ref

_PER_OPERAND = ("dims", "split_dims", "concat_dims")
"""Attributes with one entry per operand; those of a bucket are its members' one after the other."""


def coalesce_program(program: Program, names: Iterable[str]) -> Program:
    """Return a Program whose functions `names` are coalesced."""
    return replace_functions(program, names, lambda function: coalesce(function, program.pipeline_axis))


def replace_functions(program: Program, names: Iterable[str], change: Callable[[Function], Function]) -> Program:
    """Return a Program whose functions `names` are what `change` makes of them."""
    changed = {name: change(program.functions[name]) for name in names}
    return replace(program, functions={**program.functions, **changed})


def unpack_arrivals(function: Function) -> Function:
    """Return a function in which waits for gathered buckets are one with the ``hp.unpack`` that alone reads them."""
    makers = {value: number for number, op in enumerate(function.ops) for value in op.results}
    readers: dict[int, list[int]] = {result.value: [-1] for result in function.results}
    for number, op in enumerate(function.ops):
        for value in op.operands():
            readers.setdefault(value, []).append(number)
    changed: dict[int, Op | None] = {}
    for number, op in enumerate(function.ops):
        if op.target != "hp.unpack" or op.kwargs["ranks"] == 1:
            continue
        (packed,) = op.operands()
        at = makers.get(packed, -1)
        wait = function.ops[at] if at >= 0 else None
        if wait is None or wait.target != "hp.wait" or len(wait.results) != 1 or readers[packed] != [number]:
            continue
        start = function.ops[makers[next(iter(wait.operands()))]]
        if start.target == "hp.all_gather":
            changed[at] = None
            changed[number] = replace(op, target=UNPACK_ARRIVAL, args=wait.args)
    if not changed:
        return function
    kept = (changed.get(number, op) for number, op in enumerate(function.ops))
    return replace(function, ops=tuple(op for op in kept if op is not None))


def coalesce(function: Function, pipeline_axis: str | None = None) -> Function:
    """Return a function with adjacent starts merged, and their waits; itself where there are none to merge.

    Args:
        function: that all ranks run, or all at a position on the pipeline's axis.
        pipeline_axis: what goes over it stays as it is.
    """
    waits = {
        value: number for number, op in enumerate(function.ops) if op.target == "hp.wait" for value in op.operands()
    }
    runs = _runs(function.ops, waits, pipeline_axis)
    if not runs:
        return function
    changed: dict[int, Op | None] = {}
    for run in runs:
        starts = [function.ops[number] for number in run]
        places = [waits[start.results[0]] for start in starts]
        changed.update(dict.fromkeys((*run[1:], *places)))
        changed[run[0]] = _merged_starts(starts)
        changed[min(places)] = _merged_waits(function.ops[min(places)], starts, [function.ops[at] for at in places])
    kept = (changed.get(number, op) for number, op in enumerate(function.ops))
    return replace(function, ops=tuple(op for op in kept if op is not None))


def position_before(function: Function, op: Op) -> int:
    """Return which op of `function` an op of the coalesced function was; of a merged one, the first it was made of."""
    return next(
        number
        for number, each in enumerate(function.ops)
        if each is op or (op.results and op.results[:1] == each.results[:1])
    )


def _runs(ops: Sequence[Op], waits: Mapping[int, int], apart: str | None) -> list[list[int]]:
    """Return positions of adjacent starts that may be merged, two or more each."""
    runs: list[list[int]] = []
    last: tuple[str, dict[str, Arg], str] | None = None
    for number, op in enumerate(ops):
        key = None
        # What is never waited for cannot be merged with what is.
        if op.target in COLLECTIVES and not op.bucket and op.results[0] in waits and apart not in _axes(op):
            kwargs = {name: arg for name, arg in op.kwargs.items() if name not in _PER_OPERAND}
            # A unit whose gathers start ahead of its use is not to be there, and take memory, as early as the one
            # before it that they start together with.
            key = op.target, kwargs, op.unit if op.target == "hp.all_gather" else ""
        if key is not None and key == last:
            runs[-1].append(number)
        elif key is not None:
            runs.append([number])
        last = key
    return [run for run in runs if len(run) > 1]


def _axes(op: Op) -> tuple[Arg, ...]:
    return _entries(op.kwargs["axes"])


def _merged_starts(starts: Sequence[Op]) -> Op:
    kwargs: dict[str, Arg] = dict(starts[0].kwargs)
    for name in _PER_OPERAND:
        if name in kwargs:
            kwargs[name] = tuple(entry for start in starts for entry in _entries(start.kwargs[name]))
    args = tuple(arg for start in starts for arg in start.args)
    members, sizes = _members(starts)
    return replace(starts[0], args=args, kwargs=kwargs, members=members, member_bytes=sizes)


def _merged_waits(first: Op, starts: Sequence[Op], waits: Sequence[Op]) -> Op:
    """Return the wait for a merged start: in the place of the `first` of the `waits`, results in order of `starts`."""
    members, sizes = _members(waits)
    return replace(
        first,
        args=(Ref(starts[0].results[0]),),
        results=tuple(value for wait in waits for value in wait.results),
        types=tuple(type_ for wait in waits for type_ in wait.types),
        members=members,
        member_bytes=sizes,
    )


def _members(ops: Sequence[Op]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the members of several ops and their bytes, where each op says whose they are."""
    if not all(op.members and len(op.members) == len(op.member_bytes) for op in ops):
        return (), ()
    return tuple(name for op in ops for name in op.members), tuple(size for op in ops for size in op.member_bytes)


def _entries(arg: Arg) -> tuple[Arg, ...]:
    assert isinstance(arg, tuple)
    return arg
