"""hp-simplify: remove what nobody uses, what is computed twice, and views that undo each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from torch_mlir import ir

from ...dialect.attributes import ints_attr, read_ints
from ...dialect.hp import COMMUNICATION
from ...dialect.levels import level_of
from ...dialect.signature import step_functions
from ..base import ModulePass
from ..effects import Effect, effect_of, may_mutate
from ..phases import BACKWARD, FORWARD
from ..views import CASTS, VIEWS, operator_name
from .fold_views import fold_views

# Levels at which every rank runs the same function, so that all of them leave out the same communication.
_SAME_ON_ALL_RANKS = ("joint", "annotated", "spmd")
_POINT_TO_POINT = ("hp.send", "hp.recv")
# What says where an op came from and who needs it, not what it computes. The phase is looked at separately.
_ORIGIN = frozenset({"hp.module", "hp.phase", "hp.saved"})


@dataclass(frozen=True)
class HpSimplify(ModulePass):
    """Remove dead ops, merge equal ones by one table of effects, and fold views of views.

    MLIR's `cse` and `canonicalize` take torch ops to have effects and leave dead and duplicate compute alone. Here
    `ir_passes/effects.py` says what each op does besides its results. Sweeps forward over each function fold and merge,
    one sweep backward removes; running it again changes nothing.

    1. A pure op equal to an earlier one of its block is merged into it: same name, operands, result types and
       attributes, whatever its `hp.module`, `hp.phase` and location. The earlier op stays, as a forward op if either
       was one. Constants and literals are pure ops too.
    2. A pure op without used results is removed, and then what only it used.
    3. An op in a checkpointed region (`hp.recompute`) is merged only with one of the same phase and region:
       recomputing is the point of it. What was computed again (`hp.recomputed`) is merged within its region only.
    4. At level "spmd", views and casts of a parameter or of what an `hp.wait` gives, `hp.pack` and `hp.unpack` of them
       included, are merged only within a phase: the backward's own would otherwise keep a gathered parameter alive from
       the forward on.
    5. At levels "joint", "annotated" and "spmd", where all ranks run the same function, a collective or `hp.wait` equal
       to an earlier one is merged, `hp.phase` and `hp.unit` included in what must be equal, and one without used
       results is removed: the wait, then its collective. At other levels all communication stays. `hp.send`, `hp.recv`
       and its wait stay everywhere.
    6. Random and mutating ops, assertions, calls and unknown ops stay. In a function with a mutating op, or with an
       unknown op that is given a mutable tensor, nothing is merged.
    7. Arguments, results and the signature of a function never change.
    8. A view that undoes a view is what that one is of: `aten.t` of `aten.t`, a transposition of the same dims, a
       reshape to the shape there is. A reshape of a reshape that only takes dims apart is one of what is below. Nothing
       is folded where merging is off (6), nor ops of a checkpointed region (3), nor to return an argument as it is.

    Requires: any level.
    Leaves: the level it found. Numbers are kept bitwise: what is merged would have computed the same bits, and what is
        folded has the strides that it had.
    Does not handle: regions within a function (`torch.prim.If`); what is in them stays and counts as use. Equal ops in
        different blocks.

    Example: two equal products, of which one result is used and the other only by a dead op, as in

    ```mlir
    %0 = torch.aten.mm %x, %w {hp.phase = "forward"} : ...
    %1 = torch.aten.mm %x, %w {hp.phase = "backward"} : ...
    %2 = torch.aten.relu %1 : ...
    return %0, %1
    ```

    become

    ```mlir
    %0 = torch.aten.mm %x, %w {hp.phase = "forward"} : ...
    return %0, %0
    ```
    """

    name: ClassVar[str] = "hp-simplify"

    def run(self, module: ir.Operation) -> None:  # noqa: D102
        level = level_of(module)
        for function in step_functions(module):
            parameters = _parameters(function) if level == "spmd" else None
            blocks = [_Block(block, level in _SAME_ON_ALL_RANKS) for block in function.regions[0].blocks]
            if not any(block.mutates for block in blocks):
                for block in blocks:
                    block.fold()
                    block.merge(parameters)
            for block in reversed(blocks):
                block.remove_dead()


class _Block:
    """The ops of one block that may be merged or removed, in order.

    Args:
        block: of a function.
        with_communication: whether collectives may be merged and removed.
    """

    def __init__(self, block: ir.Block, with_communication: bool):
        self.mutates = False
        self._ops: list[ir.Operation] = []
        for view in block.operations:
            op = view.operation
            effect = effect_of(op)
            if effect is Effect.PURE:
                self._ops.append(op)
            elif effect is Effect.COMMUNICATION:
                if with_communication and not _is_point_to_point(op):
                    self._ops.append(op)
            elif may_mutate(op):
                self.mutates = True

    def fold(self) -> None:
        """Fold views of views."""
        fold_views(self._ops)

    def merge(self, parameters: Sequence[ir.Value] | None) -> None:
        """Merge each op into the first equal one.

        Args:
            parameters: what must not live longer: views and casts of these, and of what is waited for, are merged only
                within a phase. None where views and casts are as any other op.
        """
        first: dict[tuple[object, ...], ir.Operation] = {}
        held = set(parameters or ())
        kept: list[ir.Operation] = []
        for op in self._ops:
            name, operands, results, attributes = op.name, tuple(op.operands), list(op.results), op.attributes
            phase: ir.Attribute | None = None
            if name in COMMUNICATION or "hp.recompute" in attributes:  # `hp.recomputed` is in the key by itself
                phase = attributes.get("hp.phase")
            if parameters is not None and (name == "hp.wait" or _reads_held(op, operands, held)):
                held.update(results)
                phase = attributes.get("hp.phase")
            key = (
                name,
                operands,
                tuple([result.type for result in results]),
                tuple([(item, attributes[item]) for item in attributes if item not in _ORIGIN]),
                phase,
            )
            earlier = first.setdefault(key, op)
            if earlier is op:
                kept.append(op)
                continue
            for result, same in zip(results, earlier.results, strict=True):
                result.replace_all_uses_with(same)
            _keep_marks(earlier, op)
            op.erase()
        self._ops = kept

    def remove_dead(self) -> None:
        """Remove ops that have results and no use of any."""
        kept = []
        for op in reversed(self._ops):
            results = op.results
            if len(results) and not any(_is_used(result) for result in results):
                op.erase()
            else:
                kept.append(op)
        self._ops = kept[::-1]


def _is_used(value: ir.Value) -> bool:
    return next(iter(value.uses), None) is not None


def _is_point_to_point(op: ir.Operation) -> bool:
    if op.name == "hp.wait":
        owner = op.operands[0].owner
        return not isinstance(owner, ir.Block) and owner.operation.name in _POINT_TO_POINT
    return op.name in _POINT_TO_POINT


def _keep_marks(kept: ir.Operation, merged: ir.Operation) -> None:
    """Make `kept` a forward op where `merged` is one: what the forward uses belongs to it. Saved stays saved."""
    if _phase(kept) == BACKWARD and _phase(merged) == FORWARD:
        kept.attributes["hp.phase"] = merged.attributes["hp.phase"]
    if "hp.saved" in merged.attributes:
        saved = {*_saved(merged), *_saved(kept)}
        with kept.context:
            kept.attributes["hp.saved"] = ints_attr(sorted(saved))


def _saved(op: ir.Operation) -> tuple[int, ...]:
    return (read_ints(op.attributes["hp.saved"]) or ()) if "hp.saved" in op.attributes else ()


def _phase(op: ir.Operation) -> str:
    phase = op.attributes.get("hp.phase")
    return phase.value if isinstance(phase, ir.StringAttr) else ""


def _reads_held(op: ir.Operation, operands: Sequence[ir.Value], held: set[ir.Value]) -> bool:
    if op.name == "hp.pack":
        return any(operand in held for operand in operands)
    return (op.name == "hp.unpack" or _is_view_or_cast(op)) and operands[0] in held


def _is_view_or_cast(op: ir.Operation) -> bool:
    if op.name == "torch.operator":
        return operator_name(op) in VIEWS or operator_name(op) in CASTS
    return _names_view_or_cast(op.name)


@cache
def _names_view_or_cast(name: str) -> bool:
    name = name.removeprefix("torch.").removesuffix(".default")
    return name in VIEWS or name in CASTS


def _parameters(function: ir.Operation) -> list[ir.Value]:
    if "arg_attrs" not in function.attributes:
        return []
    roles = [ir.DictAttr(item) for item in ir.ArrayAttr(function.attributes["arg_attrs"])]
    arguments = function.regions[0].blocks[0].arguments
    return [
        argument
        for argument, attributes in zip(arguments, roles, strict=True)
        if "hp.role" in attributes and attributes["hp.role"] == ir.StringAttr.get("param", function.context)
    ]
