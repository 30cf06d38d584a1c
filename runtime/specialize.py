"""A function of dynamic sizes as the function of given ones: what a compiler of fixed shapes is handed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .operators import resolve
from .program import Arg, Argument, Function, Op, Ref, TensorType


def has_dynamic_sizes(function: Function) -> bool:
    """Return whether a function takes sizes, or tensors of unknown size."""
    return any(argument.role == "size" or None in argument.type.shape for argument in function.arguments)


def specialize(function: Function, arguments: Sequence[int | tuple[int, ...]]) -> Function:
    """Return a function for given sizes: size arguments are gone, what is computed of them alone are constants.

    Args:
        function: of a Program.
        arguments: per argument, its value if it is a size, else its shape.

    """
    known: dict[int, Arg] = {}
    numbers: dict[int, int] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    kept: list[Argument] = []
    for index, (argument, given) in enumerate(zip(function.arguments, arguments, strict=True)):
        if isinstance(given, int):
            known[index] = given
            continue
        numbers[index] = len(kept)
        shapes[index] = given
        full = argument.full_shape if None not in argument.full_shape else given
        kept.append(replace(argument, type=TensorType(given, argument.type.dtype), full_shape=full, dim_names=()))
    ops: list[Op] = []
    next_number = len(kept)
    for op in function.ops:
        args = tuple(_substitute(arg, known, numbers) for arg in op.args)
        kwargs = {name: _substitute(arg, known, numbers) for name, arg in op.kwargs.items()}
        if _gives_number(op):
            value = _measured(op, shapes)
            if value is None and not any(True for _ in Op(op.target, args, kwargs).operands()):
                value = resolve(op.target)(*map(_plain, args), **{name: _plain(arg) for name, arg in kwargs.items()})
            if value is not None:
                known[op.results[0]] = value
                continue
            if op.target == "aten.size.int":
                # The one of the two that a tracer of shapes knows.
                op = replace(op, target="aten.sym_size.int")
        for result in op.results:
            numbers[result] = next_number
            next_number += 1
        if op.target in ("hp.uniform", "hp.normal"):
            op = replace(op, types=(_drawn(op, args),))
        ops.append(replace(op, args=args, kwargs=kwargs, results=tuple(numbers[result] for result in op.results)))
    results = tuple(replace(result, value=numbers[result.value]) for result in function.results)
    return replace(function, arguments=tuple(kept), ops=tuple(ops), results=results)


def _gives_number(op: Op) -> bool:
    if op.types != (None,) or op.target.startswith(("hp.", "call", "literal")):
        return False
    return not any("Tensor" in str(result.type) for result in resolve(op.target)._schema.returns)


def _measured(op: Op, shapes: dict[int, tuple[int, ...]]) -> Arg:
    """Return the size of an argument that an op reads; None for any other op."""
    if op.target not in ("aten.size.int", "aten.sym_size.int"):
        return None
    tensor, dim = op.args
    if isinstance(tensor, Ref) and tensor.index in shapes and isinstance(dim, int):
        return shapes[tensor.index][dim]
    return None


def _drawn(op: Op, args: tuple[Arg, ...]) -> TensorType | None:
    """Return the type of a draw, whose sizes may be known by now."""
    (type_,), (sizes,) = op.types, args
    if type_ is None or not isinstance(sizes, tuple):
        return type_
    return TensorType(tuple(size if isinstance(size, int) else None for size in sizes), type_.dtype)


def _plain(arg: Arg) -> object:
    return [_plain(item) for item in arg] if isinstance(arg, tuple) else arg


def _substitute(arg: Arg, known: dict[int, Arg], numbers: dict[int, int]) -> Arg:
    if isinstance(arg, Ref):
        return known[arg.index] if arg.index in known else Ref(numbers[arg.index])
    if isinstance(arg, tuple):
        return tuple(_substitute(item, known, numbers) for item in arg)
    return arg
