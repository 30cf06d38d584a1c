"""Programs as Python source: readable for people, and in a terser form what the eager backend runs.

The text is executable given one global, ``hp``: the `RankOps` of a rank. Nothing from a Program is copied into it
unchecked: names become identifiers, comments one line, data literals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import RuntimeFault
from .aliasing import Aliases, program_aliases
from .operators import recv_types, resolve
from .program import (
    COLLECTIVES,
    HP_ATTRIBUTES,
    UNPACK_ARRIVAL,
    Arg,
    Argument,
    Function,
    Named,
    Op,
    Program,
    Ref,
    Result,
    last_uses,
)
from .source_text import WIDTH, Names, filled, identifier, is_plain, one_line, tuple_text

_RANDOM = ("hp.uniform", "hp.normal")
_ARRIVED = {
    "hp.all_gather": "gathered",
    "hp.reduce_scatter": "scattered",
    "hp.all_reduce": "reduced",
    "hp.all_to_all": "exchanged",
    "hp.broadcast": "broadcasted",
    "hp.recv": "received",
}
_RESERVED = frozenset({"torch", "hp", "device", "inf", "nan", "complex", "arguments", "box"})


@dataclass
class ModuleText:
    """Source of some functions of a Program.

    Attributes:
        text: the source.
        lines: line number, counted from 1, to the function there and the position of the op among its ops.
        operators: global names the text uses for operators, to the operators' targets; empty where it spells them out.
        functions: Python names of the functions by their names in the Program.
    """

    text: str = ""
    lines: dict[int, tuple[str, int]] = field(default_factory=dict)
    operators: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)


def to_python(program: Program, rank: int = 0) -> str:
    """Return the torch code that a rank runs, for people: one function per function of the Program.

    It runs as it stands where ``hp`` is the rank's `hpir.runtime.collectives.RankOps`.

    Args:
        program: a valid Program.
        rank: which rank's.

    Raises:
        RuntimeFault: it calls an operator that this torch does not have.
    """
    entries = list(dict.fromkeys(program.entry(rank, kind).name for kind in ("train", "evaluate")))
    names = reachable_functions(program, entries)
    title = [
        f"Rank {rank} of mesh {program.mesh}, Program {program.digest[:12]}.",
        f"Enters {' or '.join(entries)}. `hp` is this rank's hpir.runtime.collectives.RankOps.",
    ]
    comment = "".join(f"# {one_line(line)}\n" for line in title)
    return comment + write_module(program, names, program_aliases(program, names)).text


def reachable_functions(program: Program, entries: Iterable[str]) -> list[str]:
    """Return the names of `entries` and all functions they call, each after those it calls.

    Raises:
        RuntimeFault: functions call each other in a circle.
    """
    order: list[str] = []
    open_: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        if name in open_:
            raise RuntimeFault(f"functions call each other in a circle: {' -> '.join([*open_, name])}")
        open_.append(name)
        for callee in dict.fromkeys(
            str(op.kwargs["function"]) for op in program.functions[name].ops if op.target == "call"
        ):
            visit(callee)
        open_.pop()
        order.append(name)

    for entry in entries:
        visit(entry)
    return order


def write_module(
    program: Program,
    names: Sequence[str],
    aliases: Mapping[str, Aliases],
    *,
    external: Iterable[str] = (),
    terse: bool = False,
    before: Mapping[tuple[str, int], str] | None = None,
) -> ModuleText:
    """Write some functions of a Program.

    Args:
        program: a valid Program.
        names: the functions to write, each after those it calls.
        aliases: what `program_aliases` says of it.
        external: functions that are called but not written: globals the caller provides.
        terse: without comments; operators are globals (`ModuleText.operators`); a function takes one list of
            arguments, which it empties, so that values die at their last use across calls too.
        before: by function and position of an op, a statement to stand before it; it may name nothing but ``mark``.
    """
    module = ModuleText()
    functions = Names(_RESERVED)
    for name in (*names, *external):
        module.functions[name] = functions.fresh(name)
    draws = {name for name in (*names, *external) if any(op.target in _RANDOM for op in program.functions[name].ops)}
    lines: list[str] = ["import torch", ""]
    namespaces = {op.target.split(".")[0] for name in names for op in program.functions[name].ops if _is_operator(op)}
    if not terse:
        lines += [f"{namespace} = torch.ops.{identifier(namespace)}" for namespace in sorted(namespaces)]
    lines += ["device = hp.device", 'inf, nan = float("inf"), float("nan")', ""]
    reserved = _RESERVED | namespaces | set(module.functions.values()) | ({"mark"} if before else set())
    for name in names:
        writer = _FunctionWriter(
            program, program.functions[name], aliases[name], module, reserved, draws, terse, before
        )
        start = len(lines)
        body = writer.write()
        lines += body
        for offset, number in writer.numbers.items():
            module.lines[start + offset + 1] = (name, number)
    module.text = "\n".join(lines) + "\n"
    return module


def _is_operator(op: Op) -> bool:
    return not op.target.startswith("hp.") and op.target not in ("call", "literal")


def _types_comment(op: Op) -> str:
    types = [str(type_) for type_ in op.types if type_ is not None]
    if len(", ".join(types)) > WIDTH // 2:
        types = [types[0], f"... ({len(types)} tensors)"]
    return one_line(f"# {', '.join(types)}") if types else ""


def _comment(info: Argument | Result) -> str:
    return one_line(f"{info.role} {', '.join(info.names)}: {info.type}")


class _FunctionWriter:
    """Writes one function; `numbers` maps offsets of its lines to positions of its ops."""

    def __init__(
        self,
        program: Program,
        function: Function,
        aliases: Aliases,
        module: ModuleText,
        reserved: Iterable[str],
        draws: Iterable[str],
        terse: bool,
        before: Mapping[tuple[str, int], str] | None = None,
    ):
        self.program = program
        self.function = function
        self.aliases = aliases
        self.module = module
        self.draws = frozenset(draws)
        self.terse = terse
        self.before = before or {}
        self.names = Names(reserved)
        self.values = [self.names.fresh(argument.name) for argument in function.arguments]
        self.spelled: dict[int, str] = dict(enumerate(self.values))
        self.starts: dict[int, Op] = {}
        self.numbers: dict[int, int] = {}
        self.lines: list[str] = []
        self.literals: list[str] = []

    def write(self) -> list[str]:
        """Return the lines of the function, its literals first."""
        place = ""
        arguments = set(self.spelled)
        for number, (op, freed) in enumerate(zip(self.function.ops, last_uses(self.function), strict=True)):
            here = one_line(" ".join(filter(None, (op.module, op.phase and f"({op.phase})", op.location))))
            if not self.terse and here != place:
                place = here
                self.lines.append(f"    # {place}" if place else "    #")
            statement = self.before.get((self.function.name, number))
            if statement:
                self.lines.append(f"    {statement}")
            first = len(self.lines)
            try:
                self._write_op(number, op, [value for value in freed if self.terse or value not in arguments])
            except RuntimeFault as fault:
                raise RuntimeFault(f"{self.function.name}: op {number} '{op.target}': {fault}") from None
            self.numbers.update((offset, number) for offset in range(first, len(self.lines)))
        head = [*self.literals, *self._signature()]
        self.numbers = {offset + len(head): number for offset, number in self.numbers.items()}
        return [*head, *self.lines, *self._return(), ""]

    def _signature(self) -> list[str]:
        name = self.module.functions[self.function.name]
        if not self.terse:
            arguments = [
                f"    {value},  # {_comment(argument)}"
                for value, argument in zip(self.values, self.function.arguments, strict=True)
            ]
            return ["", f"def {name}(", *arguments, "):"]
        read = {value for op in self.function.ops for value in op.operands()}
        read |= {result.value for result in self.function.results}
        unused = [value for index, value in enumerate(self.values) if index not in read]
        lines = [f"def {name}(arguments):"]
        if self.values:
            lines.append(f"    {tuple_text(self.values)} = arguments")
        lines.append("    arguments.clear()")
        if unused:
            lines.append(f"    del {', '.join(unused)}")
        return lines

    def _return(self) -> list[str]:
        values = [self.spelled[result.value] for result in self.function.results]
        if self.terse:
            return [f"    return {tuple_text(values)}"]
        commented = zip(values, self.function.results, strict=True)
        return ["    return (", *(f"        {value},  # {_comment(result)}" for value, result in commented), "    )"]

    def _write_op(self, number: int, op: Op, freed: Sequence[int]) -> None:
        if op.target == "literal":
            self._write_literal(op)
        elif op.target == "call":
            self._write_call(op, freed)
        else:
            if op.target in COLLECTIVES or op.target == "hp.recv":
                self.starts[op.results[0]] = op
            name, operands = self._hp(number, op) if op.target.startswith("hp.") else self._operator(op)
            self._assign(op, name, operands)
        self._delete(value for value in freed if value in self.spelled)

    def _write_literal(self, op: Op) -> None:
        (type_,) = op.types
        if type_ is None or None in type_.shape:
            raise RuntimeFault(f"literal of type {type_}, expected a tensor of static shape")
        name = self.names.fresh(f"{self.module.functions[self.function.name]}_literal")
        data = self._spell(op.kwargs.get("data"))
        dtype = self._spell(Named("dtype", type_.dtype))
        shape = self._spell(tuple(size for size in type_.shape if size is not None))
        self.literals.append(f"{name} = torch.tensor({data}, dtype={dtype}, device=device).reshape({shape})")
        self._assign(op, name)

    def _write_call(self, op: Op, freed: Sequence[int]) -> None:
        callee = self.program.functions[str(op.kwargs["function"])]
        microbatch = op.kwargs.get("microbatch")
        if callee.name in self.draws and isinstance(microbatch, int):
            self.lines.append(f"    hp.enter_microbatch({microbatch})")
        arguments = [self._spell(arg) for arg in op.args]
        name = self.module.functions[callee.name]
        wanted = [
            f"{result.role}_{result.name}" if result.role in ("grad", "buffer") else result.name
            for result in callee.results
        ]
        if self.terse:
            # The callee empties the box, so nothing here keeps alive what it needs no more.
            self.lines.append(f"    box = [{', '.join(arguments)}]")
            self._delete(freed)
            arguments = ["box"]
        self._assign(op, name, arguments, wanted)

    def _delete(self, values: Iterable[int]) -> None:
        names = [self.spelled.pop(value) for value in values if value in self.spelled]
        if names:
            line = f"    del {', '.join(names)}"
            if self.terse or len(line) <= WIDTH:
                self.lines.append(line)
            else:
                self.lines += ["    del (", *filled(names), "    )"]

    def _assign(self, op: Op, name: str, arguments: Sequence[str] | None = None, wanted: Sequence[str] = ()) -> None:
        """Write ``results = name(arguments)``, or ``result = name`` without arguments."""
        base = op.target.split(".")[1] if "." in op.target else op.target
        if op.target == "hp.wait":
            start = self.starts.get(next(iter(op.operands()), -1))
            base = _ARRIVED.get(start.target, base) if start else base
        targets = []
        for position, value in enumerate(op.results):
            self.spelled[value] = self.names.fresh(wanted[position] if wanted else base)
            targets.append(self.spelled[value])
        several = op.target in ("call", "hp.wait", "hp.accumulate", "hp.unpack", UNPACK_ARRIVAL) or (
            _is_operator(op) and _gives_several(op)
        )
        comment = "" if self.terse or op.target == "call" else _types_comment(op)
        left = f"{tuple_text(targets) if several else targets[0]} = " if targets else ""
        line = f"    {left}{name}" + ("" if arguments is None else f"({', '.join(arguments)})")
        if self.terse or len(line) <= WIDTH:
            self.lines.append(line + ("  " + comment if comment else ""))
            return
        if several:
            self.lines += ["    (", *filled(targets), "    ) = " + name + "("]
        else:
            self.lines.append(f"    {left}{name}(")
        self.lines += [*filled(arguments or ()), "    )" + ("  " + comment if comment else "")]

    def _operator(self, op: Op) -> tuple[str, list[str]]:
        arguments = [self._spell(arg) for arg in op.args]
        for name, value in op.kwargs.items():
            spelled = self._spell(value)
            # Some operators have arguments named like keywords of Python.
            arguments.append(f"{name}={spelled}" if is_plain(name) else f"**{{{name!r}: {spelled}}}")
        parts = [identifier(part) for part in op.target.split(".")]
        if self.terse:
            spelled = "_" + "_".join(parts)
            self.module.operators[spelled] = op.target
        else:
            spelled = ".".join(parts)
        return spelled, arguments

    def _hp(self, number: int, op: Op) -> tuple[str, list[str]]:
        operands = [self._spell(arg) for arg in op.args]
        known = HP_ATTRIBUTES.get("hp.unpack" if op.target == UNPACK_ARRIVAL else op.target, ())
        kwargs = [
            f"{name}={self._spell(value, tuple_text)}"
            for name, value in op.kwargs.items()
            if name in known and value is not None and not (self.terse and name == "label")
        ]
        if op.target in ("hp.pack", "hp.unpack", UNPACK_ARRIVAL):
            kwargs.insert(0, f"types={self._spell(op.kwargs['types'], tuple_text)}")
        method = op.target.removeprefix("hp.")
        if op.target in COLLECTIVES or op.target in ("hp.send", "hp.pack"):
            arguments = [tuple_text(operands)]
        elif op.target == "hp.recv":
            types = [f"({type_.dtype!r}, {type_.shape!r})" for type_ in recv_types(op)]
            arguments = []
            kwargs.append(f"types={tuple_text(types)}")
        elif op.target == "hp.accumulate":
            half = len(operands) // 2
            arguments = [tuple_text(operands[:half]), tuple_text(operands[half:])]
            kwargs.append(f"in_place={self.aliases.in_place[number]!r}")
        elif op.target in _RANDOM:
            method = "draw"
            arguments = [repr(op.target.removeprefix("hp.")), *operands, self._spell(op.kwargs["dtype"])]
        else:
            arguments = operands
        return f"hp.{method}", [*arguments, *kwargs]

    def _spell(self, arg: Arg, sequence: Callable[[Sequence[str]], str] | None = None) -> str:
        """Return an argument as Python; sequences are lists, as operators want them, unless told otherwise."""
        if isinstance(arg, Ref):
            return self.spelled[arg.index]
        if isinstance(arg, tuple):
            items = [self._spell(item, sequence) for item in arg]
            return sequence(items) if sequence else f"[{', '.join(items)}]"
        if isinstance(arg, Named):
            if arg.kind == "device":
                return f"torch.device({arg.name!r})" if arg.name else "device"
            return f"torch.{identifier(arg.name)}"
        if isinstance(arg, complex):
            return f"complex({arg.real!r}, {arg.imag!r})"
        return repr(arg)


def _gives_several(op: Op) -> bool:
    """Tell whether the operator's value is a sequence of the op's results and not its one result."""
    returns = resolve(op.target)._schema.returns
    is_list = len(returns) == 1 and str(returns[0].type).startswith("List[")
    return len(returns) > 1 or (is_list and op.types != (None,))
