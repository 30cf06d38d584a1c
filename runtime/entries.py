"""What the entries of a Program take together: ranks at different pipeline coordinates enter different functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .program import Argument, Function, Program


def entries_of(program: Program, kind: str) -> list[Function]:
    """Return the functions that ranks enter for a kind, "train" or "evaluate", each once, by pipeline coordinate."""
    names = program.train if kind == "train" else program.evaluate
    return [program.functions[name] for name in dict.fromkeys(names)]


def state_arguments(functions: Iterable[Function]) -> dict[tuple[str, str], Argument]:
    """Return the parameters, buffers and constants that functions take, by role and name, in order of appearance."""
    return {
        (argument.role, argument.name): argument
        for function in functions
        for argument in function.arguments
        if argument.role in ("param", "buffer", "constant")
    }


def all_state(program: Program) -> dict[tuple[str, str], Argument]:
    """Return the parameters, buffers and constants that any rank has, in an order that all ranks agree on."""
    return state_arguments([*entries_of(program, "train"), *entries_of(program, "evaluate")])


def peers_of(program: Program, function: Function) -> list[Function]:
    """Return what the ranks enter together where one of them enters `function`, itself among it."""
    return entries_of(program, "train" if function.name in program.train else "evaluate")


def inputs_of(functions: Sequence[Function]) -> dict[str, Argument]:
    """Return the inputs and sizes that functions take, by name, in order of appearance."""
    return {
        argument.name: argument
        for function in functions
        for argument in function.arguments
        if argument.role in ("input", "size")
    }


def unused_inputs(program: Program) -> dict[str, Argument]:
    """Return what the step function is given and no rank needs, by name; the reference is asked for it."""
    if program.reference is None:
        return {}
    functions = [*entries_of(program, "train"), *entries_of(program, "evaluate")]
    used = inputs_of(functions)
    known = inputs_of([program.functions[program.reference]])
    return {name: argument for name, argument in known.items() if argument.role == "input" and name not in used}


def positions_of(program: Program, name: str) -> tuple[int, ...]:
    """Return the pipeline coordinates at which a parameter is trained, in order."""
    return tuple(
        position
        for position, entry in enumerate(program.train)
        if any(argument.role == "param" and argument.name == name for argument in program.functions[entry].arguments)
    )


def gradient_dtypes(program: Program) -> set[str]:
    """Return the dtypes of all gradients, by name."""
    return {
        result.type.dtype
        for function in entries_of(program, "train")
        for result in function.results
        if result.role == "grad"
    }
