"""A Program in another precision: the same ops, all floating computation in one dtype."""

from __future__ import annotations

from dataclasses import replace

from .operators import torch_dtype
from .program import Arg, Argument, Function, Named, Op, Program, Result, TensorType

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
        ops=tuple(_op(op, floating) for op in function.ops),
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
    elif op.target == "hp.recv":
        kwargs["types"] = _recv_types(op.kwargs.get("types"), floating)
    types = tuple(None if type_ is None else _type(type_, floating) for type_ in op.types)
    return replace(op, args=args, kwargs=kwargs, types=types)


def _arg(arg: Arg, floating: str) -> Arg:
    if isinstance(arg, Named) and arg.kind == "dtype":
        return Named("dtype", converted_dtype(arg.name, floating))
    if isinstance(arg, tuple):
        return tuple(_arg(item, floating) for item in arg)
    return arg


def _recv_types(pairs: Arg, floating: str) -> Arg:
    if not isinstance(pairs, tuple):
        return pairs
    return tuple(
        (converted_dtype(pair[0], floating), *pair[1:])
        if isinstance(pair, tuple) and pair and isinstance(pair[0], str)
        else pair
        for pair in pairs
    )
