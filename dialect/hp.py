"""The `hp` dialect: meshes, shardings, asynchronous collectives and point-to-point messages over mesh axes.

Each op's docstring is its contract: what it computes, its constraints (C1, C2, ...: the verifier, the tests and the
messages use these numbers) and an example. The dialect reference in ``docs/`` is generated from here.

Every collective is asynchronous and variadic: it takes N tensors and gives one future of N tensors, which `hp.wait`
turns into values. N > 1 is a bucket. "The group" of a rank over `axes` are the ranks that differ from it only along
these axes, ordered by their coordinates, first axis major.

Communication is not pure for MLIR, so its CSE and DCE leave it alone; `hp-simplify` knows when it may go.
"""

# No `from __future__ import annotations` here: the dialect is defined by the annotations, which must be objects.
from collections.abc import Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects.ext import Dialect, Operand, Pure, Result

from . import contracts, variadic


class Hp(Dialect, name="hp"):
    """Distribution of a training step over a mesh of ranks."""


class Future(Hp.Type, name="future"):
    """Tensors on their way: `!hp.future<[t0, t1]>`, one type per tensor that `hp.wait` will give."""

    types: ir.ArrayAttr


class ShardingAttr(Hp.Attribute, name="sharding"):
    """Which mesh axes split each dim, major to minor: `#hp.sharding<@mesh, [["dp"], []]>`."""

    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr


class VariadicOp(Hp.Operation):
    """An op of which operands or results, of several types, vary in number; see `variadic`."""

    @classmethod
    def _emit_operation(cls) -> None:
        variadic.emit_operation(cls)

    def verify_contract(self) -> bool:
        """Check the op's numbered constraints. Each op has its own."""
        raise NotImplementedError

    def verify_invariants(self) -> bool:  # noqa: D102
        return self.verify_contract() and variadic.mark(type(self), self.operation)

    def verify_region_invariants(self) -> bool:  # noqa: D102
        variadic.unmark(self.operation)
        return True


class MeshOp(Hp.Operation, name="mesh"):
    """The ranks a module runs on, as a named grid, outermost axis first; rank = row-major coordinate.

    - C1: `axis_names` and `axis_sizes` have the same length, at least 1.
    - C2: axis names are unique and not empty.
    - C3: every axis size is at least 1.
    - C4: a module has at most one mesh, directly in its body.

    ```mlir
    "hp.mesh"() {sym_name = "mesh", axis_names = ["pp", "dp"], axis_sizes = array<i64: 2, 4>} : () -> ()
    ```
    """

    sym_name: ir.StringAttr
    axis_names: ir.ArrayAttr
    axis_sizes: Any

    def verify_invariants(self) -> bool:  # noqa: D102
        return contracts.verify_mesh(self.operation)


class AllGatherOp(VariadicOp, name="all_gather"):
    """Start to concatenate each operand over the group along its dim; all members get the same values.

    - C1: at least one operand; operands are tensors; the future has one type per operand.
    - C2: `mesh` names the module's mesh; `axes` are axes of it, each once, at least one.
    - C3: one dim per operand, within the operand's rank.
    - C4: each result's size along its dim is the operand's times the group's size; all else is the operand's.

    ```mlir
    %f = "hp.all_gather"(%shard) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>}
        : (!torch.vtensor<[4,8],f32>) -> !hp.future<[!torch.vtensor<[8,8],f32>]>
    ```
    """

    inputs: Sequence[Operand[Any]]
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    dims: Any
    future: Result[Future]

    def verify_contract(self) -> bool:  # noqa: D102
        return contracts.verify_all_gather(self.operation)


class ReduceScatterOp(VariadicOp, name="reduce_scatter"):
    """Start to reduce each operand elementwise over the group and give each member its piece along the dim.

    - C1: at least one operand; operands are tensors; the future has one type per operand.
    - C2: `mesh` names the module's mesh; `axes` are axes of it, each once, at least one.
    - C3: one dim per operand, within the operand's rank.
    - C4: each operand's size along its dim is the result's times the group's size; all else is the operand's.
    - C5: `reduce` is "sum" or "avg"; "avg" only on floating or complex tensors.

    ```mlir
    %f = "hp.reduce_scatter"(%grad) {mesh = @mesh, axes = ["dp"], dims = array<i64: 0>, reduce = "avg"}
        : (!torch.vtensor<[8,8],f32>) -> !hp.future<[!torch.vtensor<[4,8],f32>]>
    ```
    """

    inputs: Sequence[Operand[Any]]
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    dims: Any
    reduce: ir.StringAttr
    future: Result[Future]

    def verify_contract(self) -> bool:  # noqa: D102
        return contracts.verify_reduce_scatter(self.operation)


class AllReduceOp(VariadicOp, name="all_reduce"):
    """Start to reduce each operand elementwise over the group; all members get the same values.

    - C1: at least one operand; operands are tensors; the future has the operands' types.
    - C2: `mesh` names the module's mesh; `axes` are axes of it, each once, at least one.
    - C3: `reduce` is "sum" or "avg"; "avg" only on floating or complex tensors.
    - C4: `coordinates`, where present, needs exactly one axis, and lists positions on it, ascending, each once. Only
      ranks at these positions take part.

    ```mlir
    %f = "hp.all_reduce"(%grad) {mesh = @mesh, axes = ["dp"], reduce = "avg"}
        : (!torch.vtensor<[8],f32>) -> !hp.future<[!torch.vtensor<[8],f32>]>
    ```
    """

    inputs: Sequence[Operand[Any]]
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    reduce: ir.StringAttr
    future: Result[Future]

    def verify_contract(self) -> bool:  # noqa: D102
        return contracts.verify_all_reduce(self.operation)


class AllToAllOp(VariadicOp, name="all_to_all"):
    """Start to split each operand along its split dim, send piece i to member i, and concatenate along the concat dim.

    - C1: at least one operand; operands are tensors; the future has one type per operand.
    - C2: `mesh` names the module's mesh; `axes` are axes of it, each once, at least one.
    - C3: one split dim and one concat dim per operand, within the operand's rank.
    - C4: the group's size divides the operand along its split dim; the result is the operand with that size divided and
      then its concat dim's multiplied by the group's size.

    ```mlir
    %f = "hp.all_to_all"(%x) {mesh = @mesh, axes = ["ep"], split_dims = array<i64: 0>, concat_dims = array<i64: 1>}
        : (!torch.vtensor<[4,2],f32>) -> !hp.future<[!torch.vtensor<[2,4],f32>]>
    ```
    """

    inputs: Sequence[Operand[Any]]
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    split_dims: Any
    concat_dims: Any
    future: Result[Future]

    def verify_contract(self) -> bool:  # noqa: D102
        return contracts.verify_all_to_all(self.operation)


class BroadcastOp(VariadicOp, name="broadcast"):
    """Start to give every member of the group the value that the member at position `root` has.

    - C1: at least one operand; operands are tensors; the future has the operands' types.
    - C2: `mesh` names the module's mesh; `axes` are axes of it, each once, at least one.
    - C3: `coordinates`, where present, needs exactly one axis, and lists positions on it, ascending, each once. Only
      ranks at these positions take part.
    - C4: `root` is a position in the group; with `coordinates`, one of them.

    ```mlir
    %f = "hp.broadcast"(%loss) {mesh = @mesh, axes = ["pp"], root = 1 : i64}
        : (!torch.vtensor<[],f32>) -> !hp.future<[!torch.vtensor<[],f32>]>
    ```
    """

    inputs: Sequence[Operand[Any]]
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    root: ir.IntegerAttr
    future: Result[Future]

    def verify_contract(self) -> bool:  # noqa: D102
        return contracts.verify_broadcast(self.operation)


class WaitOp(VariadicOp, name="wait"):
    """Wait for a future and give its tensors.

    - C1: the results have the future's types, in order.

    ```mlir
    %full = "hp.wait"(%f) : (!hp.future<[!torch.vtensor<[8,8],f32>]>) -> !torch.vtensor<[8,8],f32>
    ```
    """

    future: Operand[Future]
    values: Sequence[Result[Any]]

    def verify_contract(self) -> bool:  # noqa: D102
        return contracts.verify_wait(self.operation)


class ShardSliceOp(Hp.Operation, name="shard_slice", traits=[Pure]):
    """Give this rank's piece of a tensor that its whole group has; no communication.

    Pieces are those of an uneven sharding (per axis, major to minor, ceil(rows / ranks)), padded with zeros if short.

    - C1: the operand and the result are tensors.
    - C2: `mesh` names the module's mesh; `axes` are axes of it, each once, at least one.
    - C3: `dim` is within the operand's rank.
    - C4: the result's size along `dim` is the largest piece's; all else is the operand's.

    ```mlir
    %piece = "hp.shard_slice"(%x) {mesh = @mesh, axes = ["dp"], dim = 0 : i64}
        : (!torch.vtensor<[7,8],f32>) -> !torch.vtensor<[4,8],f32>
    ```
    """

    input: Operand[Any]
    mesh: ir.FlatSymbolRefAttr
    axes: ir.ArrayAttr
    dim: ir.IntegerAttr
    result: Result[Any]

    def verify_invariants(self) -> bool:  # noqa: D102
        return contracts.verify_shard_slice(self.operation)


class SendOp(VariadicOp, name="send"):
    """Start to send tensors to the rank at position `peer` on `axis`, all other coordinates being this rank's.

    A channel (an ordered pair of ranks) is FIFO. The runtime keeps the buffers and drains them at the end of the step.

    - C1: at least one operand; operands are tensors.
    - C2: `mesh` names the module's mesh and `axis` an axis of it.
    - C3: `peer` is a position on the axis.
    - C4: with the unit attribute `header`, the tensors' sizes are sent before them; a size that is not static needs it.

    ```mlir
    "hp.send"(%x) {mesh = @mesh, axis = "pp", peer = 1 : i64} : (!torch.vtensor<[4,8],f32>) -> ()
    ```
    """

    inputs: Sequence[Operand[Any]]
    mesh: ir.FlatSymbolRefAttr
    axis: ir.StringAttr
    peer: ir.IntegerAttr

    def verify_contract(self) -> bool:  # noqa: D102
        return contracts.verify_send(self.operation)


class RecvOp(Hp.Operation, name="recv"):
    """Start to receive what the rank at position `peer` on `axis` sends next on its channel to this rank.

    `label`, where present, is for people only.

    - C1: the future has at least one type, all tensors.
    - C2: `mesh` names the module's mesh and `axis` an axis of it.
    - C3: `peer` is a position on the axis.
    - C4: with the unit attribute `header`, the tensors' sizes arrive before them; a size that is not static needs it.

    ```mlir
    %f = "hp.recv"() {mesh = @mesh, axis = "pp", peer = 0 : i64} : () -> !hp.future<[!torch.vtensor<[4,8],f32>]>
    ```
    """

    mesh: ir.FlatSymbolRefAttr
    axis: ir.StringAttr
    peer: ir.IntegerAttr
    future: Result[Future]

    def verify_invariants(self) -> bool:  # noqa: D102
        return contracts.verify_recv(self.operation)


class MicrobatchOp(Hp.Operation, name="microbatch", traits=[Pure]):
    """Give the `index`-th of `count` parts of an input along `dim`; sizes differ by at most one, larger ones first.

    - C1: the operand and the result are tensors.
    - C2: `count` is at least 1 and `index` within 0 to count - 1.
    - C3: `dim` is within the operand's rank.
    - C4: the result's size along `dim` is that part's; all else is the operand's.

    ```mlir
    %part = "hp.microbatch"(%ids) {index = 0 : i64, count = 4 : i64, dim = 0 : i64}
        : (!torch.vtensor<[8,16],si64>) -> !torch.vtensor<[2,16],si64>
    ```
    """

    input: Operand[Any]
    index: ir.IntegerAttr
    count: ir.IntegerAttr
    dim: ir.IntegerAttr
    result: Result[Any]

    def verify_invariants(self) -> bool:  # noqa: D102
        return contracts.verify_microbatch(self.operation)


class AccumulateOp(VariadicOp, name="accumulate", traits=[Pure]):
    """Add N values to N accumulators, pairwise; at run time in place, where nothing else reads the accumulator.

    Operands are the N accumulators, then the N values.

    - C1: an even number of operands, at least 2, all tensors; half as many results.
    - C2: each accumulator and its result have the same type; the value's shape is theirs.

    ```mlir
    %sum = "hp.accumulate"(%sum0, %grad) : (!torch.vtensor<[8],f32>, !torch.vtensor<[8],f32>) -> !torch.vtensor<[8],f32>
    ```
    """

    inputs: Sequence[Operand[Any]]
    sums: Sequence[Result[Any]]

    def verify_contract(self) -> bool:  # noqa: D102
        return contracts.verify_accumulate(self.operation)


class UniformOp(Hp.Operation, name="uniform", traits=[Pure]):
    """Draw uniformly from [0, 1), a pure function of (seed, step, stream, place in the global batch).

    Operands are the sizes. Drawing the same stream again gives the same values: that is what makes a recomputation, and
    every plan, see the same mask. With `rows`, the first dim is that many equal blocks, one per row of the microbatch,
    and each is drawn by the number of its row in the global batch, however that is divided over data ranks and
    microbatches. Without, the whole is drawn by the number of the microbatch in the global batch.

    - C1: operands are `!torch.int`; the result is a floating tensor with one dim per operand.
    - C2: `stream` is not negative.
    - C3: `rows`, where present, is at least 1 and divides the first dim, whose size is static.

    ```mlir
    %u = "hp.uniform"(%int2, %int4) {rows = 2 : i64, stream = 0 : i64}
        : (!torch.int, !torch.int) -> !torch.vtensor<[2,4],f32>
    ```
    """

    sizes: Sequence[Operand[Any]]
    stream: ir.IntegerAttr
    result: Result[Any]

    def verify_invariants(self) -> bool:  # noqa: D102
        return contracts.verify_random(self.operation)


class NormalOp(Hp.Operation, name="normal", traits=[Pure]):
    """Draw from the standard normal, a pure function of (seed, step, stream, place in the global batch).

    Operands are the sizes. Drawing the same stream again gives the same values; `rows` is that of `hp.uniform`.

    - C1: operands are `!torch.int`; the result is a floating tensor with one dim per operand.
    - C2: `stream` is not negative.
    - C3: `rows`, where present, is at least 1 and divides the first dim, whose size is static.

    ```mlir
    %n = "hp.normal"(%int2, %int4) {rows = 2 : i64, stream = 1 : i64}
        : (!torch.int, !torch.int) -> !torch.vtensor<[2,4],f32>
    ```
    """

    sizes: Sequence[Operand[Any]]
    stream: ir.IntegerAttr
    result: Result[Any]

    def verify_invariants(self) -> bool:  # noqa: D102
        return contracts.verify_random(self.operation)


COMMUNICATION = frozenset(
    {
        "hp.all_gather",
        "hp.reduce_scatter",
        "hp.all_reduce",
        "hp.all_to_all",
        "hp.broadcast",
        "hp.wait",
        "hp.send",
        "hp.recv",
    }
)
"""Ops that talk to other ranks."""
