"""A Program of dynamic sizes as one of fixed sizes: those of the example that its step was captured with."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..mesh import padded_shard_size
from ..runtime.build import OPERATOR_ERRORS
from ..runtime.operators import materialize, resolve, tensor_type, torch_dtype
from ..runtime.program import COLLECTIVES, Arg, Argument, Function, Op, Program, TensorType
from ..runtime.python_text import reachable_functions
from ..runtime.sizes import batch_size_name

_META = torch.device("meta")


def with_example_sizes(program: Program) -> Program:
    """Return a Program in which no size of its training functions is unknown, for whoever wants to know how large
    things are; it cannot run. Microbatches are as large as the one that was captured.

    A size that cannot be found out, because it depends on values, counts as 1.
    """
    names = reachable_functions(program, program.train)
    if not any(_is_dynamic(program.functions[name]) for name in names):
        return program
    sized = _Sized(program)
    running = []
    for position, name in enumerate(program.train):
        function = program.functions[name]
        rows = batch_size_name(argument for argument in function.arguments if argument.role == "input")
        sizes = {
            argument.name: (argument.example or 1) * (program.microbatches if argument.name == rows else 1)
            for argument in function.arguments
            if argument.role == "size"
        }
        running.append(sized.steps(position, name, [_example(argument, sizes) for argument in function.arguments]))
    sized.finish(running)
    return replace(program, functions={**program.functions, **sized.functions})


def _is_dynamic(function: Function) -> bool:
    types = [argument.type for argument in function.arguments]
    types += [type_ for op in function.ops for type_ in op.types if type_ is not None]
    return any(None in type_.shape for type_ in types)


def _example(argument: Argument, sizes: dict[str, int]) -> Any:
    if argument.role == "size":
        return sizes[argument.name]
    names = argument.dim_names or ("",) * len(argument.type.shape)
    shape = [
        sizes.get(name, 1) if size is None else size for size, name in zip(argument.type.shape, names, strict=True)
    ]
    return _empty(shape, argument.type.dtype)


def _empty(shape: Sequence[int | None], dtype: str) -> Tensor:
    return torch.empty([1 if size is None else size for size in shape], dtype=torch_dtype(dtype), device=_META)


@dataclass
class _Message:
    """A message that is received: the `number`-th of a channel, from a position to another; `at` is its receive."""

    channel: tuple[int, int]
    number: int
    at: int


def _received(wait: Op, sent: Sequence[Tensor]) -> list[Tensor]:
    """Return what a wait gives of what was sent."""
    types = [type_ for type_ in wait.types if type_ is not None]
    if len(sent) == len(types):
        return [_empty(tensor.shape, type_.dtype) for tensor, type_ in zip(sent, types, strict=True)]
    return [_empty(type_.shape, type_.dtype) for type_ in types]


class _Sized:
    """Runs functions on tensors without data. A function is run as it is first called."""

    def __init__(self, program: Program):
        self.program = program
        self.functions: dict[str, Function] = {}
        self._results: dict[str, list[Any]] = {}
        self._sent: dict[tuple[int, int], list[list[Tensor]]] = {}
        self._received: dict[tuple[int, int], int] = {}
        self._steps = 0
        self._stuck = False

    def finish(self, running: list[Generator[None, None, list[Any]]]) -> None:
        """Run what all positions of a pipeline run; what waits for a message goes on when it was sent."""
        while running:
            before = self._steps
            running = [each for each in running if next(each, self) is None]
            # Where they wait for each other, sizes that would arrive count as 1: others say what is wrong.
            self._stuck = self._steps == before

    def steps(self, position: int, name: str, arguments: list[Any]) -> Generator[None, None, list[Any]]:
        """Run a function, note it with all its types known, and return its results; yields where it must wait."""
        if name in self._results:
            return self._results[name]
        function = self.program.functions[name]
        values: dict[int, Any] = dict(enumerate(arguments))
        ops: list[Op] = []
        for number, op in enumerate(function.ops):
            results: Sequence[Any]
            if op.target == "call":
                given = [materialize(arg, values.get, _META) for arg in op.args]
                results = yield from self.steps(position, str(op.kwargs["function"]), given)
            elif op.target in ("hp.send", "hp.recv"):
                results = self._message(position, number, op, values)
            elif op.target == "hp.wait" and isinstance(message := values[next(iter(op.operands()))], _Message):
                sent = self._sent.setdefault(message.channel, [])
                while not self._stuck and message.number >= len(sent):
                    yield
                results = _received(op, sent[message.number] if message.number < len(sent) else ())
                arrived: Arg = tuple((tensor_type(each).dtype, tensor_type(each).shape) for each in results)
                ops[message.at] = replace(ops[message.at], kwargs={**ops[message.at].kwargs, "types": arrived})
            else:
                results = self._op(op, values)
            self._steps += 1
            values.update(zip(op.results, results, strict=True))
            types = tuple(
                tensor_type(result) if isinstance(result, Tensor) else type_
                for type_, result in zip(op.types, results, strict=True)
            )
            ops.append(replace(op, types=types))
        known = [
            replace(argument, type=tensor_type(value)) if isinstance(value, Tensor) else argument
            for argument, value in zip(function.arguments, arguments, strict=True)
        ]
        returned = [values[result.value] for result in function.results]
        results = [replace(item, type=tensor_type(v)) for item, v in zip(function.results, returned, strict=True)]
        self.functions[name] = replace(function, arguments=tuple(known), ops=tuple(ops), results=tuple(results))
        self._results[name] = returned
        return returned

    def _message(self, position: int, number: int, op: Op, values: dict[int, Any]) -> list[Any]:
        peer = op.kwargs["peer"]
        assert isinstance(peer, int)
        if op.target == "hp.send":
            self._sent.setdefault((position, peer), []).append([values[value] for value in op.operands()])
            return []
        channel = peer, position
        message = _Message(channel, self._received.get(channel, 0), number)
        self._received[channel] = message.number + 1
        return [message]

    def _op(self, op: Op, values: dict[int, Any]) -> Sequence[Any]:
        if op.target in COLLECTIVES:
            return [(op, [values[value] for value in op.operands()])]
        if all(type_ is not None and None not in type_.shape for type_ in op.types) and op.types:
            return [_empty(type_.shape, type_.dtype) for type_ in op.types if type_ is not None]
        if op.target == "hp.wait":
            return self._arrived(*values[next(iter(op.operands()))])
        arguments = [materialize(arg, values.get, _META) for arg in op.args]
        if op.target == "literal" or (op.target.startswith("hp.") and op.types == (None,)):
            return [None for _ in op.results]
        if op.target.startswith("hp."):
            return self._hp(op, arguments)
        options = {name: materialize(arg, values.get, _META) for name, arg in op.kwargs.items()}
        try:
            made = resolve(op.target)(*arguments, **options)
        except OPERATOR_ERRORS:
            return [None if type_ is None else _empty(type_.shape, type_.dtype) for type_ in op.types]
        return made if isinstance(made, (list, tuple)) and len(op.results) == len(made) else [made]

    def _arrived(self, start: Op, sent: list[Tensor]) -> list[Tensor]:
        axes, dims = start.kwargs["axes"], start.kwargs.get("dims")
        assert isinstance(axes, tuple)
        counts = self.program.mesh.sizes([str(axis) for axis in axes])
        arrived = []
        for number, tensor in enumerate(sent):
            shape = list(tensor.shape)
            dim = dims[number] if isinstance(dims, tuple) else None
            if isinstance(dim, int) and start.target == "hp.all_gather":
                shape[dim] *= self.program.mesh.count([str(axis) for axis in axes])
            elif isinstance(dim, int):
                shape[dim] = padded_shard_size(shape[dim], counts)
            arrived.append(torch.empty(shape, dtype=tensor.dtype, device=_META))
        return arrived

    def _hp(self, op: Op, arguments: list[Any]) -> list[Any]:
        types = [type_ or TensorType((), "float32") for type_ in op.types]
        if op.target in ("hp.uniform", "hp.normal"):
            return [_empty(arguments[0], types[0].dtype)]
        if op.target == "hp.microbatch":
            index, count, dim = op.kwargs["index"], op.kwargs["count"], op.kwargs["dim"]
            assert isinstance(index, int) and isinstance(count, int) and isinstance(dim, int)
            shape = list(arguments[0].shape)
            shape[dim] = shape[dim] // count + (index < shape[dim] % count)
            return [_empty(shape, types[0].dtype)]
        # Sums are as large as what is added; the rest has sizes that the plan fixed.
        given = arguments if op.target == "hp.accumulate" else []
        return [
            _empty(given[number].shape if number < len(given) else type_.shape, type_.dtype)
            for number, type_ in enumerate(types)
        ]
