"""hp-sink-reductions: gradients are reduced once per step, not in each microbatch's calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch_mlir import ir

from ...dialect.diagnostics import remark
from ...dialect.levels import require_level
from ...dialect.signature import Signature, ValueInfo, return_of, write_signature
from ...mesh import Mesh
from ..base import ModulePass
from ..build import Builder, type_of
from .call_sites import Rank, Stage, read_calls
from .gradient_sums import GradientSum, find_sum
from .reduction_chains import ReductionChain, find_chains
from .unreduced_sums import Sinking, sum_unreduced


@dataclass(frozen=True)
class HpSinkReductions(ModulePass):
    """Add up the microbatches' gradients unreduced and reduce the sum, instead of reducing each microbatch's.

    Fewer bytes are sent, and more memory is held: the sums have the size of full parameters.

    1. What moves are the reductions of a stage function over any axes, from unreduced gradients to results of role
       "grad": padding and `hp.pack` before a collective; waits, `hp.unpack`, more reductions, casts and views behind.
       Casts before a collective stay: the function returns what they give.
    2. The function returns each unreduced gradient as a result of role "partial", with the `hp.fqn` of the parameters
       it is for, behind all others, in the place of the reduced ones.
    3. A rank's function adds up the partial gradients where it added up the reduced ones, in the wider of both dtypes.
       Right behind the last one the reductions start that need it; they are waited for where the reduced sum is first
       needed.
    4. Gradients that are reduced together (in a bucket) move together. They stay, with a remark, where anything else
       reads what the reductions give, or where what a rank adds up is read before it is complete.

    Requires: level "program".
    Leaves: level "program". Sums are rounded in another order; in exact arithmetic results are the same, reductions
        being linear.
    Does not handle: reductions of anything but gradients. They stay.

    Options: none.

    Example: ``hp-sink-reductions`` turns

    ```mlir
    func.func @stage0_backward(...) -> (!torch.vtensor<[2,8],f32> {hp.fqn = ["w"], hp.role = "grad", ...}) ... {
      ...
      %0 = "hp.reduce_scatter"(%g) {axes = ["dp"], dims = array<i64: 0>, reduce = "avg", ...} : ...
      %1 = "hp.wait"(%0) : ... -> !torch.vtensor<[2,8],f32>
      return %1 : ...
    func.func @rank0(...) -> ... {
      %g0 = call @stage0_backward(...) {hp.microbatch = 0} : ...
      %g1 = call @stage0_backward(...) {hp.microbatch = 1} : ...
      %sum = "hp.accumulate"(%g0, %g1) : ...
    ```

    into

    ```mlir
    func.func @stage0_backward(...) -> (!torch.vtensor<[4,8],f32> {hp.fqn = ["w"], hp.role = "partial"}) ... {
      ...
      return %g : ...
    func.func @rank0(...) -> ... {
      %g0 = call @stage0_backward(...) {hp.microbatch = 0} : ...
      %g1 = call @stage0_backward(...) {hp.microbatch = 1} : ...
      %all = "hp.accumulate"(%g0, %g1) : ...
      %0 = "hp.reduce_scatter"(%all) {axes = ["dp"], dims = array<i64: 0>, reduce = "avg", ...} : ...
      %sum = "hp.wait"(%0) : ... -> !torch.vtensor<[2,8],f32>
    ```
    """

    name: ClassVar[str] = "hp-sink-reductions"
    requires: ClassVar[tuple[str, ...]] = ("program",)
    leaves: ClassVar[str] = "program"

    def run(self, module: ir.Operation) -> None:  # noqa: D102
        require_level(module, self.name, self.requires)
        called = read_calls(module, self.name)
        chains = {stage.name: find_chains(stage) for stage in called.stages.values()}
        sums = [_find_sums(rank, chains) for rank in called.ranks]
        sinkings = {}
        for name, of_stage in chains.items():
            for chain in of_stage:
                if chain.obstacle:
                    remark(chain.start, f"stays in the calls of each microbatch: {chain.obstacle}")
            moving = [chain for chain in of_stage if not chain.obstacle]
            if moving:
                sinkings[name] = _plan(called.stages[name], moving)
        for rank, found_sums in zip(called.ranks, sums, strict=True):
            sum_unreduced(Builder(rank.op, called.mesh_name, called.mesh), rank, sinkings, found_sums)
        for sinking in sinkings.values():
            _return_unreduced(sinking, called.mesh_name, called.mesh)


def _find_sums(rank: Rank, chains: Mapping[str, Sequence[ReductionChain]]) -> dict[tuple[str, int], GradientSum]:
    """Return the sums of a rank's function over what chains give; a chain of which there is none must stay."""
    sums: dict[tuple[str, int], GradientSum] = {}
    made = [(name, chain, number) for name in rank.calls for chain in chains[name] for number in chain.results]
    for name, chain, number in made:
        found = find_sum(rank.calls[name], number)
        if found is None:
            chain.obstacle = chain.obstacle or "what it gives is read before it is added up"
        else:
            sums[name, number] = found
    steps = {op.results[0] for found in sums.values() for op, _ in found.steps}
    for name, chain, number in made:
        if (name, number) in sums and any(
            len(use.owner.operation.results) and use.owner.operation.results[0] in steps
            for use in sums[name, number].total.uses
        ):
            chain.obstacle = chain.obstacle or "what it adds up to is added to other gradients on the way"
    return sums


def _plan(stage: Stage, chains: Sequence[ReductionChain]) -> Sinking:
    moving = {number for chain in chains for number in chain.results}
    kept = [number for number in range(len(stage.signature.results)) if number not in moving]
    sources: dict[ir.Value, list[int]] = {}
    for chain in chains:
        for source, leads_to in chain.sources.items():
            sources.setdefault(source, []).extend(leads_to)
    return Sinking(stage, chains, kept, sources)


def _return_unreduced(sinking: Sinking, mesh_name: str, mesh: Mesh) -> None:
    """Make a stage function return what its reductions, which ranks have copied, were given."""
    function, signature = sinking.stage.op, sinking.stage.signature
    old = return_of(function)
    results = [signature.results[number] for number in sinking.kept]
    summed = 0
    for source, leads_to in sinking.sources.items():
        type_ = type_of(source)
        summed += type_.bytes
        names = dict.fromkeys(name for number in leads_to for name in signature.results[number].names)
        results.append(ValueInfo(0, "partial", type_, tuple(names), full_shape=type_.shape))
    operands = [*(old.operands[number] for number in sinking.kept), *sinking.sources]
    ir.Operation.create("func.return", operands=operands, loc=old.location, ip=ir.InsertionPoint(old))
    old.erase()
    for chain in sinking.chains:
        for op in reversed(chain.ops):
            op.erase()
    infos = tuple(replace(info, index=index) for index, info in enumerate(results))
    write_signature(function, Signature(signature.arguments, infos), mesh_name, mesh)
    remark(function, f"@{sinking.stage.name} returns unreduced gradients: {len(sinking.sources)}, of {summed} bytes")
