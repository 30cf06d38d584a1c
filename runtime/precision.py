"""A Program in another precision: the same ops, all floating computation in one dtype."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .operators import torch_dtype
from .packed_ops import read_packed_op
from .program import COLLECTIVES, Arg, Argument, Function, Named, Op, Program, Result, TensorType

_COMPLEX = {"float64": "complex128", "float32": "complex64", "float16": "complex32"}

# Operators whose last argument says that a half-precision input gives a float32 result: no input is half any more.
_HALF_TO_FLOAT = frozenset({"aten._softmax.default", "aten._log_softmax.default"})


def converted_dtype(name: str, floating: str) -> str:
    """Return the dtype that `name` becomes when all floating computation is done in `floating`.

    Real floating dtypes become `floating`, complex ones the complex dtype of that precision; all others stay.
    """
    dtype = torch_dtype(name)
    if dtype.is_complex:
        return _COMPLEX.get(floating, name)
    return floating if dtype.is_floating_point else name


def program_in_dtype(program: Program, floating: str) -> Program:
    """Return `program` with every floating type, constant and cast in the dtype `floating`, such as ``float64``.

    Casts to low precision become casts to `floating`, so the result is the computation without rounding in between.
    Bit-level reinterpretation (`aten.view.dtype`) of floating tensors does not survive this.
    """
    functions = {name: _function(function, floating) for name, function in program.functions.items()}
    return replace(program, functions=functions)


def _function(function: Function, floating: str) -> Function:
    return replace(
        function,
        arguments=tuple(_signature(argument, floating) for argument in function.arguments),
        ops=tuple(_repacked([_op(op, floating) for op in function.ops])),
        results=tuple(_signature_result(result, floating) for result in function.results),
    )


def _signature(argument: Argument, floating: str) -> Argument:
    return replace(argument, type=_type(argument.type, floating))


def _signature_result(result: Result, floating: str) -> Result:
    return replace(result, type=_type(result.type, floating))


def _type(type_: TensorType, floating: str) -> TensorType:
    return TensorType(type_.shape, converted_dtype(type_.dtype, floating))


def _op(op: Op, floating: str) -> Op:
    args = tuple(_arg(arg, floating) for arg in op.args)
    kwargs = {name: _arg(arg, floating) for name, arg in op.kwargs.items()}
    if op.target in _HALF_TO_FLOAT:
        args, kwargs = (*args[:2], False), {}
    elif op.target in ("hp.recv", "hp.pack", "hp.unpack"):
        kwargs["types"] = _listed_types(op.kwargs.get("types"), floating)
    types = tuple(None if type_ is None else _type(type_, floating) for type_ in op.types)
    return replace(op, args=args, kwargs=kwargs, types=types)


def _repacked(ops: list[Op]) -> Iterator[Op]:
    """Yield the ops with the sizes right of what was packed as bytes: its members have other sizes now."""
    packed: dict[int, tuple[TensorType, TensorType]] = {}  # stated type and right one
    sent: dict[int, list[tuple[TensorType, TensorType] | None]] = {}
    for op in ops:
        if op.target == "hp.pack" and op.types[0] is not None:
            right = read_packed_op(op).whole
            if right != op.types[0]:
                packed[op.results[0]] = (op.types[0], right)
                op = replace(op, types=(right,))
        elif op.target in COLLECTIVES and any(value in packed for value in op.operands()):
            sent[op.results[0]] = [packed.get(value) for value in op.operands()]
        elif op.target == "hp.wait" and (changes := sent.get(next(iter(op.operands())))) is not None:
            types = [
                type_ if change is None or type_ is None else _scaled(type_, *change)
                for type_, change in zip(op.types, changes, strict=True)
            ]
            op = replace(op, types=tuple(types))
        yield op


def _scaled(type_: TensorType, stated: TensorType, right: TensorType) -> TensorType:
    """Return the type of what arrives for a tensor of the `right` type, where it is `type_` for the `stated` one."""
    (size,), (before,), (after,) = type_.shape, stated.shape, right.shape
    return TensorType((None if size is None or not before else size * (after or 0) // before,), right.dtype)


def _arg(arg: Arg, floating: str) -> Arg:
    if isinstance(arg, Named) and arg.kind == "dtype":
        return Named("dtype", converted_dtype(arg.name, floating))
    if isinstance(arg, tuple):
        return tuple(_arg(item, floating) for item in arg)
    return arg


def _listed_types(pairs: Arg, floating: str) -> Arg:
    if not isinstance(pairs, tuple):
        return pairs
    return tuple(
        (converted_dtype(pair[0], floating), *pair[1:])
        if isinstance(pair, tuple) and pair and isinstance(pair[0], str)
        else pair
        for pair in pairs
    )
