"""From the collectives of a function to a `BucketPlan`, and back from a stored plan to the collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...dialect.diagnostics import IRError, error_at
from .bucket_plan import Bucket, BucketPlan, Member, fingerprint_of
from .collectives import GATHER, Collective, FunctionOps
from .placement import Group, Misfit, Placed, Placer
from .scopes import Proposal

PASS = "hp-bucket-collectives"

Scope = Callable[[Sequence[Collective]], list[Proposal]]


@dataclass(frozen=True)
class Split:
    """A collective that a bucket could not take: the bucket's name, the collective and why."""

    bucket: str
    collective: Collective
    misfit: Misfit


@dataclass(frozen=True)
class Placement:
    """A plan, where its buckets stand, in their order, and what had to be split for it."""

    plan: BucketPlan
    placer: Placer
    placed: tuple[Placed, ...]
    splits: tuple[Split, ...]


def plan_function(ops: FunctionOps, scope: Scope, *, kept: bool = True) -> Placement:
    """Plan the buckets of a function.

    Gathers are put in place in the order in which they start, since they move up, and reductions in the reverse order,
    since they move down: what waits for another one's result has made room when that one's turn comes.

    Args:
        ops: of the function.
        scope: proposes buckets.
        kept: whether the plan is for more than to be applied at once: then it has a fingerprint.
    """
    placer = Placer(ops)
    proposals = scope(ops.collectives)
    gathers = [each for each in proposals if each.members[0].kind == GATHER]
    reductions = [each for each in proposals if each.members[0].kind != GATHER]
    gathers.sort(key=lambda each: each.members[0].start)
    reductions.sort(key=lambda each: -each.members[0].start)
    made = _Maker(placer)
    for proposal in (*gathers, *reductions):
        made.add(proposal)
    fingerprint = fingerprint_of(ops.function, ops.mesh) if kept else ""
    plan = BucketPlan(ops.name, fingerprint, ops.launches, _with_unique_names(made.buckets))
    return Placement(plan, placer, tuple(made.placed), tuple(made.splits))


class _Maker:
    """Makes buckets of proposals, splitting them as late as can be."""

    def __init__(self, placer: Placer):
        self.buckets: list[Bucket] = []
        self.placed: list[Placed] = []
        self.splits: list[Split] = []
        self._placer = placer

    def add(self, proposal: Proposal) -> None:
        """Make the buckets of one proposal."""
        first, *others = self._placer.by_start(proposal.members)
        group = self._placer.open(first)
        for collective in others:
            misfit = self._placer.join(group, collective)
            if misfit is not None:
                self.splits.append(Split(proposal.name, collective, misfit))
                self._close(proposal, group)
                group = self._placer.open(collective)
        self._close(proposal, group)

    def _close(self, proposal: Proposal, group: Group) -> None:
        if len(group.members) > 1:
            self.placed.append(self._placer.place(group))
            self.buckets.append(_bucket(proposal.name, group.members))


def _with_unique_names(buckets: Sequence[Bucket]) -> tuple[Bucket, ...]:
    """Return buckets, of those of one kind, phase and name the second to start as ``name (2)`` and so on."""
    counts: dict[tuple[str, str, str], int] = {}
    names: dict[int, str] = {}
    for number in sorted(range(len(buckets)), key=lambda number: buckets[number].members[0].collective):
        bucket = buckets[number]
        key = (bucket.name, bucket.kind, bucket.phase)
        counts[key] = counts.get(key, 0) + 1
        names[number] = bucket.name if counts[key] == 1 else f"{bucket.name} ({counts[key]})"
    return tuple(replace(bucket, name=names[number]) for number, bucket in enumerate(buckets))


def _bucket(name: str, members: Sequence[Collective]) -> Bucket:
    first = members[0]
    return Bucket(
        name,
        first.kind,
        first.phase,
        first.axes,
        tuple(Member(each.number, each.parameters, each.bytes, each.padding) for each in members),
    )


def place_plan(ops: FunctionOps, plan: BucketPlan) -> Placement:
    """Find the places of a stored plan's buckets.

    Raises:
        IRError: the plan was made for another function, or says what cannot be.
    """
    if fingerprint_of(ops.function, ops.mesh) != plan.fingerprint:
        raise _refusal(
            ops, f"the bucket plan for @{plan.function} was made for another function, or this one has changed since"
        )
    placer = Placer(ops)
    placed: list[Placed] = []
    seen: dict[int, str] = {}
    names: set[tuple[str, str, str]] = set()
    for bucket in plan.buckets:
        if (bucket.name, bucket.kind, bucket.phase) in names:
            raise _refusal(ops, f"two buckets of kind '{bucket.kind}' in the {bucket.phase} are named '{bucket.name}'")
        names.add((bucket.name, bucket.kind, bucket.phase))
        members = placer.by_start(_find(ops, bucket, member, seen) for member in bucket.members)
        _check_alike(ops, bucket, members)
        group = placer.open(members[0])
        for collective in members[1:]:
            misfit = placer.join(group, collective)
            if misfit is not None:
                raise error_at(
                    ops.op(collective.start),
                    f"cannot join bucket '{bucket.name}': {misfit.text}",
                    notes=[(ops.op(misfit.op), "here")],
                )
        placed.append(placer.place(group))
    return Placement(plan, placer, tuple(placed), ())


def _find(ops: FunctionOps, bucket: Bucket, member: Member, seen: dict[int, str]) -> Collective:
    name = member.parameters[0]
    collectives = ops.collectives
    if member.collective >= len(collectives):
        raise _refusal(
            ops,
            f"bucket '{bucket.name}': @{ops.name} has no collective {member.collective}, only {len(collectives)}",
        )
    found = collectives[member.collective]
    if found.parameters != member.parameters:
        raise error_at(
            ops.op(found.start),
            f"bucket '{bucket.name}': collective {member.collective} is of '{found.parameters[0]}', "
            f"the plan says '{name}'",
        )
    if member.collective in seen:
        raise error_at(
            ops.op(found.start),
            f"collective {member.collective}, of '{name}', is claimed by bucket '{seen[member.collective]}' "
            f"and by bucket '{bucket.name}'",
        )
    seen[member.collective] = bucket.name
    return found


def _check_alike(ops: FunctionOps, bucket: Bucket, members: Sequence[Collective]) -> None:
    for collective in members:
        for what, said, is_ in (
            ("kind", bucket.kind, collective.kind),
            ("phase", bucket.phase, collective.phase),
            ("axes", ", ".join(bucket.axes), ", ".join(collective.axes)),
        ):
            if said != is_:
                raise error_at(
                    ops.op(collective.start),
                    f"bucket '{bucket.name}' has {what} '{said}', its member '{collective.parameters[0]}' '{is_}'",
                )
        if collective.likeness != members[0].likeness:
            raise error_at(
                ops.op(collective.start),
                f"cannot share bucket '{bucket.name}' with '{members[0].parameters[0]}': they reduce in different ways "
                "or dtypes",
                notes=[(ops.op(members[0].start), f"'{members[0].parameters[0]}' here")],
            )


def _refusal(ops: FunctionOps, text: str) -> IRError:
    return error_at(ops.function, f"{PASS}: {text}", named=False)
