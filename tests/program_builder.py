"""Programs built by hand, for tests of what runs them: types are inferred where an op's rule is simple."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hpir.mesh import Mesh, Sharding, local_shape, padded_shard_size
from hpir.packed_layout import PackedLayout
from hpir.runtime.operators import tensor_type
from hpir.runtime.program import Arg, Argument, Function, Named, Op, Program, Ref, Result, TensorType
from hpir.runtime.simulate import SimulationResult, simulate


def dtype(name: str) -> Named:
    """Return a dtype as an op's argument."""
    return Named("dtype", name)


@dataclass
class FunctionBuilder:
    """One function: arguments first, then ops, then results."""

    name: str
    mesh: Mesh
    arguments: list[Argument] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    types: dict[int, TensorType] = field(default_factory=dict)
    futures: dict[int, list[TensorType]] = field(default_factory=dict)

    def argument(
        self,
        name: str,
        full_shape: Sequence[int],
        dtype: str = "float32",
        *,
        role: str = "input",
        sharding: Sharding | None = None,
        batch_dim: int | None = None,
        trainable: bool = False,
        aliases: Sequence[str] = (),
    ) -> Ref:
        """Add an argument of a global shape; its type is local to a rank."""
        assert not self.ops, "arguments come before ops"
        sharding = sharding or ((),) * len(full_shape)
        type_ = TensorType(local_shape(full_shape, sharding, self.mesh), dtype)
        names = (name, *aliases)
        self.arguments.append(Argument(type_, role, names, trainable, batch_dim, sharding, tuple(full_shape)))
        self.types[len(self.arguments) - 1] = type_
        return Ref(len(self.arguments) - 1)

    def param(self, name: str, full_shape: Sequence[int], **options: Any) -> Ref:
        """Add a trainable parameter."""
        return self.argument(name, full_shape, role="param", trainable=True, **options)

    def emit(self, target: str, *args: Arg, types: Sequence[TensorType | None], **kwargs: Arg) -> tuple[Ref, ...]:
        """Append any op and return its results."""
        return self._append(target, args, kwargs, types)

    def _append(
        self, target: str, args: tuple[Arg, ...], kwargs: dict[str, Arg], types: Sequence[TensorType | None]
    ) -> tuple[Ref, ...]:
        first = len(self.arguments) + sum(len(op.results) for op in self.ops)
        numbers = tuple(range(first, first + len(types)))
        self.types.update({number: type_ for number, type_ in zip(numbers, types, strict=True) if type_ is not None})
        self.ops.append(Op(target, args, kwargs, numbers, tuple(types)))
        return tuple(map(Ref, numbers))

    def aten(self, name: str, *args: Arg, like: Ref | None = None, type_: TensorType | None = None, **kw: Arg) -> Ref:
        """Append a torch operator with one result, of the type of `like` (default: the first operand)."""
        if type_ is None:
            first = like if like is not None else args[0]
            assert isinstance(first, Ref)
            type_ = self.types[first.index]
        return self.emit(f"aten.{name}", *args, types=[type_], **kw)[0]

    def literal(self, data: Arg, type_: TensorType) -> Ref:
        """Append a constant tensor."""
        return self.emit("literal", types=[type_], data=data)[0]

    def _start(self, target: str, refs: Sequence[Ref], types: list[TensorType], **kwargs: Arg) -> Ref:
        (future,) = self.emit(target, *refs, types=[None], **kwargs)
        self.futures[future.index] = types
        return future

    def _resized(self, ref: Ref, dim: int, size: Callable[[int], int]) -> TensorType:
        type_ = self.types[ref.index]
        shape = tuple(size(s or 0) if d == dim else s for d, s in enumerate(type_.shape))
        return TensorType(shape, type_.dtype)

    def all_gather(self, *refs: Ref, axes: Sequence[str], dims: Sequence[int], **kwargs: Arg) -> Ref:
        """Start an all-gather."""
        count = self.mesh.count(axes)
        types = [self._resized(ref, dim, lambda s: s * count) for ref, dim in zip(refs, dims, strict=True)]
        return self._start("hp.all_gather", refs, types, axes=tuple(axes), dims=tuple(dims), **kwargs)

    def reduce_scatter(self, *refs: Ref, axes: Sequence[str], dims: Sequence[int], reduce: str = "sum") -> Ref:
        """Start a reduce-scatter."""
        count = self.mesh.count(axes)
        types = [self._resized(ref, dim, lambda s: s // count) for ref, dim in zip(refs, dims, strict=True)]
        return self._start("hp.reduce_scatter", refs, types, axes=tuple(axes), dims=tuple(dims), reduce=reduce)

    def all_reduce(self, *refs: Ref, axes: Sequence[str], reduce: str = "sum", **kwargs: Arg) -> Ref:
        """Start an all-reduce."""
        types = [self.types[ref.index] for ref in refs]
        return self._start("hp.all_reduce", refs, types, axes=tuple(axes), reduce=reduce, **kwargs)

    def all_to_all(self, *refs: Ref, axes: Sequence[str], splits: Sequence[int], concats: Sequence[int]) -> Ref:
        """Start an all-to-all."""
        count = self.mesh.count(axes)
        types = []
        for ref, split, concat in zip(refs, splits, concats, strict=True):
            shape = list(self.types[ref.index].shape)
            shape[split] = (shape[split] or 0) // count
            shape[concat] = (shape[concat] or 0) * count
            types.append(TensorType(tuple(shape), self.types[ref.index].dtype))
        return self._start(
            "hp.all_to_all", refs, types, axes=tuple(axes), split_dims=tuple(splits), concat_dims=tuple(concats)
        )

    def broadcast(self, *refs: Ref, axes: Sequence[str], root: int, **kwargs: Arg) -> Ref:
        """Start a broadcast."""
        types = [self.types[ref.index] for ref in refs]
        return self._start("hp.broadcast", refs, types, axes=tuple(axes), root=root, **kwargs)

    def wait_all(self, future: Ref) -> tuple[Ref, ...]:
        """Wait for a future of any number of tensors."""
        return self.emit("hp.wait", future, types=self.futures[future.index])

    def wait(self, future: Ref) -> Ref:
        """Wait for a future of one tensor."""
        (value,) = self.wait_all(future)
        return value

    def send(self, *refs: Ref, axis: str, peer: int, **kwargs: Arg) -> None:
        """Send to the rank at a position on an axis."""
        self.emit("hp.send", *refs, types=[], axis=axis, peer=peer, **kwargs)

    def recv(self, *types: TensorType, axis: str, peer: int, **kwargs: Arg) -> Ref:
        """Start to receive from the rank at a position on an axis."""
        pairs: Arg = tuple((type_.dtype, type_.shape) for type_ in types)
        (future,) = self._append("hp.recv", (), {"axis": axis, "peer": peer, "types": pairs, **kwargs}, [None])
        self.futures[future.index] = list(types)
        return future

    def shard_slice(self, ref: Ref, axes: Sequence[str], dim: int) -> Ref:
        """Take this rank's piece."""
        type_ = self._resized(ref, dim, lambda s: padded_shard_size(s, self.mesh.sizes(axes)))
        return self.emit("hp.shard_slice", ref, types=[type_], axes=tuple(axes), dim=dim)[0]

    def microbatch(self, ref: Ref, index: int, count: int, dim: int = 0) -> Ref:
        """Take one part of an input."""
        type_ = self._resized(ref, dim, lambda s: s // count + (index < s % count))
        return self.emit("hp.microbatch", ref, types=[type_], index=index, count=count, dim=dim)[0]

    def accumulate(self, sums: Sequence[Ref], values: Sequence[Ref]) -> tuple[Ref, ...]:
        """Add values to accumulators."""
        return self.emit("hp.accumulate", *sums, *values, types=[self.types[ref.index] for ref in sums])

    def pack(self, *refs: Ref, ranks: int = 1, alignment: int = 4, dims: tuple[int, ...] = ()) -> Ref:
        """Lay tensors out in one."""
        types = [self.types[ref.index] for ref in refs]
        layout = PackedLayout.of(
            [type_.shape for type_ in types],
            [type_.dtype for type_ in types],
            ranks=ranks,
            dims=dims,
            alignment=alignment,
        )
        kwargs = _packing(types, ranks, alignment, dims)
        return self._append("hp.pack", refs, kwargs, [TensorType((ranks * layout.length,), layout.dtype)])[0]

    def unpack(
        self,
        ref: Ref,
        types: Sequence[TensorType],
        *,
        layout: str,
        ranks: int = 1,
        alignment: int = 4,
        dims: tuple[int, ...] = (),
    ) -> tuple[Ref, ...]:
        """Take tensors out of one."""
        return self._append("hp.unpack", (ref,), {**_packing(types, ranks, alignment, dims), "layout": layout}, types)

    def random(self, kind: str, sizes: Sequence[int], stream: int, name: str = "float32") -> Ref:
        """Draw from a stream; `kind` is "uniform" or "normal"."""
        type_ = TensorType(tuple(sizes), name)
        return self.emit(f"hp.{kind}", tuple(sizes), types=[type_], stream=stream, dtype=dtype(name))[0]

    def call(self, callee: Function, *args: Arg, **kwargs: Arg) -> tuple[Ref, ...]:
        """Call another function of the program."""
        types = [result.type for result in callee.results]
        return self.emit("call", *args, types=types, function=callee.name, **kwargs)

    def result(
        self,
        ref: Ref,
        role: str = "output",
        name: str = "",
        *,
        full_shape: Sequence[int] | None = None,
        sharding: Sharding | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Return a value."""
        type_ = self.types[ref.index]
        names = (name or (role if role == "loss" else f"out{len(self.results)}"), *aliases)
        sharding = sharding or ((),) * len(type_.shape)
        full = tuple(full_shape) if full_shape is not None else type_.shape
        self.results.append(Result(ref.index, type_, role, names, None, sharding, full))

    def build(self) -> Function:
        """Return the function; a loss of zero is added where there is none."""
        if not any(result.role == "loss" for result in self.results):
            self.result(self.literal(0.0, TensorType((), "float32")), "loss")
        return Function(self.name, tuple(self.arguments), tuple(self.ops), tuple(self.results))


def _packing(types: Sequence[TensorType], ranks: int, alignment: int, dims: tuple[int, ...]) -> dict[str, Arg]:
    pairs: Arg = tuple((type_.dtype, type_.shape) for type_ in types)
    kwargs: dict[str, Arg] = {"ranks": ranks, "alignment": alignment, "types": pairs}
    return {**kwargs, "dims": dims} if dims else kwargs


def program_of(
    *functions: Function,
    mesh: Mesh,
    data_axes: Sequence[str] = (),
    train: Sequence[str] = (),
    evaluate: Sequence[str] = (),
    microbatches: int = 1,
    **options: Any,
) -> Program:
    """Make a Program of functions; the last one is what every rank enters unless `train` says otherwise."""
    train = tuple(train) or (functions[-1].name,)
    program = Program(
        mesh=mesh,
        data_axes=tuple(data_axes),
        microbatches=microbatches,
        functions={function.name: function for function in functions},
        train=train,
        evaluate=tuple(evaluate) or train,
        **options,
    )
    program.validate()
    return program


def on_ranks(
    mesh: Mesh, inputs: Sequence[Sequence[Tensor]], body: Callable[..., Sequence[Ref]], **options: Any
) -> list[list[Tensor]]:
    """Run `body(function, *operands)` with each rank's own operands and return each rank's values of what it returns.

    Args:
        mesh: the ranks.
        inputs: per operand, one tensor of at least one dim per rank, all of the same type.
        body: adds ops to the function and returns values.
        options: of `simulate`.
    """
    function = FunctionBuilder("main", mesh)
    refs, batch = [], {}
    for number, tensors in enumerate(inputs):
        whole = torch.cat(list(tensors))
        sharding = (mesh.axis_names, *((),) * (whole.dim() - 1))
        name = f"x{number}"
        refs.append(function.argument(name, whole.shape, tensor_type(whole).dtype, sharding=sharding, batch_dim=0))
        batch[name] = whole
    for ref in body(function, *refs):
        function.result(ref)
    result = simulate(program_of(function.build(), mesh=mesh), {}, batch, check_types=True, **options)
    return [list(values[:-1]) for values in result.per_rank]


def by_position(functions: Sequence[Function], mesh: Mesh, axis: str, *others: Function, **options: Any) -> Program:
    """Make a Program in which the rank at position i of `axis` enters the i-th function."""
    names = [function.name for function in functions]
    return program_of(*others, *functions, mesh=mesh, train=names, pipeline_axis=axis, **options)


def run(program: Program, **options: Any) -> SimulationResult:
    """Simulate a Program that takes nothing."""
    return simulate(program, {}, {}, check_types=True, **options)


def with_location(function: Function, number: int, location: str, module: str = "") -> Function:
    """Return a function in which one op has a source line and a module."""
    ops = list(function.ops)
    ops[number] = replace(ops[number], location=location, module=module)
    return replace(function, ops=tuple(ops))
