"""Which memory the values of a function live in, what it is for, and from which op to which it is held.

A value lives in a storage of its own or in another's: views share their operand's. A future holds what is sent and what
will arrive. A function is looked at once, whoever calls it: storages it was given are known by the argument's number,
and go back to the caller at the last use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..costs import tensor_bytes
from ..operator_costs import plain_name
from ..runtime.blocks import STARTS
from ..runtime.program import Function, Op, Program, Ref, private_accumulators
from ..view_operators import STRIDED_VIEWS
from .layouts import Layouts
from .segments import lies_packed, value_types
from .sent_messages import kept_until

CATEGORIES = ("state", "inputs", "gathered parameters", "activations", "gradients", "temporaries", "communication")
"""What memory is for, in the order that charts stack it."""

STATE, INPUTS, GATHERED, ACTIVATIONS, GRADIENTS, TEMPORARIES, COMMUNICATION = range(len(CATEGORIES))

_ROLES = {"input": INPUTS, "size": INPUTS, "param": STATE, "buffer": STATE, "constant": STATE}
_VIEWS = STRIDED_VIEWS | {
    "aten.lift_fresh",
    "aten.view.dtype",
    "aten.view_as_complex",
    "aten.view_as_real",
    "hp.microbatch",
}
# A view where the elements are in order, a copy where they are not.
_AT_TIMES = frozenset({"aten.contiguous", "aten.reshape"})
_CASTS = frozenset({"aten._to_copy", "aten.clone", "aten.to.dtype", "prims.convert_element_type"})
# What gradients pass through on their way from the op that makes them to where they are returned.
_GRADIENT_ROAD = (
    _VIEWS
    | _AT_TIMES
    | _CASTS
    | {"aten.add.Tensor", "aten.cat", "aten.constant_pad_nd", "aten.div.Scalar", "aten.index_select", "aten.mul.Scalar"}
    | {"hp.accumulate", "hp.pack", "hp.shard_slice", "hp.unpack", "hp.wait"}
)
# Those too where the other factor is a number.
_SCALINGS = frozenset({"aten.div.Tensor", "aten.mul.Tensor"})


@dataclass(slots=True)
class Storage:
    """Memory of a function's own, or an argument's.

    Attributes:
        size: bytes; 0 for an argument's, which the caller counts.
        category: what it is for, as a position in `CATEGORIES`.
        module: that made it; of an argument its name.
        first: the op that allocates it; -1 for an argument's.
        last: the op after which it is free; the number of ops where it is held to the end.
        argument: its number; -1 for the function's own.
        arrives: for what a collective gives, the op that waits for it; until then it is communication.
        adopted: a callee made it.
    """

    size: int
    category: int
    module: str
    first: int
    last: int
    argument: int = -1
    arrives: int = -1
    adopted: bool = False


@dataclass
class FunctionStorages:
    """What is known of one function's memory.

    Attributes:
        storages: the arguments' first, in order, then its own in the order they are made.
        given: per call, by the op's number, the storage behind each operand; None for what is no tensor.
        results: the storage behind each result; None for what is no tensor.
    """

    storages: list[Storage] = field(default_factory=list)
    given: dict[int, list[int | None]] = field(default_factory=dict)
    results: list[int | None] = field(default_factory=list)


def program_storages(program: Program, names: Iterable[str]) -> dict[str, FunctionStorages]:
    """Return what is known of some functions; `names` has each after those it calls."""
    known: dict[str, FunctionStorages] = {}
    for name in names:
        sent = kept_until(program, program.train.index(name)) if name in program.train else {}
        known[name] = _Analysis(program.functions[name], known, sent).run()
    return known


class _Analysis:
    def __init__(self, function: Function, known: Mapping[str, FunctionStorages], sent: Mapping[int, int]):
        self.function = function
        self.known = known
        self.sent = sent
        self.types = value_types(function)
        self.found = FunctionStorages()
        # Per value the storages that it keeps alive: one, or those of all that a collective sends.
        self.behind: dict[int, tuple[int, ...]] = {}
        self.layouts = Layouts(self.types)
        self.constant: set[int] = set()
        self.of_parameters: set[int] = set()
        self.gradients = gradient_values(function)
        self.private = private_accumulators(function)
        self.starts: dict[int, int] = {}

    def run(self) -> FunctionStorages:
        storages, end = self.found.storages, len(self.function.ops)
        for index, argument in enumerate(self.function.arguments):
            storages.append(Storage(0, _ROLES.get(argument.role, ACTIVATIONS), argument.name, -1, -1, index))
            self.behind[index] = (index,)
            if argument.role == "param":
                self.of_parameters.add(index)
        for number, op in enumerate(self.function.ops):
            self._note_origin(op)
            for value, behind in zip(op.results, self._results(number, op), strict=True):
                self.behind[value] = behind
            # What was sent is not needed once all has arrived.
            until = number - 1 if op.target == "hp.wait" else number
            for value in (*op.operands(), *op.results):
                for storage in self.behind[value]:
                    storages[storage].last = max(storages[storage].last, until)
        for result in self.function.results:
            behind = self.behind[result.value]
            for storage in behind:
                storages[storage].last = end
            self.found.results.append(behind[0] if behind else None)
        return self.found

    def _note_origin(self, op: Op) -> None:
        """Note results that are made of nothing but parameters and constants, or of constants alone."""
        if op.target == "call":
            return
        tensors = [value for value in op.operands() if value in self.types or value in self.starts]
        if all(value in self.constant for value in tensors):
            self.constant.update(op.results)
        elif all(value in self.of_parameters or value in self.constant for value in tensors):
            self.of_parameters.update(op.results)

    def _results(self, number: int, op: Op) -> list[tuple[int, ...]]:
        operands = list(op.operands())
        if op.target == "call":
            return self._called(number, op)
        if op.target == "hp.wait":
            return self._waited(number, op, operands[0])
        if op.target in STARTS:
            sent = tuple(storage for value in operands for storage in self.behind[value])
            for value in op.results:
                self.starts[value] = number
            if op.target == "hp.send":
                # The runtime keeps what it sends until it knows that it has arrived, or the step ends.
                until = self.sent.get(number, len(self.function.ops))
                for storage in sent:
                    self.found.storages[storage].last = max(self.found.storages[storage].last, until)
            return [sent for _ in op.results]
        if op.target == "hp.accumulate":
            sums = op.args[: len(op.args) // 2]
            return [
                self.behind[arg.index]
                if isinstance(arg, Ref) and arg.index in self.private
                else self._fresh(number, op, value)
                for arg, value in zip(sums, op.results, strict=True)
            ]
        if op.target in ("hp.pack", "hp.unpack"):
            return self._packed(number, op, operands)
        tensors = [value for value in operands if value in self.types]
        is_view = bool(tensors) and self._is_view(op, tensors[0])
        self.layouts.note(op, is_view)
        if is_view:
            return [self.behind[tensors[0]] for _ in op.results]
        return [self._fresh(number, op, value) for value in op.results]

    def _packed(self, number: int, op: Op, operands: list[int]) -> list[tuple[int, ...]]:
        if op.target == "hp.pack":
            if lies_packed(op, self.function):
                return [tuple(storage for value in operands for storage in self.behind[value])]
        elif op.kwargs.get("layout") == "flat":
            # One piece of memory for all: the packed tensor's own, where its pieces lie as they should.
            shared = self.behind[operands[0]] if op.kwargs.get("ranks") == 1 else self._fresh(number, op, operands[0])
            return [shared for _ in op.results]
        return [self._fresh(number, op, value) for value in op.results]

    def _is_view(self, op: Op, operand: int) -> bool:
        name = plain_name(op.target)
        if name in _AT_TIMES:
            return self.layouts.in_order(operand)
        if name == "hp.shard_slice":
            # What does not divide is padded, and so copied, on the last rank at least.
            whole, part = self.types[operand], self.types[op.results[0]]
            return tensor_bytes(whole) % max(1, tensor_bytes(part)) == 0
        return name in _VIEWS or name.partition(".")[2].partition(".")[0].endswith("_")

    def _fresh(self, number: int, op: Op, value: int) -> tuple[int, ...]:
        type_ = self.types.get(value)
        if type_ is None:
            return ()
        if value in self.gradients:
            category = GRADIENTS
        elif value in self.of_parameters:
            category = GATHERED
        else:
            category = ACTIVATIONS if op.phase == "forward" else TEMPORARIES
        return self._own(Storage(tensor_bytes(type_), category, op.module, number, number))

    def _own(self, storage: Storage) -> tuple[int]:
        self.found.storages.append(storage)
        return (len(self.found.storages) - 1,)

    def _waited(self, number: int, op: Op, future: int) -> list[tuple[int, ...]]:
        """What arrives has its room from the start on."""
        made = [self._fresh(number, op, value) for value in op.results]
        for (storage,) in made:
            self.found.storages[storage].first = self.starts[future]
            self.found.storages[storage].arrives = number
        return made

    def _called(self, number: int, op: Op) -> list[tuple[int, ...]]:
        callee = self.known[str(op.kwargs["function"])]
        given: list[int | None] = []
        for arg in op.args:
            behind = self.behind[arg.index] if isinstance(arg, Ref) else ()
            given.append(behind[0] if behind else None)
        self.found.given[number] = given
        adopted: dict[int, tuple[int, ...]] = {}
        results: list[tuple[int, ...]] = []
        for position in callee.results:
            if position is None:
                results.append(())
                continue
            made = callee.storages[position]
            passed = given[made.argument] if made.argument >= 0 else None
            if made.argument >= 0:
                results.append(() if passed is None else (passed,))
                continue
            if position not in adopted:
                adopted[position] = self._own(
                    Storage(made.size, made.category, made.module, number, number, adopted=True)
                )
            results.append(adopted[position])
        return results


def gradient_values(function: Function) -> frozenset[int]:
    """Return the values that are gradients of parameters: from the op that makes one to the result that returns it."""
    makers = {value: op for op in function.ops for value in op.results}
    shapes = {value: type_.shape for value, type_ in value_types(function).items()}
    found: set[int] = set()
    pending = [result.value for result in function.results if result.role == "grad"]
    while pending:
        value = pending.pop()
        if value in found or value not in makers:
            continue
        found.add(value)
        op = makers[value]
        name = plain_name(op.target)
        scaled = name in _SCALINGS and any(shapes.get(operand) == () for operand in op.operands())
        if scaled or name in _GRADIENT_ROAD or op.target in STARTS:
            pending.extend(operand for operand in op.operands() if shapes.get(operand) != ())
    return frozenset(found)
