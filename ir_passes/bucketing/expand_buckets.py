"""hp-expand-buckets: a bucket becomes one tensor, moved by one collective of one operand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from ...dialect.attributes import find_mesh, future_type, i64_attr, ints_attr, read_strings, strings_attr
from ...dialect.diagnostics import remark
from ...dialect.levels import require_level
from ...dialect.signature import step_functions
from ...dialect.types import TensorType
from ...errors import PassError, nearest
from ...packed_layout import PackedLayout
from ..base import ModulePass
from ..build import Builder, Site, type_of
from .buckets import GATHER, REDUCE, SCATTER, Bucket, find_buckets, trace_parameters
from .packed_state import Place, StateLayout, alignment, place_parameters

LAYOUTS = ("packed", "flat")
_CARRIED = ("hp.bucket", "hp.module", "hp.phase", "hp.recompute")


@dataclass(frozen=True)
class HpExpandBuckets(ModulePass):
    """Make each bucket one launch: its tensors are packed into one, which one collective moves.

    1. A bucket is an all-gather, reduce-scatter or all-reduce of several tensors of static shape, over more than one
       rank, waited for once. Right before it stands an `hp.pack` of its operands, it becomes the collective of that one
       tensor, and right behind its `hp.wait` an `hp.unpack` gives the results. Any other collective of several tensors
       stays, with a remark that says why.
    2. A reduce-scatter's operands are packed rank-major, so that each rank's piece of every member is contiguous. The
       results of reductions are views of one buffer, in both layouts.
    3. Gathers of several dtypes move bytes. A member starts at a multiple of 16 bytes; the padding moves with it.
    4. With `layout=packed` each gathered tensor owns its memory: freeing one does not keep its bucket alive.
    5. With `layout=flat` the gathered tensors are views of one buffer, and so are the shards: parameters that a bucket
       gathers get `hp.buffer` and `hp.offset`, by which the runtime lays them out so that packing them is no copy. The
       members of the bucket are brought into an order in which those that another bucket gathers too (in the backward,
       say) lie side by side. A parameter of several buckets is laid out by the first of the forward.
    6. Shards that are all cast alike (`param-dtype` of hp-fsdp) are packed as they are stored and cast together, in
       both layouts. Their own casts stay only for what else reads them.
    7. Start and wait keep their attributes; `hp.fqn` is in the order of the members, and `hp.member_bytes` says how
       many bytes of the operand are each one's.

    Requires: level "spmd" or "staged"; a mesh where there is a bucket.
    Leaves: the level it found. Gathers and reduce-scatters are kept bitwise. An all-reduce may round differently, as
        gloo adds in an order that depends on where in the message an element is.
    Does not handle: all-to-alls and broadcasts of several tensors; members of dynamic size; reductions of several
        dtypes. They stay as they are.

    Options:
        layout: `flat` (the default: no copy before a gather, one buffer behind it) or `packed`.

    Example: ``hp-expand-buckets`` on a mesh ``dp:2`` turns

    ```mlir
    func.func @joint(%a: !torch.vtensor<[2,8],f32> {hp.role = "param", ...}, %b: !torch.vtensor<[4],f32> {...}, ...)
      %0 = "hp.all_gather"(%a, %b) {axes = ["dp"], dims = array<i64: 0, 0>, hp.bucket = "l", ...} : ...
      %1:2 = "hp.wait"(%0) {hp.bucket = "l", ...} : ... -> (!torch.vtensor<[4,8],f32>, !torch.vtensor<[8],f32>)
    ```

    into

    ```mlir
    func.func @joint(%a: !torch.vtensor<[2,8],f32> {hp.buffer = "l", hp.offset = 0 : i64, ...},
                     %b: !torch.vtensor<[4],f32> {hp.buffer = "l", hp.offset = 64 : i64, ...}, ...)
      %0 = "hp.pack"(%a, %b) {alignment = 4 : i64, ranks = 1 : i64, ...} : ... -> !torch.vtensor<[20],f32>
      %1 = "hp.all_gather"(%0) {axes = ["dp"], dims = array<i64: 0>, hp.member_bytes = array<i64: 64, 16>, ...} : ...
      %2 = "hp.wait"(%1) {...} : ... -> !torch.vtensor<[40],f32>
      %3:2 = "hp.unpack"(%2) {alignment = 4 : i64, dims = array<i64: 0, 0>, layout = "flat", ranks = 2 : i64, ...} : ...
    ```
    """

    name: ClassVar[str] = "hp-expand-buckets"
    requires: ClassVar[tuple[str, ...]] = ("spmd", "staged")

    layout: str = "flat"

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            hint = nearest(self.layout, LAYOUTS) or ", expected 'flat' or 'packed'"
            raise PassError(f"option 'layout' names no layout: '{self.layout}'{hint}")

    def run(self, module: ir.Operation) -> None:  # noqa: D102
        require_level(module, self.name, self.requires)
        found = find_mesh(module)
        if found is None:
            return  # No collective is valid without a mesh.
        mesh_name, mesh = found
        functions = list(step_functions(module))
        found_buckets = [find_buckets(function, mesh) for function in functions]
        layouts = [StateLayout(function) for function in functions]
        for buckets, state in zip(found_buckets, layouts, strict=True):
            trace_parameters(buckets, state.parameters.keys())
        if self.layout == "flat":
            names, places = _joined(layouts)
            places = place_parameters([bucket for buckets in found_buckets for bucket in buckets], names, places)
            for state in layouts:
                state.write(places)
        for function, buckets in zip(functions, found_buckets, strict=True):
            expansion = _Expansion(Builder(function, mesh_name, mesh), self.layout)
            for bucket in buckets:
                expansion.expand(bucket)
            _erase_unread_casts(buckets)


def _joined(layouts: Iterable[StateLayout]) -> tuple[dict[ir.Value, str], dict[str, Place]]:
    """Return the parameters of all functions, and the places of those that have one."""
    names: dict[ir.Value, str] = {}
    places: dict[str, Place] = {}
    for state in layouts:
        names.update(state.parameters)
        places.update(state.places)
    return names, places


class _Expansion:
    """Rewrites the buckets of one function."""

    def __init__(self, builder: Builder, layout: str):
        self._builder = builder
        self._layout = layout

    def expand(self, bucket: Bucket) -> None:
        """Put pack, collective, wait and unpack in the place of a bucket."""
        start, kind, ranks = bucket.start, bucket.start.name, bucket.ranks
        types = [bucket.types[position] for position in bucket.order]
        dims = [bucket.dims[position] for position in bucket.order] if bucket.dims else []
        # As they are now: they may be results of another bucket, which has been expanded.
        sources = bucket.parameters if bucket.cast_to else list(start.operands)
        operands = [sources[position] for position in bucket.order]
        stored = [type_of(operand) for operand in operands]
        aligned = alignment(stored, bucket.cast_to)
        carried = {name: start.attributes[name] for name in _CARRIED if name in start.attributes}
        site = Site.before(start, carried)
        cut = (ranks, dims) if kind == SCATTER else (1, [])
        packed = self._pack(site, operands, stored, aligned, *cut)
        if bucket.cast_to:
            packed = self._builder.cast(site, packed, bucket.cast_to)
        arrived = self._move(bucket, packed, types)
        results = [bucket.wait.results[position] for position in bucket.order]
        joined = (ranks, dims) if kind == GATHER else (1, [])
        layout = self._layout if kind == GATHER else "flat"
        unpacked = self._unpack(Site.before(bucket.wait, carried), arrived, results, aligned, *joined, layout)
        for old, new in zip(results, unpacked, strict=True):
            old.replace_all_uses_with(new)
        bucket.wait.erase()
        start.erase()

    def _pack(
        self,
        site: Site,
        operands: list[ir.Value],
        types: list[TensorType],
        aligned: int,
        ranks: int,
        dims: list[int],
    ) -> ir.Value:
        layout = PackedLayout.of(
            [type_.shape for type_ in types],
            [type_.dtype for type_ in types],
            ranks=ranks,
            dims=dims,
            alignment=aligned,
        )
        with self._builder.function.context:
            type_ = TensorType((ranks * layout.length,), layout.dtype).to_mlir()
            attributes = _cut_attributes(aligned, ranks, dims)
        return self._builder.create(site, "hp.pack", operands, [type_], attributes).results[0]

    def _move(self, bucket: Bucket, packed: ir.Value, types: list[TensorType]) -> ir.Value:
        """Make the collective of the packed tensor, and its wait; return what arrives."""
        builder, start, wait, sent = self._builder, bucket.start, bucket.wait, type_of(packed)
        elements = sent.elements
        if start.name == GATHER:
            elements *= bucket.ranks
        elif start.name == SCATTER:
            elements //= bucket.ranks
        marks: dict[str, ir.Attribute] = {}
        with builder.function.context:
            received = sent.with_shape((elements,)).to_mlir()
            future = future_type([received])
            if start.name != REDUCE:
                marks["dims"] = ints_attr([0])
            told = {"hp.member_bytes": ints_attr([type_.bytes for type_ in types])}
            names = read_strings(start.attributes["hp.fqn"]) if "hp.fqn" in start.attributes else None
            if names is not None and len(names) == len(types):
                told["hp.fqn"] = strings_attr([names[position] for position in bucket.order])
        made = builder.create(Site.before(start, _all(start)), start.name, [packed], [future], {**marks, **told})
        site = Site.before(wait, _all(wait))
        arrived = builder.create(site, "hp.wait", [made.results[0]], [received], told).results[0]
        padding = sent.bytes - sum(type_.bytes for type_ in types)
        remark(made, f"moves {len(types)} tensors as one of {sent.bytes} bytes, {padding} of them padding")
        return arrived

    def _unpack(
        self,
        site: Site,
        packed: ir.Value,
        results: list[ir.Value],
        aligned: int,
        ranks: int,
        dims: list[int],
        layout: str,
    ) -> list[ir.Value]:
        with self._builder.function.context:
            attributes = {**_cut_attributes(aligned, ranks, dims), "layout": ir.StringAttr.get(layout)}
        op = self._builder.create(site, "hp.unpack", [packed], [result.type for result in results], attributes)
        return list(op.results)


def _cut_attributes(aligned: int, ranks: int, dims: list[int]) -> dict[str, ir.Attribute]:
    attributes: dict[str, ir.Attribute] = {"alignment": i64_attr(aligned), "ranks": i64_attr(ranks)}
    if ranks > 1:
        attributes["dims"] = ints_attr(dims)
    return attributes


def _all(op: ir.Operation) -> dict[str, ir.Attribute]:
    return {name: op.attributes[name] for name in op.attributes}


def _erase_unread_casts(buckets: list[Bucket]) -> None:
    for value in dict.fromkeys(value for bucket in buckets if bucket.cast_to for value in bucket.inputs):
        if next(iter(value.uses), None) is None:
            value.owner.erase()
