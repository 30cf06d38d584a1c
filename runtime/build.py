"""From a Program to Python callables: generated code that is run as it is, or compiled by Inductor."""

from __future__ import annotations

import contextlib
import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ..errors import RuntimeFault, nearest
from . import torch_compat
from .aliasing import program_aliases
from .bindings import callable_of
from .blocks import OpBlock, op_blocks
from .coalescing import coalesce_program, position_before, replace_functions, unpack_arrivals
from .collectives import RankOps
from .graph import argument_types, build_graph, draw_inputs
from .operators import torch_dtype
from .profile import Recorder
from .program import COLLECTIVES, Function, Op, Program
from .python_text import reachable_functions, write_module
from .specialize import has_dynamic_sizes, specialize

BACKENDS = ("eager", "inductor")

# What torch raises for operands that an operator does not take, and what a custom operator's Python code may raise.
OPERATOR_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError, AssertionError, AttributeError)

Callee = Callable[[list[Any]], Sequence[Any]]
"""A function of a Program: takes a list of arguments, which it empties, and returns its results."""


class Executable:
    """The functions of a Program that one rank runs.

    Args:
        program: a valid Program.
        entries: names of the functions to enter.
        ops: of the rank.
        backend: "eager" or "inductor". Inductor compiles what the entries call (and an entry that calls nothing) at
            the first call; a failure is an error, nothing falls back.
        recorder: is told when each block of ops begins; with "eager" only.

    Raises:
        RuntimeFault: the backend is unknown, or an operator is.
    """

    def __init__(
        self,
        program: Program,
        entries: Iterable[str],
        ops: RankOps,
        backend: str = "eager",
        recorder: Recorder | None = None,
    ):
        if backend not in BACKENDS:
            raise RuntimeFault(
                f"unknown backend '{backend}', expected 'eager' or 'inductor'{nearest(backend, BACKENDS)}"
            )
        if recorder is not None and backend != "eager":
            raise RuntimeFault(f"only the eager backend's blocks of ops can be recorded, got: '{backend}'")
        names = reachable_functions(program, entries)
        self._file = f"<hpir {program.digest[:12]} rank {ops.ranks.rank}>"
        self._program = program
        program = coalesce_program(program, names)
        if recorder is None and backend == "eager":  # a recorder tells waits from what follows them
            program = replace_functions(program, names, unpack_arrivals)
        self._coalesced = program
        self.aliases = program_aliases(program, names)
        # Inductor's own calls are as cheap without, and it compiles within the first.
        self._guard = contextlib.nullcontext if backend == "inductor" else torch_compat.below_autograd
        compiled = [name for name in names if backend == "inductor" and not _calls(program.functions[name])]
        written = [name for name in names if name not in compiled]
        marks = _marks(program, written, recorder)
        self._module = write_module(program, written, self.aliases, external=compiled, terse=True, before=marks)
        linecache.cache[self._file] = (len(self._module.text), None, self._module.text.splitlines(True), self._file)
        namespace: dict[str, Any] = {"hp": ops}
        if recorder is not None:
            namespace["mark"] = recorder.mark
        namespace.update((name, callable_of(target)) for name, target in self._module.operators.items())
        for name in compiled:
            namespace[self._module.functions[name]] = _Compiled(program, name, ops, self.aliases[name].owned)
        exec(compile(self._module.text, self._file, "exec"), namespace)
        self._functions: dict[str, Callee] = {
            name: namespace[python_name] for name, python_name in self._module.functions.items()
        }

    @property
    def text(self) -> str:
        """The generated code."""
        return self._module.text

    def run(self, name: str, arguments: list[Any]) -> Sequence[Any]:
        """Run a function.

        Args:
            name: of the function.
            arguments: its arguments; the list is emptied.
        """
        with self._guard():
            return self._functions[name](arguments)

    @property
    def functions(self) -> Mapping[str, Function]:
        """The functions as they are run, by name: what `stack` has the ops of."""
        return self._coalesced.functions

    def stack(self, traceback: TracebackType | None) -> list[tuple[str, int]]:
        """Return the functions entered when an error was raised, outermost first, and the op that each was at."""
        stack = []
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == self._file:
                at = self._module.lines.get(traceback.tb_lineno)
                if at is not None:
                    stack.append(at)
            traceback = traceback.tb_next
        return stack

    def op_at(self, stack: Sequence[tuple[str, int]]) -> Op | None:
        """Return the op at which the innermost function was."""
        return self._coalesced.functions[stack[-1][0]].ops[stack[-1][1]] if stack else None

    def place(self, stack: Sequence[tuple[str, int]]) -> str:
        """Return where a stack ends, for a message: function, microbatch and op; empty where that is not known."""
        op = self.op_at(stack)
        if op is None:
            return ""
        microbatch = None
        for name, number in stack:
            call = self._coalesced.functions[name].ops[number]
            microbatch = call.kwargs.get("microbatch") if call.target == "call" else microbatch
        function = self._program.functions[stack[-1][0]]
        which = f", microbatch {microbatch}" if microbatch is not None and self._program.microbatches > 1 else ""
        return f"{function.name}{which}: {_described(function, position_before(function, op))}"


def _described(function: Function, number: int) -> str:
    """Return where an op stands and what it is: a wait, or what reads one, is for a collective, of a bucket perhaps."""
    op = function.ops[number]
    makers = {value: each for each in function.ops[:number] for value in each.results}
    start = op
    while start.target in ("hp.wait", "hp.unpack"):
        made = makers.get(next(iter(start.operands()), -1))
        if made is None:
            break
        start = made
    what = f"op {number} '{op.target}'"
    if start is not op and start.target in COLLECTIVES:
        what += f" of '{start.target}' over {', '.join(map(str, _axes(start)))}"
    if start is not op and start.target == "hp.recv":
        what += " of 'hp.recv'"
    if start.target in ("hp.send", "hp.recv"):
        way = "to" if start.target == "hp.send" else "from"
        what += f" {way} position {start.kwargs['peer']} of '{start.kwargs['axis']}'"
        if start.kwargs.get("label"):
            what += f", '{start.kwargs['label']}'"
    if start.bucket:
        what += f", bucket '{start.bucket}' in the {start.phase}"
    where = " in ".join(filter(None, (op.location, op.module and f"'{op.module}'")))
    return what + (f" ({where})" if where else "")


def _axes(op: Op) -> tuple[object, ...]:
    axes = op.kwargs.get("axes")
    return axes if isinstance(axes, tuple) else ()


def _marks(program: Program, names: Iterable[str], recorder: Recorder | None) -> dict[tuple[str, int], str]:
    """Return statements that tell a recorder when each block begins.

    A call is recorded as what is called; of a stage's function it is recorded too that it begins, and by which call.
    """
    if recorder is None:
        return {}
    return {
        (name, block.first): f"mark({recorder.add(name, block)})"
        for name in names
        for block in op_blocks(program.functions[name])
        if block.kind != "call" or _callee(program, name, block).stage is not None
    }


def _callee(program: Program, name: str, call: OpBlock) -> Function:
    return program.functions[str(program.functions[name].ops[call.first].kwargs["function"])]


def _calls(function: Function) -> bool:
    return any(op.target == "call" for op in function.ops)


class _Compiled:
    """One function, compiled by Inductor when it is first called; one of dynamic sizes once for each set of sizes."""

    def __init__(self, program: Program, name: str, ops: RankOps, owned: Sequence[bool]):
        self._program = program
        self._owned = owned
        self._function = program.functions[name]
        self._ops = ops
        self._dynamic = has_dynamic_sizes(self._function)
        self._made: dict[Any, tuple[Function, Callee]] = {}
        if not self._dynamic:
            # Refused here already, not at the first call.
            argument_types(self._function)

    def _callee(self, arguments: list[Any]) -> tuple[Function, Callee]:
        """Return the compiled function for these arguments; sizes are taken out of the list."""
        key: Any = None
        if self._dynamic:
            key = tuple(value if isinstance(value, int) else tuple(value.shape) for value in arguments)
        made = self._made.get(key)
        if made is None:
            function = specialize(self._function, key) if self._dynamic else self._function
            made = self._made[key] = function, self._compile(function)
        if self._dynamic:
            arguments[:] = [value for value in arguments if not isinstance(value, int)]
        return made

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        function, compiled = self._callee(arguments)
        arguments += draw_inputs(function, self._ops)
        # The compiled code reads memory as laid out row by row.
        for position, argument in enumerate(arguments):
            if not argument.is_contiguous():
                arguments[position] = argument.contiguous()
        memory = {_memory(argument) for argument in arguments}
        results = list(compiled(arguments))
        # It may give one tensor for two equal results, or an argument for a result that equals it.
        for position, (result, owned) in enumerate(zip(results, self._owned, strict=True)):
            if owned and _memory(result) in memory:
                results[position] = result.clone()
            memory.add(_memory(result))
        return results

    def _compile(self, function: Function) -> Callee:
        program = replace(self._program, functions={**self._program.functions, function.name: function})
        graph_module = build_graph(program, function.name, self._ops)
        with FakeTensorMode():
            inputs: list[Tensor] = [
                torch.empty(
                    [size for size in type_.shape if size is not None],
                    dtype=torch_dtype(type_.dtype),
                    device=self._ops.device,
                )
                for type_ in argument_types(function)
            ]
        try:
            return torch_compat.compile_graph(graph_module, inputs)
        except OPERATOR_ERRORS as error:
            raise RuntimeFault(f"{self._function.name}: inductor cannot compile it: {error}") from None


def _memory(tensor: Tensor) -> int:
    return tensor.data_ptr()
