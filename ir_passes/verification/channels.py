"""What the ranks of a pipeline send each other, matched end by end: rules V21 and V22.

- V21: messages go over the pipeline axis, to another position. On each channel, the k-th send and the k-th receive have
  the same types and both or neither a header; there are as many of the one as of the other.
- V22: the positions that take part in a collective over the pipeline axis reach the same ones in the same order: op,
  axes, coordinates, attributes and types. That of a group which does not span the axis is one function's own affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch_mlir import ir

from ...dialect.attributes import future_types, read_ints, read_strings
from ...mesh import Mesh
from .findings import Findings
from .rank_functions import RankFunction

Channel = tuple[int, int]
"""Position of the sender, position of the receiver."""

_AGREED = ("axes", "coordinates", "reduce", "root", "dims", "split_dims", "concat_dims")
COLLECTIVES = frozenset({"hp.all_gather", "hp.all_reduce", "hp.all_to_all", "hp.broadcast", "hp.reduce_scatter"})
"""Ops that all ranks of a group reach."""


@dataclass(frozen=True)
class Group:
    """Positions that meet in a collective, and the other axes that it spans."""

    positions: tuple[int, ...]
    axes: frozenset[str]


@dataclass(frozen=True, eq=False)
class End:
    """One rank function's side of a message or collective."""

    rank: RankFunction
    op: ir.Operation
    types: tuple[ir.Type, ...]
    terms: tuple[tuple[str, str], ...] = ()

    def spelled(self) -> str:
        """Return what it is, for a message."""
        terms = ", ".join(f"{name} = {value}" for name, value in self.terms)
        types = ", ".join(map(str, self.types))
        return f"'{self.op.name}' {{{terms}}} of [{types}]" if terms else f"[{types}]"


@dataclass
class Traffic:
    """All ends, in the order in which each rank function has them."""

    sends: dict[Channel, list[End]] = field(default_factory=dict)
    receives: dict[Channel, list[End]] = field(default_factory=dict)
    collectives: dict[Group, dict[int, list[End]]] = field(default_factory=dict)


def group_of(op: ir.Operation, mesh: Mesh, axis: str) -> Group | None:
    """Return the group of a collective that spans the pipeline axis, or None for any other op."""
    if op.name not in COLLECTIVES:
        return None
    axes = read_strings(op.attributes["axes"]) or ()
    if axis not in axes:
        return None
    coordinates = read_ints(op.attributes["coordinates"]) if "coordinates" in op.attributes else None
    positions = coordinates if coordinates is not None else tuple(range(mesh.axis_size(axis)))
    return Group(positions, frozenset(name for name in axes if name != axis and mesh.axis_size(name) > 1))


def check_traffic(ranks: Sequence[RankFunction], mesh: Mesh, axis: str, findings: Findings) -> Traffic:
    """Check rules V21 and V22 on the functions of all positions, and return what they send each other."""
    traffic = Traffic()
    for rank in ranks:
        for op in rank.ops:
            if op.name in ("hp.send", "hp.recv"):
                _note_message(traffic, rank, op, axis, findings)
            elif (group := group_of(op, mesh, axis)) is not None:
                _note_collective(traffic, rank, op, group, findings)
    for channel in sorted(traffic.sends.keys() | traffic.receives.keys()):
        _check_channel(channel, traffic, ranks, findings)
    for group, members in traffic.collectives.items():
        _check_group(group, members, ranks, findings)
    return traffic


def _note_message(traffic: Traffic, rank: RankFunction, op: ir.Operation, axis: str, findings: Findings) -> None:
    over, peer = ir.StringAttr(op.attributes["axis"]).value, ir.IntegerAttr(op.attributes["peer"]).value
    if over != axis:  # V21
        findings.add(op, f"goes over axis '{over}', expected the pipeline axis '{axis}'")
        return
    if peer == rank.coordinate:  # V21
        findings.add(op, f"goes from @{rank.name} to itself: values that stay on a rank are passed directly")
        return
    sends = op.name == "hp.send"
    types = [operand.type for operand in op.operands] if sends else future_types(op.results[0].type)
    terms = (("header", "given"),) if "header" in op.attributes else ()
    end = End(rank, op, tuple(types), terms)
    if sends:
        traffic.sends.setdefault((rank.coordinate, peer), []).append(end)
    else:
        traffic.receives.setdefault((peer, rank.coordinate), []).append(end)


def _note_collective(traffic: Traffic, rank: RankFunction, op: ir.Operation, group: Group, findings: Findings) -> None:
    if rank.coordinate not in group.positions:  # V22
        findings.add(op, f"is of positions {list(group.positions)}, @{rank.name} is not one of them")
        return
    terms = tuple((name, str(op.attributes[name])) for name in _AGREED if name in op.attributes)
    end = End(rank, op, tuple(operand.type for operand in op.operands), terms)
    traffic.collectives.setdefault(group, {}).setdefault(rank.coordinate, []).append(end)


def _check_channel(channel: Channel, traffic: Traffic, ranks: Sequence[RankFunction], findings: Findings) -> None:
    sends, receives = traffic.sends.get(channel, []), traffic.receives.get(channel, [])
    sender, receiver = ranks[channel[0]], ranks[channel[1]]
    for number, (send, receive) in enumerate(zip(sends, receives, strict=False)):
        if send.types != receive.types or send.terms != receive.terms:  # V21
            what, got = _types(receive.types), _types(send.types)
            if send.terms != receive.terms:
                what, got = ("a header", "none") if receive.terms else ("no header", "one")
            findings.add(
                receive.op,
                f"message {number} from @{sender.name} to @{receiver.name}: expected {what}, got: {got}",
                notes=[(send.op, f"sent here by @{sender.name}")],
            )
            return  # what follows is off by as much
    if len(sends) > len(receives):  # V21
        extra = sends[len(receives)]
        last, said = _last(receives, receiver, f"@{receiver.name} receives its last from @{sender.name} here")
        findings.add(
            extra.op,
            f"message {len(receives)} from @{sender.name} to @{receiver.name} is never received",
            notes=[(last, said)],
        )
    elif len(receives) > len(sends):  # V21
        extra = receives[len(sends)]
        last, said = _last(sends, sender, f"@{sender.name} sends its last to @{receiver.name} here")
        findings.add(
            extra.op,
            f"message {len(sends)} from @{sender.name} to @{receiver.name} is never sent",
            notes=[(last, said)],
        )


def _last(ends: Sequence[End], rank: RankFunction, said: str) -> tuple[ir.Operation, str]:
    if ends:
        return ends[-1].op, said
    return rank.op, f"@{rank.name} has nothing of this channel"


def _check_group(
    group: Group, members: Mapping[int, list[End]], ranks: Sequence[RankFunction], findings: Findings
) -> None:
    first = max(members.values(), key=len)
    reference = first[0].rank
    for position in group.positions:
        rank = ranks[position]
        ends = members.get(position, [])
        for number, (mine, theirs) in enumerate(zip(ends, first, strict=False)):
            if (mine.op.name, mine.terms, mine.types) != (theirs.op.name, theirs.terms, theirs.types):  # V22
                findings.add(
                    mine.op,
                    f"collective {number} of positions {list(group.positions)} is {mine.spelled()} on @{rank.name}, "
                    f"but {theirs.spelled()} on @{reference.name}",
                    notes=[(theirs.op, f"reached here by @{reference.name}")],
                )
                break
        else:
            if len(ends) < len(first):  # V22
                missing = first[len(ends)]
                last = ends[-1].op if ends else rank.op
                findings.add(
                    missing.op,
                    f"collective {len(ends)} of positions {list(group.positions)} is never reached by @{rank.name}",
                    notes=[(last, f"@{rank.name} has its last here" if ends else f"@{rank.name} has none")],
                )


def _types(types: Sequence[ir.Type]) -> str:
    return "[" + ", ".join(map(str, types)) + "]"
