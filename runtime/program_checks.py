"""Whether a Program is well formed: values, calls, axes, and operators that are on the allow-list."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ..dtypes import DTYPE_BYTES
from ..errors import PlanError, RuntimeFault
from ..mesh import Mesh
from .packed_ops import read_packed_op
from .program import HP_TARGETS, Argument, Function, Op, Program, Result, TensorType
from .size_guards import Guard

# Operators of allowed namespaces that reach outside the tensors they are given.
_REFUSED = frozenset({"aten.from_file", "aten._from_file", "aten.save", "aten.load"})


# Of sizes, like aten's scalar operators; the rest of the namespace is TorchScript's own.
_SCALAR_TARGETS = frozenset({"prim.max.int", "prim.max.float", "prim.min.int", "prim.min.float"})

_ENTRY_ARGUMENTS = ("param", "buffer", "constant", "input", "size")
_ENTRY_RESULTS = ("loss", "weight", "output", "grad", "buffer")

MOST_PADDING = 64
"""Bound on the bytes between two parameters of a buffer; a damaged offset must not ask for all memory."""


def check_program(program: Program, allow: Iterable[str], where: str) -> None:
    """Check a Program; see `Program.validate`."""
    namespaces = {"aten", "prims", "_c10d_functional", *allow}
    try:
        program.mesh.sizes(program.data_axes)
        program.mesh.sizes(() if program.pipeline_axis is None else (program.pipeline_axis,))
    except PlanError as error:
        raise RuntimeFault(f"{where}: {error}") from None
    if program.reference is not None and program.reference not in program.functions:
        raise RuntimeFault(f"{where}: reference: no function '{program.reference}'")
    for kind, names in (("train", program.train), ("evaluate", program.evaluate)):
        expected = program.mesh.axis_size(program.pipeline_axis) if program.pipeline_axis else 1
        if len(names) != expected:
            raise RuntimeFault(f"{where}: {kind}: expected {expected} functions, got: {len(names)}")
        for name in names:
            if name not in program.functions:
                raise RuntimeFault(f"{where}: {kind}: no function '{name}'")
            _validate_entry(program.functions[name], f"{where}: {kind}")
    _validate_guards(program, where)
    for function in program.functions.values():
        _validate_signature(function, program.mesh, where)
        _validate_function(function, program.functions, namespaces, where)
    _validate_calls(program.functions, where)
    _validate_buffers(program.functions.values(), where)


def _validate_guards(program: Program, where: str) -> None:
    for name in (*program.train, *program.evaluate):
        sizes = {argument.name for argument in program.functions[name].arguments if argument.role == "size"}
        for text in program.guards:
            try:
                guard = Guard.parse(text)
            except RuntimeFault as fault:
                raise RuntimeFault(f"{where}: {fault}") from None
            unknown = [size for size in guard.names if size not in sizes]
            if unknown:
                raise RuntimeFault(f"{where}: guard '{text}': '{name}' has no size '{unknown[0]}'")


def _validate_entry(function: Function, where: str) -> None:
    """Refuse an entry that takes or returns what only one function of a step gives to another."""
    for side, values, roles in (
        ("argument", function.arguments, _ENTRY_ARGUMENTS),
        ("result", function.results, _ENTRY_RESULTS),
    ):
        for value in values:
            if value.role not in roles:
                raise RuntimeFault(
                    f"{where}: {function.name}: {side} '{value.name}' has role '{value.role}', "
                    f"expected one of {', '.join(roles)}"
                )


def _validate_signature(function: Function, mesh: Mesh, where: str) -> None:
    values: list[Argument | Result] = [*function.arguments, *function.results]
    for value in values:
        place, rank = f"{where}: {function.name}: '{value.name}'", len(value.type.shape)
        if len(value.sharding) not in (0, rank) or len(value.full_shape) not in (0, rank):
            raise RuntimeFault(f"{place}: sharding or full shape does not have {rank} dims")
        if value.batch_dim is not None and not 0 <= value.batch_dim < rank:
            raise RuntimeFault(f"{place}: expected batch_dim < {rank}, got: {value.batch_dim}")
        if isinstance(value, Argument) and len(value.dim_names) not in (0, rank):
            raise RuntimeFault(f"{place}: expected {rank} dim names, got: {len(value.dim_names)}")
        try:
            for axes in value.sharding:
                mesh.sizes(axes)
        except PlanError as error:
            raise RuntimeFault(f"{place}: {error}") from None


def _validate_buffers(functions: Iterable[Function], where: str) -> None:
    """Refuse parameters that cannot lie where they are said to lie."""
    placed: dict[str, tuple[str, int]] = {}
    buffers: dict[str, list[tuple[int, int, str]]] = {}
    for function in functions:
        for argument in function.arguments:
            if not argument.buffer:
                continue
            place, spot = f"{where}: {function.name}: '{argument.name}'", (argument.buffer, argument.offset)
            if argument.role != "param":
                raise RuntimeFault(f"{place}: expected a parameter in buffer '{argument.buffer}', got: {argument.role}")
            size = DTYPE_BYTES.get(argument.type.dtype)
            if size is None or None in argument.type.shape:
                raise RuntimeFault(f"{place}: expected a static shape and a known dtype, got: {argument.type}")
            if argument.offset < 0 or argument.offset % size:
                raise RuntimeFault(f"{place}: expected offset to be a multiple of {size} bytes, got: {argument.offset}")
            if placed.setdefault(argument.name, spot) != spot:
                other, at = placed[argument.name]
                raise RuntimeFault(
                    f"{place}: is at byte {argument.offset} of buffer '{argument.buffer}' here, at byte {at} of "
                    f"'{other}' in another function"
                )
            end = argument.offset + size * math.prod(size or 0 for size in argument.type.shape)
            buffers.setdefault(argument.buffer, []).append((argument.offset, end, argument.name))
    for buffer, members in buffers.items():
        before = ""
        last = 0
        for offset, end, name in sorted(set(members)):
            if offset < last:
                raise RuntimeFault(f"{where}: buffer '{buffer}': '{name}' overlaps '{before}'")
            if offset - last >= MOST_PADDING:
                raise RuntimeFault(f"{where}: buffer '{buffer}': {offset - last} bytes before '{name}' are of nothing")
            before, last = name, end


def _validate_calls(functions: Mapping[str, Function], where: str) -> None:
    """Refuse functions that call each other in a circle."""
    callees = {
        name: {str(op.kwargs["function"]) for op in function.ops if op.target == "call"}
        for name, function in functions.items()
    }
    while callees:
        leaves = [name for name, called in callees.items() if not called & callees.keys()]
        if not leaves:
            raise RuntimeFault(f"{where}: functions call each other in a circle: {', '.join(sorted(callees))}")
        for name in leaves:
            del callees[name]


def _validate_packing(op: Op, types: Mapping[int, TensorType | None], place: str) -> None:
    """Refuse a pack or an unpack whose members or whole are not of the types that it says they are of."""
    try:
        said = read_packed_op(op)
    except RuntimeFault as fault:
        raise RuntimeFault(f"{place}: {fault}") from None
    given = [types.get(value) for value in op.operands()]
    wholes, members = (list(op.types), given) if op.target == "hp.pack" else (given, list(op.types))
    if wholes != [said.whole] or members != said.members:
        raise RuntimeFault(
            f"{place}: expected members {_list(said.members)} in {said.whole}, got: {_list(members)} in {_list(wholes)}"
        )


def _list(types: Iterable[TensorType | None]) -> str:
    return ", ".join("?" if type_ is None else str(type_) for type_ in types)


def _validate_function(function: Function, functions: Mapping[str, Function], namespaces: set[str], where: str) -> None:
    defined = len(function.arguments)
    seen = set(range(defined))
    types: dict[int, TensorType | None] = {index: argument.type for index, argument in enumerate(function.arguments)}
    for number, op in enumerate(function.ops):
        place = f"{where}: {function.name}: op {number} '{op.target}'"
        for operand in op.operands():
            if operand not in seen:
                raise RuntimeFault(f"{place}: value {operand} is used before it is defined")
        for value in op.results:
            if value in seen:
                raise RuntimeFault(f"{place}: value {value} is defined twice")
            seen.add(value)
        if any(size < 0 for size in op.member_bytes) or len(op.member_bytes) not in (0, len(op.members)):
            raise RuntimeFault(f"{place}: expected bytes of {len(op.members)} members, got: {list(op.member_bytes)}")
        if op.target in ("hp.pack", "hp.unpack"):
            _validate_packing(op, types, place)
        types.update(zip(op.results, op.types, strict=False))
        if len(op.types) != len(op.results):
            raise RuntimeFault(f"{place}: {len(op.results)} results but {len(op.types)} types")
        if op.target == "call":
            callee = functions.get(str(op.kwargs.get("function")))
            if callee is None:
                raise RuntimeFault(f"{place}: no function '{op.kwargs.get('function')}'")
            if len(op.args) != len(callee.arguments) or len(op.results) != len(callee.results):
                raise RuntimeFault(f"{place}: operands or results do not match '{callee.name}'")
            for result, type_ in zip(callee.results, op.types, strict=True):
                if result.type != type_:
                    raise RuntimeFault(f"{place}: {result.role} '{result.name}' is {type_}, expected {result.type}")
        elif op.target != "literal" and op.target not in HP_TARGETS:
            parts = op.target.split(".")
            known = op.target in _SCALAR_TARGETS or (len(parts) == 3 and parts[0] in namespaces)
            if not known or ".".join(parts[:2]) in _REFUSED:
                named = f"['{parts[0]}']" if len(parts) == 3 and parts[0] not in namespaces else "[...]"
                raise RuntimeFault(
                    f"{place}: operator is not on the allow-list; name its namespace in allow={named} if you trust it"
                )
    for result in function.results:
        if result.value not in seen:
            raise RuntimeFault(f"{where}: {function.name}: result '{result.name}' is never defined")
