"""What a stage function gathers from state alone: the same for each microbatch, so that once per step is enough.

Each value that is made of nothing but state, constants and gathers gets a key that says how it is made. Buckets do not
matter for it: what comes out of a bucket of several parameters has the key of that parameter gathered alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch_mlir import ir

from ...dialect.attributes import read_ints, read_strings
from ...dialect.signature import body_of
from ..views import CASTS, VIEWS, operator_name
from .call_sites import Stage

_GATHER = "hp.all_gather"
_LINKS = VIEWS | CASTS | {"aten.cat", "aten.constant_pad_nd", "prim.ListConstruct"}
"""What a shard may go through before it is gathered."""


class Keys:
    """Numbers for descriptions, the same for the same description; shared by the functions of a module."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def of(self, *description: object) -> int:
        """Return the number of a description."""
        return self._numbers.setdefault(description, len(self._numbers))


@dataclass(frozen=True)
class Made:
    """How a value is made of state.

    Attributes:
        key: the same for what is made in the same way.
        names: the state it is made of.
        gathered: whether by a gather.
        members: of a packed tensor, each as it would be by itself.
        axes: of a member, over which the packed tensor was gathered.
        items: of a future, what arrives.
    """

    key: int
    names: tuple[str, ...] = ()
    gathered: bool = False
    members: tuple[Made, ...] = ()
    axes: tuple[str, ...] = ()
    items: tuple[Made, ...] = ()


class GatherChains:
    """The values of a stage function that are made of state by gathers, and those of them to hand in.

    Args:
        stage: the function; every op is looked at once.
        keys: of the module.

    Attributes:
        made: of each value that is made of state, constants and gathers, how.
        ops: the ops that make them, in order.
        handed: the gathered values that other ops need, in order.
    """

    def __init__(self, stage: Stage, keys: Keys):
        self.made: dict[ir.Value, Made] = {}
        self.ops: list[ir.Operation] = []
        self._number = keys.of
        self._trimmed: set[ir.Value] = set()
        for argument, info in zip(body_of(stage.op).arguments, stage.signature.arguments, strict=True):
            if info.role in ("param", "constant"):  # a step changes neither
                self.made[argument] = Made(self._number("state", info.role, info.name), info.names)
        for view in body_of(stage.op).operations:
            op = view.operation
            if self._belongs(op):
                self.ops.append(op)
                self.made.update(zip(op.results, self._describe(op), strict=True))
        self.handed = [result for op in self.ops for result in op.results if self._is_handed(result)]

    def _belongs(self, op: ir.Operation) -> bool:
        """Tell whether an op makes what it makes of state, constants and gathers, and may stand before the calls.

        Behind a gather that is what drops the padding of uneven shards: views and casts of a full parameter stay, which
        would take more memory than time.
        """
        name = op.name
        if name.startswith("torch.constant."):
            return True
        operands = list(op.operands)
        if not operands or not all(operand in self.made for operand in operands):
            return False
        if name in (_GATHER, "hp.wait", "hp.unpack"):
            return True
        gathered = any(self.made[operand].gathered for operand in operands)
        if name == "hp.pack":
            return not gathered
        operator = operator_name(op)
        if not gathered:
            return operator in _LINKS
        if operator == "prim.ListConstruct":
            return all(_is_cat(use.owner.operation) for use in op.results[0].uses)
        return operator == "aten.cat" or (operator == "aten.slice.Tensor" and operands[0] in self._trimmed)

    def _describe(self, op: ir.Operation) -> Sequence[Made]:
        given = [self.made[operand] for operand in op.operands]
        names = tuple(dict.fromkeys(name for made in given for name in made.names))
        if op.name == _GATHER:
            return [self._gather(op, given, names)]
        if op.name == "hp.wait" or op.name == "hp.unpack":
            for result in op.results:
                if _is_trimmed(result):
                    self._trimmed.add(result)
        if op.name == "hp.wait" and len(given[0].items) == len(op.results):
            return given[0].items
        if op.name == "hp.unpack":
            dims = read_ints(op.attributes["dims"]) if "dims" in op.attributes else None
            members = given[0].members
            if dims is not None and len(dims) == len(members) == len(op.results) and members[0].axes:
                return [
                    Made(self._number("gather", member.axes, dim, member.key), member.names, gathered=True)
                    for member, dim in zip(members, dims, strict=True)
                ]
        gathered = any(made.gathered for made in given)
        does = op.name, *(str(op.attributes[name]) for name in op.attributes if not name.startswith("hp."))
        keys = tuple(made.key for made in given)
        members = ()
        if op.name == "hp.pack":
            members = tuple(given)
        elif operator_name(op) in CASTS:  # of a packed tensor: each member is cast
            members = tuple(
                replace(member, key=self._number(does, (member.key, *keys[1:]), 0)) for member in given[0].members
            )
        return [Made(self._number(does, keys, number), names, gathered, members) for number in range(len(op.results))]

    def _gather(self, op: ir.Operation, given: Sequence[Made], names: tuple[str, ...]) -> Made:
        axes = read_strings(op.attributes["axes"]) or ()
        dims = read_ints(op.attributes["dims"]) or ()
        items = tuple(
            Made(
                self._number("gather", axes, dim, made.key),
                made.names,
                gathered=True,
                members=tuple(replace(member, axes=axes) for member in made.members if not member.axes),
            )
            for made, dim in zip(given, dims, strict=True)
        )
        return Made(self._number("future", *(item.key for item in items)), names, gathered=True, items=items)

    def _is_handed(self, value: ir.Value) -> bool:
        made = self.made[value]
        if not made.gathered or made.items:
            return False
        users = (use.owner.operation for use in value.uses)
        return any(not len(user.results) or user.results[0] not in self.made for user in users)


def _is_cat(op: ir.Operation) -> bool:
    return operator_name(op) == "aten.cat" and _is_constant(op.operands[1])


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name.startswith("torch.constant.")


def _is_trimmed(value: ir.Value) -> bool:
    """Tell whether all uses of a gathered value are slices of it that are the same for each microbatch."""
    users = [use.owner.operation for use in value.uses]
    return bool(users) and all(
        operator_name(user) == "aten.slice.Tensor" and all(map(_is_constant, list(user.operands)[1:])) for user in users
    )
