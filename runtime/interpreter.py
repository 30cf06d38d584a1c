"""Runs one simulated rank's functions, op by op, pausing where it must wait for other ranks.

A function is compiled once into a flat list of steps, shared by all ranks; what is a rank's own (its position, its
random streams) is given to each step. Values are dropped at their last use.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..errors import PlanError, RuntimeFault
from ..mesh import Mesh
from .exchange import Exchange, Future, Site, op_place
from .operators import describe, literal_tensor, materialize, resolve, tensor_type
from .program import HP_TARGETS, Arg, Op, Program, Ref, last_uses, private_accumulators
from .random import RandomContext
from .simulated_ops import compile_hp_op

Observer: TypeAlias = Callable[[int, str, Op, int], None]
"""Called after each op with rank, function name, op and the bytes of all distinct storages the rank then holds."""

# What torch raises for operands that an operator does not take, and what a custom operator's Python code may raise.
_OPERATOR_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError, AssertionError, AttributeError)

Environment: TypeAlias = "list[Any]"
Evaluate: TypeAlias = "Callable[[Environment, RankInterpreter, Site | None], Any]"


@dataclass(slots=True)
class Step:
    """One op, ready to run.

    Attributes:
        number: the op's index in its function.
        op: the op.
        arguments: gives the run-time values of the op's positional arguments.
        results: slots of the results.
        frees: slots that nothing needs after the op.
        evaluate: gives the op's value; None for a wait or a call.
        single: that value is the one result, not a sequence of results.
        communicates: `evaluate` needs to know where it is.
        callee: the function that a call enters.
        microbatch: what the callee's random streams belong to; None for the caller's.
    """

    number: int
    op: Op
    arguments: Callable[[Environment], list[Any]]
    results: tuple[int, ...] = ()
    frees: tuple[int, ...] = ()
    evaluate: Evaluate | None = None
    single: bool = False
    communicates: bool = False
    callee: CompiledFunction | None = None
    microbatch: int | None = None


@dataclass(slots=True)
class CompiledFunction:
    """A function as steps over `slots` numbered places; arguments take the first ones."""

    name: str
    slots: int = 0
    unused: tuple[int, ...] = ()
    steps: list[Step] = field(default_factory=list)
    results: tuple[int, ...] = ()


class CompiledProgram:
    """The functions of a Program, each compiled when it is first asked for.

    Attributes:
        mutates: an operator changes tensors in place, so ranks must not share any.
    """

    def __init__(self, program: Program, device: torch.device) -> None:
        self.program = program
        self.device = device
        self.mutates = False
        self._functions: dict[str, CompiledFunction] = {}
        self._open: list[str] = []

    def function(self, name: str) -> CompiledFunction:
        """Return a function, compiled.

        Raises:
            RuntimeFault: it or one that it calls is malformed; the text names function and op.
        """
        found = self._functions.get(name)
        if found is None:
            if name in self._open:
                raise RuntimeFault(f"functions call each other in a circle: {' -> '.join([*self._open, name])}")
            self._open.append(name)
            found = self._compile(name)
            self._open.pop()
            self._functions[name] = found
        return found

    def _compile(self, name: str) -> CompiledFunction:
        function = self.program.functions[name]
        slots = {index: index for index in range(len(function.arguments))}
        frees = last_uses(function)
        used = {value for op in function.ops for value in op.operands()} | {item.value for item in function.results}
        private = private_accumulators(function)
        compiled = CompiledFunction(name, unused=tuple(index for index in slots if index not in used))
        for number, (op, freed) in enumerate(zip(function.ops, frees, strict=True)):
            try:
                # Operands are looked up before the results have slots: a use before the definition is an error.
                step = self._compile_op(number, op, slots, private)
                for value in op.results:
                    slots[value] = len(slots)
                step.results = tuple(slots[value] for value in op.results)
                step.frees = tuple(slots[value] for value in freed)
            except KeyError as error:
                raise RuntimeFault(
                    f"{op_place(name, number, op)}: value {error} is used before it is defined"
                ) from None
            except (PlanError, RuntimeFault) as error:
                raise RuntimeFault(f"{op_place(name, number, op)}: {error}") from None
            if op.target == "call":
                # Outside the above: what is wrong in the callee is said of the callee.
                step.callee = self.function(str(op.kwargs["function"]))
            compiled.steps.append(step)
        compiled.slots = len(slots)
        compiled.results = tuple(slots[result.value] for result in function.results)
        return compiled

    def _compile_op(self, number: int, op: Op, slots: dict[int, int], private: frozenset[int]) -> Step:
        arguments = self._values(op.args, slots)
        step = Step(number, op, arguments)
        if op.target == "call":
            callee, microbatch = str(op.kwargs.get("function")), op.kwargs.get("microbatch")
            if callee not in self.program.functions:
                raise RuntimeFault(f"no function '{callee}'")
            if microbatch is not None and not isinstance(microbatch, int):
                raise RuntimeFault(f"expected microbatch to be an integer, got: {microbatch!r}")
            if len(op.args) != len(self.program.functions[callee].arguments):
                raise RuntimeFault(f"{len(op.args)} operands do not match '{callee}'")
            step.microbatch = microbatch
        elif op.target == "hp.wait":
            if len(op.args) != 1 or not isinstance(op.args[0], Ref):
                raise RuntimeFault("expected one future to wait for")
        elif op.target == "literal":
            tensor = literal_tensor(op, self.device)
            step.evaluate = lambda env, rank, site: tensor.clone() if self.mutates else tensor
            step.single = True
        elif op.target in HP_TARGETS:
            overwrite = tuple(isinstance(arg, Ref) and arg.index in private for arg in op.args)
            hp_op = compile_hp_op(op, self.program.mesh, self.device, overwrite)
            run = hp_op.run
            step.evaluate = lambda env, rank, site: run(arguments(env), rank, site)
            step.single, step.communicates = hp_op.single, hp_op.communicates
        else:
            self._compile_operator(step, slots)
        if step.single and len(op.results) > 1:
            raise RuntimeFault(f"gives 1 result, expected {len(op.results)}")
        return step

    def _compile_operator(self, step: Step, slots: dict[int, int]) -> None:
        op, arguments = step.op, step.arguments
        operator, returns, several, mutates = _operator(op.target)
        self.mutates = self.mutates or mutates
        # A list of tensors is one value where the Program says that the result is no tensor.
        step.single = not several or (returns == 1 and op.types == (None,))
        if any(_mentions(arg) for arg in op.kwargs.values()):
            names, values = tuple(op.kwargs), self._values(tuple(op.kwargs.values()), slots)
            step.evaluate = lambda env, rank, site: operator(
                *arguments(env), **dict(zip(names, values(env), strict=True))
            )
        elif op.kwargs:
            constants = {name: self._constant(arg) for name, arg in op.kwargs.items()}
            step.evaluate = lambda env, rank, site: operator(*arguments(env), **constants)
        else:
            step.evaluate = lambda env, rank, site: operator(*arguments(env))

    def _values(self, args: tuple[Arg, ...], slots: dict[int, int]) -> Callable[[Environment], list[Any]]:
        """Return a function from the environment to the run-time values of `args`."""
        if all(isinstance(arg, Ref) for arg in args):
            order = [slots[arg.index] for arg in args if isinstance(arg, Ref)]
            return lambda env: [env[slot] for slot in order]
        template = [None if _mentions(arg) else self._constant(arg) for arg in args]
        plain = [(place, slots[arg.index]) for place, arg in enumerate(args) if isinstance(arg, Ref)]
        nested = [
            (place, self._values(arg, slots))
            for place, arg in enumerate(args)
            if isinstance(arg, tuple) and _mentions(arg)
        ]

        def fill(env: Environment) -> list[Any]:
            values = template.copy()
            for place, slot in plain:
                values[place] = env[slot]
            for place, inner in nested:
                values[place] = inner(env)
            return values

        return fill

    def _constant(self, arg: Arg) -> Any:
        return materialize(arg, _no_value, self.device)


@cache
def _operator(target: str) -> tuple[Callable[..., Any], int, bool, bool]:
    """Return an operator, its number of returns, whether it gives a sequence, and whether it changes an operand."""
    operator = resolve(target)
    returns = operator._schema.returns
    several = len(returns) > 1 or [str(item.type) for item in returns] == ["List[Tensor]"]
    return operator, len(returns), several, bool(operator._schema.is_mutable)


def _mentions(arg: Arg) -> bool:
    """Return whether an argument holds a use of a value."""
    return isinstance(arg, Ref) or (isinstance(arg, tuple) and any(map(_mentions, arg)))


def _no_value(index: int) -> Any:
    raise RuntimeFault(f"value {index} is not a constant")


class RankInterpreter:
    """One rank: `run` is a generator that yields the future it is blocked on until the function has returned.

    Args:
        rank: its number.
        program: what it runs.
        exchange: where it meets the other ranks.
        random: what its random streams depend on.
        observe: called after each op.
        check_types: compare every result with the type that the Program states.
    """

    def __init__(
        self,
        rank: int,
        program: CompiledProgram,
        exchange: Exchange,
        random: RandomContext,
        *,
        observe: Observer | None = None,
        check_types: bool = False,
    ) -> None:
        self.rank = rank
        self.exchange = exchange
        self.random = random
        self.device = program.device
        self.mesh: Mesh = program.program.mesh
        self.blocked: tuple[Site, Future] | None = None
        self._observe = observe
        self._check_types = check_types
        self._frames: list[Environment] = []

    def run(self, function: CompiledFunction, arguments: list[Any]) -> Generator[Future, None, list[Any]]:
        """Run a function. `arguments` is emptied, so that a value can go at its last use.

        Raises:
            RuntimeFault: an op fails; the text names rank, function, op, source line and operand types.
        """
        env: Environment = arguments + [None] * (function.slots - len(arguments))
        arguments.clear()
        for slot in function.unused:
            env[slot] = None
        self._frames.append(env)
        watched = self._observe is not None or self._check_types
        for step in function.steps:
            evaluate = step.evaluate
            if evaluate is not None:
                site = Site(self.rank, function.name, step.number, step.op) if step.communicates else None
                try:
                    out = evaluate(env, self, site)
                except _OPERATOR_ERRORS as error:
                    operands = ", ".join(map(describe, step.arguments(env)))
                    raise self._fault(function, step, f"{error}; operands: {operands}") from None
                except RuntimeFault as fault:
                    raise self._fault(function, step, str(fault)) from None
            elif step.callee is not None:
                passed = step.arguments(env)
                for slot in step.frees:
                    env[slot] = None  # The callee is the last to use it, and frees it in time.
                outer = self.random
                if step.microbatch is not None:
                    self.random = outer.with_microbatch(step.microbatch)
                out = yield from self.run(step.callee, passed)
                self.random = outer
            else:
                out = yield from self._wait(function, step, step.arguments(env)[0])
            if step.single:
                for slot in step.results:
                    env[slot] = out
            else:
                self._unpack(function, step, env, out)
            out = None
            if watched:
                self._watch(function, step, env)
            for slot in step.frees:
                env[slot] = None
        self._frames.pop()
        return [env[slot] for slot in function.results]

    def _unpack(self, function: CompiledFunction, step: Step, env: Environment, values: Sequence[Any] | None) -> None:
        values = () if values is None else values
        if len(values) != len(step.results):
            raise self._fault(function, step, f"gives {len(values)} results, expected {len(step.results)}")
        for slot, value in zip(step.results, values, strict=True):
            env[slot] = value

    def _wait(self, function: CompiledFunction, step: Step, future: Any) -> Generator[Future, None, Sequence[Tensor]]:
        if not isinstance(future, Future):
            raise self._fault(function, step, f"expected a future, got: {describe(future)}")
        while future.tensors is None:
            self.blocked = Site(self.rank, function.name, step.number, step.op), future
            future.waiter = self.rank
            yield future
        self.blocked = None
        future.inputs = ()
        return future.tensors

    def _fault(self, function: CompiledFunction, step: Step, text: str) -> RuntimeFault:
        return RuntimeFault(f"{Site(self.rank, function.name, step.number, step.op)}: {text}")

    def _watch(self, function: CompiledFunction, step: Step, env: Environment) -> None:
        if self._check_types:
            for slot, type_ in zip(step.results, step.op.types, strict=True):
                value = env[slot]
                if type_ is None or not isinstance(value, Tensor):
                    continue
                actual = tensor_type(value)
                sizes = zip(actual.shape, type_.shape, strict=False)
                if (
                    actual.dtype != type_.dtype
                    or len(actual.shape) != len(type_.shape)
                    or any(expected not in (None, size) for size, expected in sizes)
                ):
                    raise self._fault(function, step, f"gives {actual}, expected {type_}")
        if self._observe is not None:
            self._observe(self.rank, function.name, step.op, self.live_bytes())

    def live_bytes(self) -> int:
        """Return the bytes of all distinct storages that the rank holds, buffers of communication on its way too."""
        storages: dict[int, int] = {}
        reserved = 0
        pending = [value for env in self._frames for value in env if value is not None]
        futures: set[int] = set()
        while pending:
            value = pending.pop()
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
            elif isinstance(value, (list, tuple)):
                pending.extend(value)
            elif isinstance(value, Future) and id(value) not in futures:
                futures.add(id(value))
                reserved += value.reserved_bytes
                pending.extend(value.inputs)
                pending.extend(value.tensors or ())
        return sum(storages.values()) + reserved
