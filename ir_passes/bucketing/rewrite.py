"""Making buckets of collectives: ops move to where the plan's placement has put them, then starts and waits fuse."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from torch_mlir import ir

from ...dialect.attributes import future_type, ints_attr, read_ints, strings_attr
from ...dialect.diagnostics import remark
from ...dialect.variadic import RUNS
from .bucket_plan import Bucket
from .collectives import Collective, FunctionOps
from .placement import Placed
from .planner import Placement


def apply(ops: FunctionOps, placement: Placement) -> list[ir.Operation]:
    """Fuse the buckets of a function; nothing here can be refused any more.

    Args:
        ops: of the function, unchanged since the placement was made.
        placement: of a plan's buckets.

    Returns:
        The start of each bucket, in the order of the plan's buckets.
    """
    _move(ops, placement)
    with ops.function.context:
        return [
            _fuse(ops, bucket, placed) for bucket, placed in zip(placement.plan.buckets, placement.placed, strict=True)
        ]


def _move(ops: FunctionOps, placement: Placement) -> None:
    order, moved = placement.placer.order, placement.placer.moved
    moving = sorted((number for number in moved if number in order), key=order.labels.__getitem__)
    anchors = [(number, order.previous(number)) for number in moving]
    ops.meet(max(number, 0) for pair in anchors for number in pair)
    for number, before in anchors:
        if before < 0:
            ops.op(number).move_before(ops.op(0))
        else:
            ops.op(number).move_after(ops.op(before))


def _fuse(ops: FunctionOps, bucket: Bucket, placed: Placed) -> ir.Operation:
    members = _few_runs(placed.members)
    starts = [ops.op(member.start) for member in members]
    waits = [ops.op(member.wait) for member in members]
    results = [wait.results[0] for wait in waits]
    at_start, at_wait = ops.op(placed.start), ops.op(placed.wait)
    marks = _marks(bucket, members, starts)
    attributes = {name: at_start.attributes[name] for name in at_start.attributes}
    if "dims" in attributes:
        attributes["dims"] = ints_attr([dim for start in starts for dim in read_ints(start.attributes["dims"]) or ()])
    start = ir.Operation.create(
        at_start.name,
        results=[future_type([result.type for result in results])],
        operands=[start.operands[0] for start in starts],
        attributes={**attributes, **marks},
        loc=at_start.location,
        ip=ir.InsertionPoint(at_start),
    )
    kept = {name: at_wait.attributes[name] for name in at_wait.attributes}
    wait = ir.Operation.create(
        "hp.wait",
        results=[result.type for result in results],
        operands=[start.results[0]],
        attributes={**kept, **marks},
        loc=at_wait.location,
        ip=ir.InsertionPoint(at_wait),
    )
    for result, fused in zip(results, wait.results, strict=True):
        result.replace_all_uses_with(fused)
    for op in (*waits, *starts):
        op.erase()
    return start


def _few_runs(members: Sequence[Collective]) -> list[Collective]:
    """Return members in their order, or, where an op would not take that, with those of equal types side by side."""
    runs = max(sum(1 for _ in groupby(member.types[side] for member in members)) for side in (0, 1))
    if runs <= RUNS:
        return list(members)
    together: dict[object, list[Collective]] = {}
    for member in members:
        together.setdefault(member.types, []).append(member)
    return [member for group in together.values() for member in group]


def _marks(bucket: Bucket, members: Sequence[Collective], starts: Sequence[ir.Operation]) -> dict[str, ir.Attribute]:
    """Return what says where a bucket comes from: a name per member, the first one's unit, the modules' common part."""
    marks: dict[str, ir.Attribute] = {
        "hp.bucket": ir.StringAttr.get(bucket.name),
        "hp.fqn": strings_attr([member.parameters[0] for member in members]),
        "hp.phase": ir.StringAttr.get(bucket.phase),
        "hp.unit": ir.StringAttr.get(members[0].unit),
    }
    modules = [start.attributes["hp.module"] for start in starts if "hp.module" in start.attributes]
    if modules:
        names = [module.value for module in modules if isinstance(module, ir.StringAttr)]
        marks["hp.module"] = ir.StringAttr.get(_common_module(names))
    return marks


def _common_module(names: Sequence[str]) -> str:
    common: list[str] = []
    for parts in zip(*(name.split(".") for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def report(ops: FunctionOps, placement: Placement, starts: Sequence[ir.Operation]) -> None:
    """Say as remarks what was fused and what was not."""
    plan = placement.plan
    remark(
        ops.function,
        f"launches: {plan.launches} before, {plan.launches_after} after; buckets: {len(plan.buckets)}, of {plan.bytes} "
        f"bytes and {plan.padding} bytes of padding",
    )
    made = zip(plan.buckets, starts, strict=True)
    for bucket, start in sorted(made, key=lambda pair: pair[0].members[0].collective):
        remark(
            start,
            f"is bucket '{bucket.name}' of {len(bucket.members)} in the {bucket.phase}: {bucket.bytes} bytes and "
            f"{bucket.padding} bytes of padding",
        )
