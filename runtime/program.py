"""The Program: what a compiled training step is once it has left MLIR. Plain data, no torch, no pickle.

A Program is a mesh, a set of functions (op lists in SSA form with typed signatures) and, per pipeline coordinate, the
names of the functions a rank enters. On disk it is a directory with ``program.json`` (this module's encoding, with a
digest) and ``program.mlir`` (the module it was made from, for people; never read back).

Ops name torch operators (``aten.mm.default``), or one of these:

=====================  =====================================  =========================================
target                 operands -> results                    attributes
=====================  =====================================  =========================================
``hp.all_gather``      N tensors -> future                    ``axes``, ``dims``
``hp.reduce_scatter``  N tensors -> future                    ``axes``, ``dims``, ``reduce``
``hp.all_reduce``      N tensors -> future                    ``axes``, ``reduce``, ``coordinates``
``hp.all_to_all``      N tensors -> future                    ``axes``, ``split_dims``, ``concat_dims``
``hp.broadcast``       N tensors -> future                    ``axes``, ``root``, ``coordinates``
``hp.wait``            future -> N tensors                    none
``hp.shard_slice``     tensor -> tensor                       ``axes``, ``dim``
``hp.send``            N tensors -> nothing                   ``axis``, ``peer``
``hp.recv``            nothing -> future (of ``types``)       ``axis``, ``peer``, ``types``
``hp.microbatch``      tensor -> tensor                       ``index``, ``count``, ``dim``
``hp.accumulate``      N accumulators, N values -> N tensors  none
``hp.uniform``         sizes (a list) -> tensor               ``stream``, ``dtype``
``hp.normal``          sizes (a list) -> tensor               ``stream``, ``dtype``
``call``               as the callee                          ``function``, ``microbatch``
``literal``            nothing -> tensor                      ``data`` (nested lists)
=====================  =====================================  =========================================

``coordinates`` and ``axes`` mean what the dialect reference says of the op of that name; ``coordinates`` is None where
the whole axis takes part. ``axes`` is a list of names, ``dims`` one int per operand. ``types`` of ``hp.recv`` has a
pair (dtype name, sizes) per tensor. ``microbatch`` of ``call`` is what the callee's random streams depend on; left out,
it is the caller's, and 0 at an entry.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import PlanError, RuntimeFault
from ..mesh import Mesh, Sharding

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of the SSA value numbered `index` within its function."""

    index: int


@dataclass(frozen=True, slots=True)
class Named:
    """A torch enumeration value: `kind` is dtype, layout, memory_format or device; `name` as torch spells it.

    A device's name is empty: it is whatever device the Program runs on.
    """

    kind: str
    name: str


Arg: TypeAlias = "Ref | Named | bool | int | float | complex | str | tuple[Arg, ...] | None"


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape (None for a size known only at run time) and torch dtype name, such as ``float32``."""

    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: `results` are the SSA numbers it defines, `types` their types (None for what is not a tensor)."""

    target: str
    args: tuple[Arg, ...] = ()
    kwargs: dict[str, Arg] = field(default_factory=dict)
    results: tuple[int, ...] = ()
    types: tuple[TensorType | None, ...] = ()
    module: str = ""
    phase: str = ""
    location: str = ""

    def operands(self) -> Iterable[int]:
        """Yield the SSA numbers this op reads, in order, repeats included."""
        for arg in (*self.args, *self.kwargs.values()):
            yield from _refs(arg)


@dataclass(frozen=True, slots=True)
class Argument:
    """A function argument, with what the IR says about it (`hp.role`, `hp.fqn`, ...). `type` is local to a rank.

    `full_shape` is the global shape. `sharding` has one tuple of mesh axes per dim. `batch_dim` is the dim that
    microbatches and data axes split, None for an input given whole to each.
    """

    type: TensorType
    role: str
    names: tuple[str, ...]
    trainable: bool = False
    batch_dim: int | None = None
    sharding: Sharding = ()
    full_shape: tuple[int | None, ...] = ()

    @property
    def name(self) -> str:
        """The first of the names: what messages, gradients and state use."""
        return self.names[0]


@dataclass(frozen=True, slots=True)
class Result:
    """A function result: the SSA number returned and what it is; fields as on `Argument`."""

    value: int
    type: TensorType
    role: str
    names: tuple[str, ...]
    batch_dim: int | None = None
    sharding: Sharding = ()
    full_shape: tuple[int | None, ...] = ()

    @property
    def name(self) -> str:
        """The first of the names."""
        return self.names[0]


@dataclass(frozen=True)
class Function:
    """An op list in SSA form. Argument i defines value i; ops define the rest in order."""

    name: str
    arguments: tuple[Argument, ...]
    ops: tuple[Op, ...]
    results: tuple[Result, ...]


@dataclass(frozen=True)
class Program:
    """A compiled training step.

    Attributes:
        mesh: the ranks it runs on; one axis ``"all"`` of size 1 where no mesh was set.
        data_axes: mesh axes over which the batch is split, major to minor.
        microbatches: parts each data rank's batch is split into.
        functions: name to function.
        train: per pipeline coordinate, the function a rank enters for a training step.
        evaluate: the same for a forward-only step.
        reference: name of the unpartitioned function to check against, or None.
        pipeline_axis: the mesh axis that `train` and `evaluate` are indexed by; None when they have one entry.
        seed: of the random streams.
        output_tree: structure of the extra outputs: a result's name (a leaf), None, ``{"dict": {key: tree}}``,
            ``{"list": [tree]}`` or ``{"tuple": [tree]}``.
        text: the MLIR this Program was made from, for people.
    """

    mesh: Mesh
    data_axes: tuple[str, ...]
    microbatches: int
    functions: dict[str, Function]
    train: tuple[str, ...]
    evaluate: tuple[str, ...]
    reference: str | None = None
    pipeline_axis: str | None = None
    seed: int = 0
    output_tree: Any = None
    text: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 over everything but `text`: equal on two ranks exactly when they run the same Program."""
        return _digest(_encode_program(self))

    def entry(self, rank: int, kind: str = "train") -> Function:
        """Return the function `rank` enters; `kind` is "train" or "evaluate"."""
        names = self.train if kind == "train" else self.evaluate
        index = self.mesh.coordinate(rank)[self.pipeline_axis] if self.pipeline_axis else 0
        return self.functions[names[index]]

    def save(self, path: str | Path) -> None:
        """Write the Program to the directory `path`, made when missing; an existing Program there is replaced."""
        directory = Path(path)
        directory.mkdir(parents=True, exist_ok=True)
        encoded = _encode_program(self)
        encoded["digest"] = _digest(encoded)
        _write_atomically(directory / "program.json", _dump(encoded))
        _write_atomically(directory / "program.mlir", self.text)

    @classmethod
    def load(cls, path: str | Path, *, allow: Iterable[str] = ()) -> Program:
        """Read a Program from the directory `path`.

        Args:
            path: a directory written by `save`.
            allow: custom-op namespaces the Program may call besides aten, prims and _c10d_functional.

        Raises:
            RuntimeFault: nothing is there, it is damaged, of another schema version, changed since it was written, or
                calls an operator that is not allowed. The text says where.
        """
        file = Path(path) / "program.json"
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
        digest = encoded.pop("digest", None)
        try:
            unchanged = digest == _digest(encoded)
        except ValueError:  # A number that no Program has, such as NaN.
            unchanged = False
        if not unchanged:
            raise RuntimeFault(f"{file}: digest does not match: the file was changed or cut off after it was written")
        text_file = Path(path) / "program.mlir"
        text = text_file.read_text(encoding="utf-8", errors="replace") if text_file.is_file() else ""
        try:
            program = replace(_decode_program(encoded), text=text)
        except _MalformedError as error:
            raise RuntimeFault(f"{file}: {error}") from None
        except (PlanError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise RuntimeFault(f"{file}: not a Program: {error}") from None
        program.validate(allow=allow, where=str(file))
        return program

    def validate(self, *, allow: Iterable[str] = (), where: str = "program") -> None:
        """Check that every value is defined before use, every callee and entry exists and every operator is allowed.

        Raises:
            RuntimeFault: the text starts with `where` and names function and op.
        """
        namespaces = {"aten", "prims", "_c10d_functional", *allow}
        try:
            self.mesh.sizes(self.data_axes)
            self.mesh.sizes(() if self.pipeline_axis is None else (self.pipeline_axis,))
        except PlanError as error:
            raise RuntimeFault(f"{where}: {error}") from None
        if self.reference is not None and self.reference not in self.functions:
            raise RuntimeFault(f"{where}: reference: no function '{self.reference}'")
        for kind, names in (("train", self.train), ("evaluate", self.evaluate)):
            expected = self.mesh.axis_size(self.pipeline_axis) if self.pipeline_axis else 1
            if len(names) != expected:
                raise RuntimeFault(f"{where}: {kind}: expected {expected} functions, got: {len(names)}")
            for name in names:
                if name not in self.functions:
                    raise RuntimeFault(f"{where}: {kind}: no function '{name}'")
        for function in self.functions.values():
            _validate_signature(function, self.mesh, where)
            _validate_function(function, self.functions, namespaces, where)
        _validate_calls(self.functions, where)


HP_TARGETS = frozenset(
    {
        "hp.all_gather",
        "hp.reduce_scatter",
        "hp.all_reduce",
        "hp.all_to_all",
        "hp.broadcast",
        "hp.wait",
        "hp.shard_slice",
        "hp.send",
        "hp.recv",
        "hp.microbatch",
        "hp.accumulate",
        "hp.uniform",
        "hp.normal",
    }
)
"""The targets of the `hp` dialect that a Program may hold."""

COLLECTIVES = frozenset({"hp.all_gather", "hp.reduce_scatter", "hp.all_reduce", "hp.all_to_all", "hp.broadcast"})
"""The targets in which every rank of a group takes part."""

# Operators of allowed namespaces that reach outside the tensors they are given.
_REFUSED = frozenset({"aten.from_file", "aten._from_file", "aten.save", "aten.load"})


def _validate_signature(function: Function, mesh: Mesh, where: str) -> None:
    values: list[Argument | Result] = [*function.arguments, *function.results]
    for value in values:
        place, rank = f"{where}: {function.name}: '{value.name}'", len(value.type.shape)
        if len(value.sharding) not in (0, rank) or len(value.full_shape) not in (0, rank):
            raise RuntimeFault(f"{place}: sharding or full shape does not have {rank} dims")
        if value.batch_dim is not None and not 0 <= value.batch_dim < rank:
            raise RuntimeFault(f"{place}: expected batch_dim < {rank}, got: {value.batch_dim}")
        try:
            for axes in value.sharding:
                mesh.sizes(axes)
        except PlanError as error:
            raise RuntimeFault(f"{place}: {error}") from None


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


def _validate_function(function: Function, functions: Mapping[str, Function], namespaces: set[str], where: str) -> None:
    defined = len(function.arguments)
    seen = set(range(defined))
    for number, op in enumerate(function.ops):
        place = f"{where}: {function.name}: op {number} '{op.target}'"
        for operand in op.operands():
            if operand not in seen:
                raise RuntimeFault(f"{place}: value {operand} is used before it is defined")
        for value in op.results:
            if value in seen:
                raise RuntimeFault(f"{place}: value {value} is defined twice")
            seen.add(value)
        if len(op.types) != len(op.results):
            raise RuntimeFault(f"{place}: {len(op.results)} results but {len(op.types)} types")
        if op.target == "call":
            callee = functions.get(str(op.kwargs.get("function")))
            if callee is None:
                raise RuntimeFault(f"{place}: no function '{op.kwargs.get('function')}'")
            if len(op.args) != len(callee.arguments) or len(op.results) != len(callee.results):
                raise RuntimeFault(f"{place}: operands or results do not match '{callee.name}'")
        elif op.target != "literal" and op.target not in HP_TARGETS:
            parts = op.target.split(".")
            if len(parts) != 3 or parts[0] not in namespaces or ".".join(parts[:2]) in _REFUSED:
                raise RuntimeFault(
                    f"{place}: operator is not on the allow-list; name its namespace in allow=[...] if you trust it"
                )
    for result in function.results:
        if result.value not in seen:
            raise RuntimeFault(f"{where}: {function.name}: result '{result.name}' is never defined")


def map_args(arg: Arg, leaf: Callable[[Arg], Any]) -> Any:
    """Apply `leaf` to every leaf of an argument; lists become Python lists."""
    if isinstance(arg, tuple):
        return [map_args(item, leaf) for item in arg]
    return leaf(arg)


def last_uses(function: Function) -> list[tuple[int, ...]]:
    """Return, per op, the values that no later op and no result needs: what may be freed after it."""
    kept = {result.value for result in function.results}
    last: dict[int, int] = {}
    for number, op in enumerate(function.ops):
        for value in op.operands():
            last[value] = number
        for value in op.results:
            last[value] = number
    freed: list[list[int]] = [[] for _ in function.ops]
    for value, number in last.items():
        if value not in kept:
            freed[number].append(value)
    return [tuple(values) for values in freed]


def private_accumulators(function: Function) -> frozenset[int]:
    """Return the values that ``hp.accumulate`` may overwrite with the sum.

    These are results of an earlier ``hp.accumulate`` of the same function that nothing else reads: their memory is the
    function's own, and no view of it exists. The first sum of a chain therefore goes to new memory, the later ones stay
    there.
    """
    uses: dict[int, int] = {result.value: 2 for result in function.results}
    made: set[int] = set()
    accumulated: set[int] = set()
    for op in function.ops:
        for value in op.operands():
            uses[value] = uses.get(value, 0) + 1
        if op.target == "hp.accumulate":
            made.update(op.results)
            accumulated.update(arg.index for arg in op.args[: len(op.args) // 2] if isinstance(arg, Ref))
    return frozenset(value for value in accumulated & made if uses[value] == 1)


def _refs(arg: Arg) -> Iterable[int]:
    if isinstance(arg, Ref):
        yield arg.index
    elif isinstance(arg, tuple):
        for item in arg:
            yield from _refs(item)


# The encoding. Objects with one key stand for what JSON has no spelling of.


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
    for key, text in (("module", op.module), ("phase", op.phase), ("location", op.location)):
        if text:
            encoded[key] = text
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
    )


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
    )


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


def _encode_program(program: Program) -> dict[str, Any]:
    return {
        "schema": SCHEMA_VERSION,
        "mesh": {"axis_names": list(program.mesh.axis_names), "axis_sizes": list(program.mesh.axis_sizes)},
        "data_axes": list(program.data_axes),
        "microbatches": program.microbatches,
        "seed": program.seed,
        "output_tree": program.output_tree,
        "pipeline_axis": program.pipeline_axis,
        "train": list(program.train),
        "evaluate": list(program.evaluate),
        "reference": program.reference,
        "functions": {
            name: {
                "arguments": [_encode_argument(argument) for argument in function.arguments],
                "ops": [_encode_op(op) for op in function.ops],
                "results": [_encode_result(result) for result in function.results],
            }
            for name, function in program.functions.items()
        },
    }


def _decode_program(encoded: Mapping[str, Any]) -> Program:
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
        output_tree=encoded["output_tree"],
    )


def _dump(encoded: Mapping[str, Any]) -> str:
    return json.dumps(encoded, separators=(",", ":"), sort_keys=True, allow_nan=False)


def _digest(encoded: Mapping[str, Any]) -> str:
    return hashlib.sha256(_dump(encoded).encode()).hexdigest()


def _write_atomically(file: Path, text: str) -> None:
    scratch = file.with_name(file.name + ".partial")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(file)
