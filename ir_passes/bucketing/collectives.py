"""The ops of a function by number, and those of them that may be fused."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from torch_mlir import ir

from ...dialect.attributes import find_mesh, read_ints, read_sharding, read_strings
from ...dialect.signature import body_of, function_name
from ...dialect.types import TensorType
from ...mesh import Mesh, padded_shard_size, shard_spans
from ..build import type_of
from ..effects import may_mutate
from ..phases import Phases, control_flow_error
from ..views import CASTS, VIEWS, operator_name

GATHER = "all_gather"
KINDS = (GATHER, "reduce_scatter", "all_reduce")
"""Collectives that may be fused."""

_STARTS = frozenset({*(f"hp.{kind}" for kind in KINDS), "hp.all_to_all", "hp.broadcast"})

_LINKS = VIEWS | CASTS | {"aten.cat", "aten.constant_pad_nd", "prim.ListConstruct"}
"""Views, casts and what pads and trims uneven shards."""


@dataclass(frozen=True)
class Collective:
    """A collective of one tensor that may be fused.

    Attributes:
        number: among those of the function that may be.
        start: the number of its op.
        wait: the number of its wait.
        kind: of `KINDS`.
        phase: "forward" or "backward".
        axes: mesh axes.
        parameters: the names of its parameter.
        unit: of the parameter; empty for the root unit.
        likeness: what those that share a bucket have in common; nothing else matters for what they compute.
        types: of its operand and its result.
        bytes: of the whole tensor without padding.
        padding: bytes of padding, on the rank that has most of it.
    """

    number: int
    start: int
    wait: int
    kind: str
    phase: str
    axes: tuple[str, ...]
    parameters: tuple[str, ...]
    unit: str
    likeness: tuple[object, ...]
    types: tuple[TensorType, TensorType]
    bytes: int
    padding: int


class FunctionOps:
    """The ops of a function by number, from one walk over it; good until the function changes.

    Only ops that are asked for are held on to: of a hundred thousand, few stand near a collective.

    Args:
        function: a `func.func` with one block.

    Attributes:
        function: it.
        name: of the function, without the `@`.
        mesh: of its module, or None.
        count: number of ops.
        mutates: whether any may change an operand, so that pure ops cannot be moved across it.

    Raises:
        IRError: it has control flow.
    """

    def __init__(self, function: ir.Operation):
        self.function = function
        self.name = function_name(function)
        found = find_mesh(function)
        self.mesh: Mesh | None = found[1] if found else None
        self._met: dict[int, ir.Operation] = {}
        self._starts: list[int] = []
        self._without_results: list[int] = []
        self._links: dict[int, bool] = {}
        self.mutates = False
        self.count = 0
        self._key: Callable[[ir.Value], object] = hash
        self._makers: dict[object, int] = {}
        self._walk()
        if len(self._makers) < self._results:  # two values have one hash
            self._key = _itself
            self._number_results()

    def _walk(self) -> None:
        makers, self._results = self._makers, 0
        plain: set[str] = set()  # names of ops that have no region and change nothing
        number = -1
        for number, view in enumerate(body_of(self.function).operations):
            op = view.operation
            results = op.results
            for result in results:
                makers[hash(result)] = number
            self._results += len(results)
            name = op.name
            if name in _STARTS:
                self._starts.append(number)
                self._met[number] = op
            elif name not in plain:
                if len(op.regions):
                    raise control_flow_error(op)
                if not len(results):
                    self._without_results.append(number)
                    self._met[number] = op
                if may_mutate(op):
                    self.mutates = True
                elif len(results) and (name.startswith("torch.aten.") or name == "hp.wait"):
                    plain.add(name)
        self.count = number + 1

    def _number_results(self) -> None:
        self._makers = {
            result: number
            for number, view in enumerate(body_of(self.function).operations)
            for result in view.operation.results
        }

    @property
    def launches(self) -> int:
        """Number of collectives that the function starts."""
        return len(self._starts)

    def op(self, number: int) -> ir.Operation:
        """Return an op that was met: a start, or one whose number came from here."""
        return self._met[number]

    def meet(self, numbers: Iterable[int]) -> None:
        """Look up ops by their numbers, in one walk where some were not met yet."""
        missing = {number for number in numbers if number not in self._met}
        if missing:
            for number, view in enumerate(body_of(self.function).operations):
                if number in missing:
                    self._met[number] = view.operation

    def maker(self, value: ir.Value) -> int | None:
        """Return the number of the op that makes a value; None for an argument."""
        owner = value.owner
        return None if isinstance(owner, ir.Block) else self.number(owner.operation)

    def number(self, op: ir.Operation) -> int:
        """Return the number of an op."""
        results = op.results
        if len(results):
            number = self._makers[self._key(results[0])]
        else:
            # Nothing tells these apart but where they stand.
            silent = self._without_results
            number = silent[bisect.bisect_left(silent, True, key=lambda at: not self._met[at].is_before_in_block(op))]
        self._met[number] = op
        return number

    def users(self, number: int) -> Iterator[int]:
        """Yield the numbers of the ops that use what an op makes; of one that does so twice, twice."""
        for result in self.op(number).results:
            for use in result.uses:
                yield self.number(use.owner.operation)

    def makers(self, number: int) -> Iterator[int]:
        """Yield the numbers of the ops that make what an op uses."""
        for operand in self.op(number).operands:
            maker = self.maker(operand)
            if maker is not None:
                yield maker

    def is_link(self, number: int) -> bool:
        """Return whether an op may move with a collective: views, casts, what pads and trims, and their constants."""
        known = self._links.get(number)
        if known is None:
            op = self.op(number)
            known = self._links[number] = (
                operator_name(op) in _LINKS if op.name == "torch.operator" else _names_link(op.name)
            )
        return known

    @cached_property
    def collectives(self) -> list[Collective]:
        """The collectives that may be fused, in order.

        These are the gathers and reductions of one tensor that say whose parameter they are for (`hp.fqn`), belong to
        no bucket yet, and are waited for once.
        """
        if self.mutates or not self._starts:
            return []
        phases: Phases | None = None
        padding = _Padding(self.function, self.mesh)
        found: list[Collective] = []
        for number in self._starts:
            op = self.op(number)
            attributes = op.attributes
            names = read_strings(attributes["hp.fqn"]) if "hp.fqn" in attributes else None
            if not names or op.name.removeprefix("hp.") not in KINDS or "hp.bucket" in attributes:
                continue
            users = list(self.users(number))
            if len(op.operands) != 1 or len(users) != 1 or self.op(users[0]).name != "hp.wait":
                continue
            stated = attributes.get("hp.phase")
            if isinstance(stated, ir.StringAttr):
                phase = stated.value
            else:
                phases = phases or Phases(self.function)
                phase = phases.of(op)
            found.append(self._collective(op, len(found), number, users[0], names, phase, padding))
        return found

    def _collective(
        self,
        op: ir.Operation,
        number: int,
        start: int,
        wait: int,
        names: tuple[str, ...],
        phase: str,
        padding: _Padding,
    ) -> Collective:
        kind = op.name.removeprefix("hp.")
        attributes = op.attributes
        axes = read_strings(attributes["axes"]) or ()
        types = type_of(op.operands[0]), type_of(self.op(wait).results[0])
        # Dtypes are mixed in gathers only: bytes are moved, numbers are added.
        likeness = (
            kind,
            phase,
            axes,
            types[0].dtype if kind != GATHER else None,
            *[str(attributes[key]) if key in attributes else None for key in ("mesh", "reduce", "coordinates")],
        )
        unit = attributes.get("hp.unit")
        whole = max(types, key=lambda type_: type_.elements)
        extra = padding.of(op, kind, names[0], axes, types)
        return Collective(
            number,
            start,
            wait,
            kind,
            phase,
            axes,
            names,
            unit.value if isinstance(unit, ir.StringAttr) else "",
            likeness,
            types,
            whole.bytes - extra,
            extra,
        )


def _itself(value: ir.Value) -> object:
    return value


@cache
def _names_link(name: str) -> bool:
    return name.startswith("torch.constant.") or name.removeprefix("torch.").removesuffix(".default") in _LINKS


class _Padding:
    """How much of what travels for a parameter is padding of uneven shards.

    Args:
        function: whose arguments say how parameters are split.
        mesh: of its module.
    """

    def __init__(self, function: ir.Operation, mesh: Mesh | None):
        self._mesh = mesh
        self._uneven: dict[str, tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]] = {}
        for attributes in argument_attributes(function):
            if "hp.full_shape" not in attributes or "hp.sharding" not in attributes:
                continue
            full, sharding = read_ints(attributes["hp.full_shape"]), read_sharding(attributes["hp.sharding"])
            if full is not None and sharding is not None and len(full) == len(sharding[1]):
                for name in parameter_names(attributes):
                    self._uneven[name] = full, sharding[1]

    def of(
        self, op: ir.Operation, kind: str, name: str, axes: Sequence[str], types: tuple[TensorType, TensorType]
    ) -> int:
        """Return the bytes of padding, on the rank that has most of it."""
        if name not in self._uneven or self._mesh is None:
            return 0
        full, sharding = self._uneven[name]
        whole = max(types, key=lambda type_: type_.elements)
        if len(whole.shape) != len(full) or None in whole.shape:
            return 0
        if kind == "all_reduce":
            held = 1
            for size, split in zip(full, sharding, strict=True):
                held *= min(rows for _, rows in shard_spans(size, self._mesh.sizes(split)))
            local = tuple(
                padded_shard_size(size, self._mesh.sizes(split)) for size, split in zip(full, sharding, strict=True)
            )
            return whole.bytes - whole.bytes // whole.elements * held if whole.shape == local and whole.elements else 0
        dims = read_ints(op.attributes["dims"]) or (0,)
        split = sharding[dims[0]]
        before = split[: next((at for at, axis in enumerate(split) if axis in axes), len(split))]
        rows = padded_shard_size(full[dims[0]], self._mesh.sizes(before))
        present = whole.shape[dims[0]] or 0
        return whole.bytes // present * (present - rows) if present > rows else 0


def argument_attributes(function: ir.Operation) -> Iterator[ir.DictAttr]:
    """Yield the attributes of each argument that has any."""
    if "arg_attrs" in function.attributes:
        for item in ir.ArrayAttr(function.attributes["arg_attrs"]):
            yield ir.DictAttr(item)


def parameter_names(attributes: ir.DictAttr) -> tuple[str, ...]:
    """Return the names of a parameter by the attributes of its argument; of anything else, none."""
    if "hp.role" not in attributes or "hp.fqn" not in attributes:
        return ()
    role = attributes["hp.role"]
    is_parameter = isinstance(role, ir.StringAttr) and role.value == "param"
    return (read_strings(attributes["hp.fqn"]) or ()) if is_parameter else ()
