"""hp-hoist-gathers: parameters are gathered once per step, not in each microbatch's calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch_mlir import ir

from ...dialect.diagnostics import error_at, remark
from ...dialect.levels import require_level
from ...dialect.signature import Signature, ValueInfo, body_of, function_name, write_signature
from ...mesh import Mesh
from ..base import ModulePass
from ..build import type_of
from .call_sites import Rank, Stage, call_again, read_calls
from .gather_chains import GatherChains, Keys


@dataclass(frozen=True)
class HpHoistGathers(ModulePass):
    """Gather parameters once per step and hand them to the stage functions, instead of in each microbatch's calls.

    Fewer bytes are sent, and more memory is held: a gathered parameter lives from its stage's first call to its last.

    1. A gather of a stage function moves out where it is made of state and constants alone: the casts, pads and views
       of shards before it and the `hp.pack` of a bucket go with it, behind it the wait, the `hp.unpack`, and the slices
       that drop the padding of uneven shards. Views and casts of the full parameter stay in the function.
    2. The function takes each gathered value that it needs as an argument of role "gathered", with the parameter's
       `hp.fqn`, behind all others. A shard that nothing else in the function reads is no longer an argument of it.
    3. In each function of a rank the gathers start at the beginning, in the order of the stages' first calls, and are
       waited for right before the first call that needs them. All calls are given the same values.
    4. What two functions of a rank gather alike, a stage's forward and backward above all, is gathered once, also where
       one is in a bucket and the other in another or alone. A bucket of which nothing is missing is left out.

    Requires: level "program".
    Leaves: level "program". Results are kept bitwise.
    Does not handle: gathers of what a step changes (buffers) or computes (activations). They stay.

    Options: none.

    Example: ``hp-hoist-gathers`` turns

    ```mlir
    func.func @stage0_forward(%w: !torch.vtensor<[2,8],f32> {hp.fqn = ["w"], hp.role = "param", ...}, %x: ...) -> ... {
      %0 = "hp.all_gather"(%w) {axes = ["dp"], dims = array<i64: 0>, ...} : ...
      %full = "hp.wait"(%0) : ... -> !torch.vtensor<[4,8],f32>
      ...
    func.func @rank0(%w: ..., %x: ...) -> ... {
      %h0 = call @stage0_forward(%w, %x0) {hp.microbatch = 0} : ...
      %h1 = call @stage0_forward(%w, %x1) {hp.microbatch = 1} : ...
    ```

    into

    ```mlir
    func.func @stage0_forward(%x: ..., %full: !torch.vtensor<[4,8],f32> {hp.fqn = ["w"], hp.role = "gathered"}) -> ... {
      ...
    func.func @rank0(%w: ..., %x: ...) -> ... {
      %0 = "hp.all_gather"(%w) {axes = ["dp"], dims = array<i64: 0>, ...} : ...
      %full = "hp.wait"(%0) : ... -> !torch.vtensor<[4,8],f32>
      %h0 = call @stage0_forward(%x0, %full) {hp.microbatch = 0} : ...
      %h1 = call @stage0_forward(%x1, %full) {hp.microbatch = 1} : ...
    ```
    """

    name: ClassVar[str] = "hp-hoist-gathers"
    requires: ClassVar[tuple[str, ...]] = ("program",)
    leaves: ClassVar[str] = "program"

    def run(self, module: ir.Operation) -> None:  # noqa: D102
        require_level(module, self.name, self.requires)
        called = read_calls(module, self.name)
        keys = Keys()
        hoists = {}
        for stage in called.stages.values():
            chains = GatherChains(stage, keys)
            if chains.handed:
                hoists[stage.name] = _Hoist(stage, chains)
        for rank in called.ranks:
            _check_state(rank, hoists)
        for rank in called.ranks:
            _gather_once(rank, hoists)
        for hoist in hoists.values():
            hoist.rewrite(called.mesh_name, called.mesh)


class _Hoist:
    """A stage function whose gathers move out.

    Attributes:
        stage: it.
        chains: its gathers.
        kept: numbers of the arguments that stay.
    """

    def __init__(self, stage: Stage, chains: GatherChains):
        self.stage = stage
        self.chains = chains
        self._left = set(chains.handed)  # values that nothing in the function will need
        self._dead: list[ir.Operation] = []
        for op in reversed(chains.ops):
            if all(result in self._left or self._unneeded(result) for result in op.results):
                self._left.update(op.results)
                self._dead.append(op)
        arguments = list(body_of(stage.op).arguments)
        self.kept = [
            number
            for number, argument in enumerate(arguments)
            if not (argument in chains.made and _is_used(argument) and self._unneeded(argument))
        ]

    def _unneeded(self, value: ir.Value) -> bool:
        users = (use.owner.operation for use in value.uses)
        return all(len(user.results) and user.results[0] in self._left for user in users)

    @property
    def state(self) -> Iterator[int]:
        """The numbers of the arguments that gathers may be made of."""
        arguments = body_of(self.stage.op).arguments
        return (number for number, argument in enumerate(arguments) if argument in self.chains.made)

    def rewrite(self, mesh_name: str, mesh: Mesh) -> None:
        """Put arguments in the place of the gathers, which ranks have copied."""
        function, signature, body = self.stage.op, self.stage.signature, body_of(self.stage.op)
        given = [signature.arguments[number] for number in self.kept]
        held = sum(type_of(value).bytes for value in self.chains.handed)
        for value in self.chains.handed:
            type_ = type_of(value)
            given.append(ValueInfo(0, "gathered", type_, self.chains.made[value].names, full_shape=type_.shape))
            value.replace_all_uses_with(body.add_argument(value.type, value.owner.location))
        for op in self._dead:
            op.erase()
        for number in reversed(range(len(signature.arguments))):
            if number not in self.kept:
                body.erase_argument(number)
        arguments = tuple(replace(info, index=index) for index, info in enumerate(given))
        write_signature(function, Signature(arguments, signature.results), mesh_name, mesh)
        gathered = len(given) - len(self.kept)
        remark(function, f"@{self.stage.name} is given gathered parameters: {gathered}, of {held} bytes")


def _is_used(value: ir.Value) -> bool:
    return next(iter(value.uses), None) is not None


def _check_state(rank: Rank, hoists: Mapping[str, _Hoist]) -> None:
    """Refuse calls that are not all given the arguments of the rank's function as their state."""
    state: dict[int, ir.Value] = {}
    for name, calls in rank.calls.items():
        hoist = hoists.get(name)
        if hoist is None:
            continue
        body = body_of(hoist.stage.op)
        for number in hoist.state:
            info = hoist.stage.signature.arguments[number]
            key = hoist.chains.made[body.arguments[number]].key
            for call in calls:
                given = call.operands[number]
                if not isinstance(given.owner, ir.Block):
                    raise error_at(
                        call,
                        f"gives {info.role} '{info.name}' to @{name} as a computed value, expected an argument of "
                        f"@{function_name(rank.op)}",
                    )
                if state.setdefault(key, given) != given:
                    raise error_at(
                        call, f"gives {info.role} '{info.name}' to @{name} as another argument than a call before does"
                    )


def _gather_once(rank: Rank, hoists: Mapping[str, _Hoist]) -> None:
    """Copy gathers into a rank's function and give their results to the calls."""
    once = _Once(rank)
    for name, calls in rank.calls.items():
        hoist = hoists.get(name)
        if hoist is None:
            continue
        values = [once.value(hoist.chains, value, calls[0]) for value in hoist.chains.handed]
        for call in calls:
            operands = [call.operands[number] for number in hoist.kept]
            again = call_again(call, [*operands, *values], [result.type for result in call.results])
            for old, new in zip(call.results, again.results, strict=True):
                old.replace_all_uses_with(new)
            call.erase()


class _Once:
    """Makes in a rank's function what stage functions gather, each value once.

    What a gather needs, and its start, go to the beginning of the function; what comes behind it goes before the first
    call that needs it.
    """

    def __init__(self, rank: Rank):
        self._body = body_of(rank.op)
        self._head: ir.Operation | None = None  # the last op at the beginning
        self._values: dict[int, ir.Value] = {}

    def value(self, chains: GatherChains, value: ir.Value, call: ir.Operation) -> ir.Value:
        """Return the value that is to the rank what `value` is to the function called."""
        made = chains.made[value]
        known = self._values.get(made.key)
        if known is not None:
            return known
        owner = value.owner
        if isinstance(owner, ir.Block):
            return call.operands[ir.BlockArgument(value).arg_number]
        op = owner.operation
        operands = [self.value(chains, operand, call) for operand in op.operands]
        behind = any(chains.made[operand].gathered for operand in op.operands)
        if behind:
            copy = op.clone(ip=ir.InsertionPoint(call)).operation
        else:
            copy = self._head = op.clone(ip=self._beginning()).operation
        for number, operand in enumerate(operands):
            copy.operands[number] = operand
        for result, copied in zip(op.results, copy.results, strict=True):
            self._values.setdefault(chains.made[result].key, copied)
        return copy.results[ir.OpResult(value).result_number]

    def _beginning(self) -> ir.InsertionPoint:
        if self._head is None:
            return ir.InsertionPoint.at_block_begin(self._body)
        return ir.InsertionPoint.after(self._head)
