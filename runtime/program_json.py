"""Programs as JSON: the encoding, its digest, reading and writing a Program's directory."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ..collection import collection_paused
from ..errors import PlanError, RuntimeFault
from ..mesh import Mesh, Sharding
from .program import SCHEMA_VERSION, Arg, Argument, Function, Named, Op, Program, Ref, Result, TensorType
from .trees import decode_tree, encode_tree

_Item = TypeVar("_Item", str, int)


@collection_paused()
def write_program(program: Program, directory: Path) -> None:
    """Write a Program to a directory, made when missing; one that is there is replaced.

    Raises:
        RuntimeFault: it cannot be written.
    """
    encoded = encode_program(program)
    encoded["digest"] = digest(encoded)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_atomically(directory / "program.json", _dump(encoded))
        _write_atomically(directory / "program.mlir", program.text)
    except OSError as error:
        raise RuntimeFault(f"{directory}: cannot write a Program: {(error.strerror or str(error)).lower()}") from None


@collection_paused()
def read_program(directory: Path) -> Program:
    """Read a Program from its directory, without checking what it calls.

    Raises:
        RuntimeFault: nothing is there, or it is damaged, of another schema version, or changed since it was written.
    """
    file = directory / "program.json"
    try:
        encoded = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RuntimeFault(f"{file}: cannot read a Program: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise RuntimeFault(f"{file}: not a Program: {error}") from None
    if not isinstance(encoded, dict):
        raise RuntimeFault(f"{file}: not a Program: expected an object")
    version = encoded.get("schema")
    if version != SCHEMA_VERSION:
        raise RuntimeFault(f"{file}: schema version {version!r}, this hpir reads {SCHEMA_VERSION}")
    stated = encoded.pop("digest", None)
    try:
        unchanged = stated == digest(encoded)
    except ValueError:  # A number that no Program has, such as NaN.
        unchanged = False
    if not unchanged:
        raise RuntimeFault(f"{file}: digest does not match: the file was changed or cut off after it was written")
    text_file = directory / "program.mlir"
    text = text_file.read_text(encoding="utf-8", errors="replace") if text_file.is_file() else ""
    try:
        return replace(decode_program(encoded), text=text)
    except _MalformedError as error:
        raise RuntimeFault(f"{file}: {error}") from None
    except (PlanError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RuntimeFault(f"{file}: not a Program: {error}") from None


# Objects with one key stand for what JSON has no spelling of.


class _MalformedError(Exception):
    pass


def _encode_arg(arg: Arg) -> Any:
    if isinstance(arg, Ref):
        return {"value": arg.index}
    if isinstance(arg, Named):
        return {arg.kind: arg.name}
    if isinstance(arg, tuple):
        return [_encode_arg(item) for item in arg]
    if isinstance(arg, complex):
        return {"complex": [_encode_arg(arg.real), _encode_arg(arg.imag)]}
    if isinstance(arg, float) and not math.isfinite(arg):
        return {"float": repr(arg)}
    return arg


def _decode_arg(arg: Any) -> Arg:
    if isinstance(arg, list):
        return tuple(_decode_arg(item) for item in arg)
    if isinstance(arg, dict):
        if len(arg) != 1:
            raise _MalformedError(f"malformed operand: {arg!r}")
        ((kind, value),) = arg.items()
        if kind == "value" and isinstance(value, int):
            return Ref(value)
        if kind in ("dtype", "layout", "memory_format", "device") and isinstance(value, str):
            return Named(kind, value)
        if kind == "float" and value in ("inf", "-inf", "nan"):
            return float(value)
        if kind == "complex":
            real, imag = (_decode_arg(part) for part in value)
            if isinstance(real, (int, float)) and isinstance(imag, (int, float)):
                return complex(real, imag)
        raise _MalformedError(f"malformed operand: {arg!r}")
    if arg is None or isinstance(arg, (bool, int, float, str)):
        return arg
    raise _MalformedError(f"malformed operand: {arg!r}")


def _encode_type(type_: TensorType | None) -> Any:
    return None if type_ is None else [type_.dtype, list(type_.shape)]


def _decode_type(encoded: Any) -> TensorType | None:
    if encoded is None:
        return None
    dtype, shape = encoded
    return TensorType(_shape(shape), str(dtype))


def _tensor_type(encoded: Any) -> TensorType:
    type_ = _decode_type(encoded)
    if type_ is None:
        raise _MalformedError("expected a tensor type, got: null")
    return type_


def _shape(encoded: Any) -> tuple[int | None, ...]:
    shape = tuple(encoded)
    if not all(size is None or (isinstance(size, int) and size >= 0) for size in shape):
        raise _MalformedError(f"malformed shape: {encoded!r}")
    return shape


def _encode_op(op: Op) -> dict[str, Any]:
    encoded: dict[str, Any] = {"op": op.target}
    if op.args:
        encoded["args"] = [_encode_arg(arg) for arg in op.args]
    if op.kwargs:
        encoded["kwargs"] = {name: _encode_arg(arg) for name, arg in op.kwargs.items()}
    if op.results:
        encoded["results"] = list(op.results)
        encoded["types"] = [_encode_type(type_) for type_ in op.types]
    for key in ("module", "phase", "location", "bucket", "unit"):
        text = getattr(op, key)
        if text:
            encoded[key] = text
    if op.members:
        encoded["members"] = list(op.members)
    if op.member_bytes:
        encoded["member_bytes"] = list(op.member_bytes)
    return encoded


def _decode_op(encoded: Any) -> Op:
    return Op(
        target=str(encoded["op"]),
        args=tuple(_decode_arg(arg) for arg in encoded.get("args", ())),
        kwargs={str(name): _decode_arg(arg) for name, arg in encoded.get("kwargs", {}).items()},
        results=tuple(int(value) for value in encoded.get("results", ())),
        types=tuple(_decode_type(type_) for type_ in encoded.get("types", ())),
        module=str(encoded.get("module", "")),
        phase=str(encoded.get("phase", "")),
        location=str(encoded.get("location", "")),
        bucket=_text(encoded, "bucket"),
        unit=_text(encoded, "unit"),
        members=tuple(_listed(encoded, "members", str)),
        member_bytes=tuple(_listed(encoded, "member_bytes", int)),
    )


def _text(encoded: Mapping[str, Any], key: str) -> str:
    text = encoded.get(key, "")
    if not isinstance(text, str):
        raise _MalformedError(f"expected {key} to be a string, got: {text!r}")
    return text


def _listed(encoded: Mapping[str, Any], key: str, kind: type[_Item]) -> list[_Item]:
    listed = encoded.get(key, [])
    if not isinstance(listed, list) or not all(type(item) is kind for item in listed):
        raise _MalformedError(f"expected {key} to be a list of {kind.__name__}, got: {listed!r}")
    return listed


def _encode_argument(argument: Argument) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "type": _encode_type(argument.type),
        "role": argument.role,
        "names": list(argument.names),
        "sharding": [list(axes) for axes in argument.sharding],
        "full_shape": list(argument.full_shape),
    }
    if argument.trainable:
        encoded["trainable"] = True
    if argument.batch_dim is not None:
        encoded["batch_dim"] = argument.batch_dim
    if argument.dim_names:
        encoded["dim_names"] = list(argument.dim_names)
    if argument.example is not None:
        encoded["example"] = argument.example
    if argument.buffer:
        encoded["buffer"], encoded["offset"] = argument.buffer, argument.offset
    return encoded


def _decode_argument(encoded: Any) -> Argument:
    return Argument(
        type=_tensor_type(encoded["type"]),
        role=str(encoded["role"]),
        names=_names(encoded["names"]),
        trainable=bool(encoded.get("trainable", False)),
        batch_dim=_optional_int(encoded.get("batch_dim")),
        sharding=_sharding(encoded["sharding"]),
        full_shape=_shape(encoded["full_shape"]),
        dim_names=tuple(map(str, encoded.get("dim_names", ()))),
        example=_optional_int(encoded.get("example")),
        buffer=_text(encoded, "buffer"),
        offset=_offset(encoded),
    )


def _offset(encoded: Mapping[str, Any]) -> int:
    if ("buffer" in encoded) != ("offset" in encoded):
        raise _MalformedError("expected buffer and offset of an argument together")
    offset = encoded.get("offset", 0)
    if type(offset) is not int:
        raise _MalformedError(f"expected offset to be an integer, got: {offset!r}")
    return offset


def _encode_result(result: Result) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "value": result.value,
        "type": _encode_type(result.type),
        "role": result.role,
        "names": list(result.names),
        "sharding": [list(axes) for axes in result.sharding],
        "full_shape": list(result.full_shape),
    }
    if result.batch_dim is not None:
        encoded["batch_dim"] = result.batch_dim
    return encoded


def _decode_result(encoded: Any) -> Result:
    return Result(
        value=int(encoded["value"]),
        type=_tensor_type(encoded["type"]),
        role=str(encoded["role"]),
        names=_names(encoded["names"]),
        batch_dim=_optional_int(encoded.get("batch_dim")),
        sharding=_sharding(encoded["sharding"]),
        full_shape=_shape(encoded["full_shape"]),
    )


def _optional_int(encoded: Any) -> int | None:
    return None if encoded is None else int(encoded)


def _optional_str(encoded: Any) -> str | None:
    return None if encoded is None else str(encoded)


def _names(encoded: Any) -> tuple[str, ...]:
    names = tuple(str(name) for name in encoded)
    if not names:
        raise _MalformedError("an argument or result has no name")
    return names


def _sharding(encoded: Any) -> Sharding:
    return tuple(tuple(str(axis) for axis in axes) for axes in encoded)


def _encode_function(function: Function) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "arguments": [_encode_argument(argument) for argument in function.arguments],
        "ops": [_encode_op(op) for op in function.ops],
        "results": [_encode_result(result) for result in function.results],
    }
    if function.stage is not None:
        encoded.update(stage=function.stage, task=function.task)
    return encoded


def encode_program(program: Program) -> dict[str, Any]:
    """Return a Program as JSON values, without its text and digest."""
    encoded: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "mesh": {"axis_names": list(program.mesh.axis_names), "axis_sizes": list(program.mesh.axis_sizes)},
        "data_axes": list(program.data_axes),
        "microbatches": program.microbatches,
        "seed": program.seed,
        "output_tree": encode_tree(program.output_tree),
        "pipeline_axis": program.pipeline_axis,
        "train": list(program.train),
        "evaluate": list(program.evaluate),
        "reference": program.reference,
        "functions": {name: _encode_function(function) for name, function in program.functions.items()},
    }
    if program.static_inputs:
        encoded["static_inputs"] = {name: _encode_arg(value) for name, value in program.static_inputs.items()}
    if program.guards:
        encoded["guards"] = list(program.guards)
    return encoded


def _decode_static(encoded: Any) -> Arg:
    if isinstance(encoded, dict) and list(encoded) == ["enum"]:
        return Named("enum", str(encoded["enum"]))
    value = _decode_arg(encoded)
    if isinstance(value, (Ref, tuple)) or (isinstance(value, Named) and value.kind != "dtype"):
        raise _MalformedError(f"malformed static input: {encoded!r}")
    return value


def decode_program(encoded: Mapping[str, Any]) -> Program:
    """Return the Program that JSON values spell; malformed ones raise whatever they make Python raise."""
    functions: dict[str, Function] = {}
    for name, body in encoded["functions"].items():
        ops: list[Op] = []
        for number, op in enumerate(body["ops"]):
            try:
                ops.append(_decode_op(op))
            except (KeyError, TypeError, ValueError, AttributeError, _MalformedError) as error:
                raise _MalformedError(f"{name}: op {number}: {error}") from None
        functions[name] = Function(
            name=name,
            arguments=tuple(_decode_argument(argument) for argument in body["arguments"]),
            ops=tuple(ops),
            results=tuple(_decode_result(result) for result in body["results"]),
            stage=int(body["stage"]) if "stage" in body else None,
            task=str(body.get("task", "")),
        )
    mesh = encoded["mesh"]
    return Program(
        mesh=Mesh(tuple(map(str, mesh["axis_names"])), tuple(map(int, mesh["axis_sizes"]))),
        data_axes=tuple(map(str, encoded["data_axes"])),
        microbatches=int(encoded["microbatches"]),
        functions=functions,
        train=tuple(map(str, encoded["train"])),
        evaluate=tuple(map(str, encoded["evaluate"])),
        reference=_optional_str(encoded["reference"]),
        pipeline_axis=_optional_str(encoded["pipeline_axis"]),
        seed=int(encoded["seed"]),
        output_tree=decode_tree(encoded["output_tree"]),
        static_inputs={str(name): _decode_static(value) for name, value in encoded.get("static_inputs", {}).items()},
        guards=tuple(map(str, encoded.get("guards", ()))),
    )


def _dump(encoded: Mapping[str, Any]) -> str:
    return json.dumps(encoded, separators=(",", ":"), sort_keys=True, allow_nan=False)


def digest(encoded: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an encoded Program; where its source files lay does not count."""
    functions = encoded.get("functions")
    if isinstance(functions, dict):
        encoded = {**encoded, "functions": {name: _unplaced(function) for name, function in functions.items()}}
    return hashlib.sha256(_dump(encoded).encode()).hexdigest()


def _unplaced(function: Any) -> Any:
    if not isinstance(function, dict) or not isinstance(function.get("ops"), list):
        return function
    ops = [
        {key: value for key, value in op.items() if key != "location"} if isinstance(op, dict) else op
        for op in function["ops"]
    ]
    return {**function, "ops": ops}


def _write_atomically(file: Path, text: str) -> None:
    scratch = file.with_name(file.name + ".partial")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(file)
