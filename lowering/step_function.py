"""The step function around a compiled microbatch: slicing, accumulation, and what is reduced once per step.

This is the program level with one stage: an entry function per rank that loops over microbatches, written out, around
`stage0_step` (forward and backward) or `stage0_forward` (forward only).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..errors import PlanError
from ..mesh import Mesh
from ..runtime.program import Arg, Argument, Function, Op, Ref, Result, TensorType
from ..runtime.sizes import batch_size_name
from .step_totals import StepTotals
from .uneven_gather import gather_uneven

_KEPT = {"hp.send", "aten._linalg_check_errors.default"}

MOST_MICROBATCHES = 2**16
"""Bound on the microbatches of a step, which are written out one by one."""


def prune(function: Function, keep: Callable[[Result], bool]) -> Function:
    """Return `function` with only the results that `keep` wants and the ops they need, renumbered.

    Every rank of an spmd function runs the same ops, so a collective nobody needs goes on all of them.
    """
    results = [result for result in function.results if keep(result)]
    needed = {result.value for result in results}
    ops: list[Op] = []
    for op in reversed(function.ops):
        if op.target in _KEPT or any(value in needed for value in op.results):
            needed.update(op.operands())
            ops.append(op)
    ops.reverse()
    return renumber(function, ops, results)


def renumber(function: Function, ops: Sequence[Op], results: Sequence[Result]) -> Function:
    """Return `function` with other ops and results, values numbered in order. Each use is of a value that is there."""
    numbers = {index: index for index in range(len(function.arguments))}
    renumbered: list[Op] = []
    for op in ops:
        args = tuple(_renumber(arg, numbers) for arg in op.args)
        kwargs = {name: _renumber(arg, numbers) for name, arg in op.kwargs.items()}
        for value in op.results:
            numbers[value] = len(numbers)
        renumbered.append(replace(op, args=args, kwargs=kwargs, results=tuple(numbers[value] for value in op.results)))
    return replace(
        function,
        ops=tuple(renumbered),
        results=tuple(replace(result, value=numbers[result.value]) for result in results),
    )


def _renumber(arg: Arg, numbers: dict[int, int]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(numbers[arg.index])
    if isinstance(arg, tuple):
        return tuple(_renumber(item, numbers) for item in arg)
    return arg


def assemble(
    step: Function, mesh: Mesh, data_axes: Sequence[str], microbatches: int, *, divide: bool = True
) -> tuple[dict[str, Function], str, str]:
    """Build the functions of a Program around one microbatch's step.

    Args:
        step: forward and backward of one microbatch of one data rank.
        mesh: of the Program.
        data_axes: axes that split the batch.
        microbatches: parts each data rank's batch is split into.
        divide: whether a step with a weight divides by it; otherwise its loss and gradients are left sums.

    Returns:
        All functions by name, and the names of the training and the evaluation entry.

    Raises:
        PlanError: the number of microbatches is below 1.
    """
    if not 1 <= microbatches <= MOST_MICROBATCHES:
        raise PlanError(f"data.microbatches: expected 1 to {MOST_MICROBATCHES}, got: {microbatches}")
    train_step = replace(prune(step, lambda result: result.role != "output"), name="stage0_step")
    forward = replace(prune(step, lambda result: result.role in ("loss", "weight", "output")), name="stage0_forward")
    train = _Entry("rank0", train_step, mesh, data_axes, microbatches, divide).train()
    evaluate = _Entry("evaluate0", forward, mesh, data_axes, microbatches, divide).evaluate()
    functions = {function.name: function for function in (train_step, forward, train, evaluate)}
    return functions, train.name, evaluate.name


class _Entry:
    """Builds one entry function."""

    def __init__(
        self, name: str, callee: Function, mesh: Mesh, data_axes: Sequence[str], microbatches: int, divide: bool
    ):
        self.name = name
        self.callee = callee
        self.mesh = mesh
        # An axis of one rank has nothing to reduce.
        self.data_axes = tuple(axis for axis in data_axes if mesh.axis_size(axis) > 1)
        self.microbatches = microbatches
        self.arguments = tuple(self._whole(argument) for argument in callee.arguments)
        self.ops: list[Op] = []
        self._next = len(self.arguments)
        self._totals = StepTotals(callee, self.data_axes, self.emit, divide=divide)

    def _whole(self, argument: Argument) -> Argument:
        """Return the argument with one data rank's whole batch instead of one microbatch."""
        if argument.role != "input" or argument.batch_dim is None:
            return argument
        shape = _scaled(argument.type.shape, argument.batch_dim, self.microbatches)
        full = _scaled(argument.full_shape, argument.batch_dim, self.microbatches)
        return replace(argument, type=TensorType(shape, argument.type.dtype), full_shape=full)

    def emit(self, target: str, args: Sequence[Arg], types: Sequence[TensorType | None], **kwargs: Arg) -> list[int]:
        """Append an op and return the numbers of its results."""
        numbers = list(range(self._next, self._next + len(types)))
        self._next += len(types)
        self.ops.append(Op(target, tuple(args), kwargs, tuple(numbers), tuple(types)))
        return numbers

    def calls(self) -> list[list[int]]:
        """Call the callee once per microbatch, buffers threaded through; return each call's results."""
        buffers = {argument.name: index for index, argument in enumerate(self.arguments) if argument.role == "buffer"}
        rows = batch_size_name(argument for argument in self.arguments if argument.role == "input")
        current = dict(buffers)
        calls = []
        for microbatch in range(self.microbatches):
            operands: list[Arg] = []
            part_rows: Arg = None
            for index, argument in enumerate(self.arguments):
                if argument.role == "buffer":
                    operands.append(Ref(current[argument.name]))
                elif argument.role == "input" and argument.batch_dim is not None and self.microbatches > 1:
                    (part,) = self.emit(
                        "hp.microbatch",
                        (Ref(index),),
                        (self.callee.arguments[index].type,),
                        index=microbatch,
                        count=self.microbatches,
                        dim=argument.batch_dim,
                    )
                    operands.append(Ref(part))
                    if rows and part_rows is None:
                        part_rows = Ref(self._size(part, argument.batch_dim))
                else:
                    operands.append(Ref(index))
            if part_rows is not None:
                for index, argument in enumerate(self.arguments):
                    if argument.role == "size" and argument.name == rows:
                        operands[index] = part_rows
            results = self.emit(
                "call",
                operands,
                [result.type for result in self.callee.results],
                function=self.callee.name,
                microbatch=microbatch,
            )
            for result, value in zip(self.callee.results, results, strict=True):
                if result.role == "buffer":
                    current[result.name] = value
            calls.append(results)
        return calls

    def _size(self, value: int, dim: int) -> int:
        """Return the size of a tensor along `dim`, a value that is an integer."""
        (size,) = self.emit("aten.size.int", (Ref(value), dim), (None,))
        return size

    def train(self) -> Function:
        """Build the training entry: loss and gradients of the whole step (see `StepTotals`), and the new buffers."""
        calls = self.calls()
        totals = self._totals.finish(calls, ("loss", "weight", "grad"))
        results = [replace(result, value=totals.get(i, calls[-1][i])) for i, result in enumerate(self.callee.results)]
        return Function(self.name, self.arguments, tuple(self.ops), tuple(results))

    def evaluate(self) -> Function:
        """Build the evaluation entry: the loss of the whole step, and the extra outputs of all of it.

        An output with a batch dim is concatenated along it, in the order of the global batch; any other is returned as
        it is when there is one, else stacked along a new first dim, data rank major.
        """
        calls = self.calls()
        totals = self._totals.finish(calls, ("loss", "weight"))
        results = [
            replace(result, value=totals[i]) if i in totals else self._gathered(result, [call[i] for call in calls])
            for i, result in enumerate(self.callee.results)
        ]
        return Function(self.name, self.arguments, tuple(self.ops), tuple(results))

    def _gathered(self, result: Result, values: Sequence[int]) -> Result:
        ranks = self.mesh.count(self.data_axes)
        type_ = result.type
        dim = result.batch_dim
        value = values[0]
        if len(values) * ranks > 1 and dim is None:
            dim, type_ = 0, TensorType((len(values), *type_.shape), type_.dtype)
            (value,) = self.emit("aten.stack.default", (tuple(Ref(v) for v in values),), (type_,))
        elif len(values) > 1 and dim is not None:
            type_ = TensorType(_scaled(type_.shape, dim, len(values)), type_.dtype)
            (value,) = self.emit("aten.cat.default", (tuple(Ref(v) for v in values), dim), (type_,))
        if ranks > 1 and dim is not None and None in type_.shape:
            value, type_ = gather_uneven(self.emit, value, type_, dim, self.data_axes)
        elif ranks > 1 and dim is not None:
            type_ = TensorType(_scaled(type_.shape, dim, ranks), type_.dtype)
            (future,) = self.emit("hp.all_gather", (Ref(value),), (None,), axes=self.data_axes, dims=(dim,))
            (value,) = self.emit("hp.wait", (Ref(future),), (type_,))
        return replace(
            result, value=value, type=type_, sharding=((),) * len(type_.shape), full_shape=type_.shape, batch_dim=dim
        )


def _scaled(shape: Sequence[int | None], dim: int, factor: int) -> tuple[int | None, ...]:
    return tuple(size * factor if index == dim and size is not None else size for index, size in enumerate(shape))
