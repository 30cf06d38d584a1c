"""Who uses a parameter, through which views and casts, and in which phase.

A joint graph's backward reads a weight through views that its forward made (`t(t(W))`, a cast, a slice): a backward
that gathers anew must not, or the full parameter would stay alive from the forward on. So the views and casts of a
parameter that the forward makes, its chain, are cloned into the backward where it needs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_mlir import ir

from ..phases import BACKWARD, Phases, earlier
from ..views import is_link


@dataclass(frozen=True)
class Use:
    """Operand number `operand` of `op`."""

    op: ir.Operation
    operand: int

    def feed(self, value: ir.Value) -> None:
        """Make the use one of `value`."""
        self.op.operands[self.operand] = value


def uses_of(value: ir.Value) -> list[Use]:
    """Return the uses of a value, in no particular order."""
    return [Use(use.owner.operation, use.operand_number) for use in value.uses]


@dataclass
class Link:
    """A view or cast that the forward makes of a parameter, or of another link's result.

    Attributes:
        use: its use of what it is a view of.
        parent: the link that makes that; None for the parameter itself.
        forward: whether the forward needs its results.
        first_backward: the first backward op that needs its results, if any does.
    """

    use: Use
    parent: Link | None
    forward: bool = False
    first_backward: ir.Operation | None = None


@dataclass
class ParameterUses:
    """What each phase needs of a parameter's full value.

    Attributes:
        forward: its own uses that the first gather feeds.
        first_forward: the first op among them.
        backward: uses that the backward's own gather feeds, each with the value used: the parameter or a link's result.
        first_backward: the first op that needs the backward's own gather.
        links: its views and casts in the forward, each after its parent.
    """

    forward: list[Use] = field(default_factory=list)
    first_forward: ir.Operation | None = None
    backward: list[tuple[Use, ir.Value]] = field(default_factory=list)
    first_backward: ir.Operation | None = None
    links: list[Link] = field(default_factory=list)


def all_uses(value: ir.Value) -> ParameterUses:
    """Find the uses of a parameter's full value that one gather for both phases is to feed."""
    found = ParameterUses(forward=uses_of(value))
    for use in found.forward:
        found.first_forward = earlier(found.first_forward, use.op)
    return found


def uses_by_phase(value: ir.Value, phases: Phases) -> ParameterUses:
    """Find the uses of a parameter's full value that a gather for each phase is to feed."""
    found = ParameterUses()
    direct: list[tuple[Use, Link | None]] = []
    queue: list[tuple[ir.Value, Link | None]] = [(value, None)]
    for current, parent in queue:  # grows on the way
        for use in uses_of(current):
            if phases.of(use.op) == BACKWARD:
                found.backward.append((use, current))
                needed = found if parent is None else parent
                needed.first_backward = earlier(needed.first_backward, use.op)
                continue
            link = Link(use, parent) if is_link(use.op) else None
            if link is not None:
                found.links.append(link)
                queue += [(result, link) for result in use.op.results]
            elif parent is not None:
                parent.forward = True
            if parent is None:
                direct.append((use, link))
    for link in reversed(found.links):
        needed = found if link.parent is None else link.parent
        needed.first_backward = earlier(needed.first_backward, link.first_backward)
        if link.parent is not None:
            link.parent.forward |= link.forward
    for use, link in direct:
        if link is None or link.forward:
            found.forward.append(use)
            found.first_forward = earlier(found.first_forward, use.op)
    return found


def feed(uses: ParameterUses, value: ir.Value, forward: ir.Value | None, backward: ir.Value | None) -> None:
    """Feed the forward's uses of `value` with one gathered value and the backward's with another.

    Links are cloned right before their first use in the backward; those that the forward does not need are erased.
    """
    if backward is not None:
        copies = {value: backward}
        for link in uses.links:
            if link.first_backward is None:
                continue
            op = link.use.op
            copy = op.clone(ip=ir.InsertionPoint(link.first_backward))
            copy.operation.operands[link.use.operand] = copies[op.operands[link.use.operand]]
            with op.context:
                copy.operation.attributes["hp.phase"] = ir.StringAttr.get(BACKWARD)
                # What stands in the backward already is not to be computed again there.
                if "hp.recompute" in copy.operation.attributes:
                    del copy.operation.attributes["hp.recompute"]
            copies.update(zip(op.results, copy.operation.results, strict=True))
        for use, used in uses.backward:
            use.feed(copies[used])
    if forward is not None:
        for use in uses.forward:
            use.feed(forward)
    for link in reversed(uses.links):
        if not link.forward:
            link.use.op.erase()
