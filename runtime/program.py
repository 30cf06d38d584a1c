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
``hp.send``            N tensors -> nothing                   ``axis``, ``peer``, ``header``, ``label``
``hp.recv``            nothing -> future (of ``types``)       the same, and ``types``
``hp.microbatch``      tensor -> tensor                       ``index``, ``count``, ``dim``
``hp.accumulate``      N accumulators, N values -> N tensors  none
``hp.pack``            N tensors -> tensor                    ``ranks``, ``alignment``, ``dims``, ``types``
``hp.unpack``          tensor -> N tensors                    ``ranks``, ``alignment``, ``dims``, ``layout``, ``types``
``hp.uniform``         sizes (a list) -> tensor               ``stream``, ``rows``, ``dtype``
``hp.normal``          sizes (a list) -> tensor               ``stream``, ``rows``, ``dtype``
``call``               as the callee                          ``function``, ``microbatch``
``literal``            nothing -> tensor                      ``data`` (nested lists)
=====================  =====================================  =========================================

``coordinates``, ``axes`` and ``rows`` mean what the dialect reference says of the op of that name; ``coordinates`` is
None where the whole axis takes part, ``rows`` where the draw is one block. ``axes`` is a list of names, ``dims`` one
int per operand. ``types`` has a pair (dtype name, sizes) per tensor that is received, packed or unpacked. ``header``,
where it is there, is True: the sizes are sent before the tensors, and those that ``types`` does not know are None.
``label`` says what a message is, for people.
``microbatch`` of ``call`` is what the callee's random streams depend on; left out, it is the caller's, and 0 at an
entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ..mesh import Mesh, Sharding

SCHEMA_VERSION = 3


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of the SSA value numbered `index` within its function."""

    index: int


@dataclass(frozen=True, slots=True)
class Named:
    """A torch enumeration value: `kind` is dtype, layout, memory_format or device; `name` as torch spells it.

    A device's name is empty: it is whatever device the Program runs on. Among static inputs, `kind` may be enum, for a
    member of an enumeration of the user's.
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
    """One operation: `results` are the SSA numbers it defines, `types` their types (None for what is not a tensor).

    A collective that moves state says what: `members` are the parameters (or gradients) by name, in the order of their
    bytes; `member_bytes` how many of the operands' bytes are each one's, padding not counted; `bucket` is the name of
    the bucket, empty where it is none. Its wait has them too. They are for reports and mean nothing to who runs it.
    `unit` is the FSDP unit of a collective: gathers of several units are never made one.
    """

    target: str
    args: tuple[Arg, ...] = ()
    kwargs: dict[str, Arg] = field(default_factory=dict)
    results: tuple[int, ...] = ()
    types: tuple[TensorType | None, ...] = ()
    module: str = ""
    phase: str = ""
    location: str = ""
    bucket: str = ""
    unit: str = ""
    members: tuple[str, ...] = ()
    member_bytes: tuple[int, ...] = ()

    def operands(self) -> Iterable[int]:
        """Yield the SSA numbers this op reads, in order, repeats included."""
        for arg in (*self.args, *self.kwargs.values()):
            yield from _refs(arg)


@dataclass(frozen=True, slots=True)
class Argument:
    """A function argument, with what the IR says about it (`hp.role`, `hp.fqn`, ...). `type` is local to a rank.

    `full_shape` is the global shape. `sharding` has one tuple of mesh axes per dim. `batch_dim` is the dim that
    microbatches and data axes split, None for an input given whole to each. `dim_names` has, for an input with dynamic
    sizes, the name of each dim, empty for a fixed size; `example` is, for a size, what it was at the capture.
    Parameters with the same `buffer` are to lie in one piece of memory, each from byte `offset` on.
    """

    type: TensorType
    role: str
    names: tuple[str, ...]
    trainable: bool = False
    batch_dim: int | None = None
    sharding: Sharding = ()
    full_shape: tuple[int | None, ...] = ()
    dim_names: tuple[str, ...] = ()
    example: int | None = None
    buffer: str = ""
    offset: int = 0

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
    """An op list in SSA form. Argument i defines value i; ops define the rest in order.

    A function of a pipeline's stage says which `stage`, and its `task`: ``forward``, ``backward``, ``backward_input``
    or ``backward_weight``. That is for reports.
    """

    name: str
    arguments: tuple[Argument, ...]
    ops: tuple[Op, ...]
    results: tuple[Result, ...]
    stage: int | None = None
    task: str = ""


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
            ``{"list": [tree]}``, ``{"tuple": [tree]}``, or a value that is compiled in: ``{"constant": value}``,
            ``{"float": "inf"}``.
        static_inputs: inputs that are Python values, by path: compiled in, and the same in every batch.
        guards: what is taken for granted of the dynamic sizes of one microbatch, such as ``seq <= 32`` (see
            `size_guards`).
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
    static_inputs: dict[str, Arg] = field(default_factory=dict)
    guards: tuple[str, ...] = ()
    text: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of all but `text` and source locations: equal exactly when two ranks run the same Program."""
        from .program_json import digest, encode_program

        return digest(encode_program(self))

    def entry(self, rank: int, kind: str = "train") -> Function:
        """Return the function `rank` enters; `kind` is "train" or "evaluate"."""
        names = self.train if kind == "train" else self.evaluate
        index = self.mesh.coordinate(rank)[self.pipeline_axis] if self.pipeline_axis else 0
        return self.functions[names[index]]

    def save(self, path: str | Path) -> None:
        """Write the Program to the directory `path`, made when missing; an existing Program there is replaced."""
        from .program_json import write_program

        write_program(self, Path(path))

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
        from .program_json import read_program

        program = read_program(Path(path))
        program.validate(allow=allow, where=str(Path(path) / "program.json"))
        return program

    def validate(self, *, allow: Iterable[str] = (), where: str = "program") -> None:
        """Check that every value is defined before use, every callee and entry exists and every operator is allowed.

        Raises:
            RuntimeFault: the text starts with `where` and names function and op.
        """
        from .program_checks import check_program

        check_program(self, allow, where)


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
        "hp.pack",
        "hp.unpack",
        "hp.uniform",
        "hp.normal",
    }
)
"""The targets of the `hp` dialect that a Program may hold."""

HP_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "hp.all_gather": ("axes", "dims"),
    "hp.reduce_scatter": ("axes", "dims", "reduce"),
    "hp.all_reduce": ("axes", "reduce", "coordinates"),
    "hp.all_to_all": ("axes", "split_dims", "concat_dims"),
    "hp.broadcast": ("axes", "root", "coordinates"),
    "hp.shard_slice": ("axes", "dim"),
    "hp.send": ("axis", "peer", "header", "label"),
    "hp.recv": ("axis", "peer", "header", "label"),
    "hp.microbatch": ("index", "count", "dim"),
    "hp.pack": ("ranks", "alignment", "dims"),
    "hp.unpack": ("ranks", "alignment", "dims", "layout"),
    "hp.uniform": ("stream", "rows"),
    "hp.normal": ("stream", "rows"),
}
"""What each of them carries of its op in the IR, in the order of the runtime's parameters."""

UNPACK_ARRIVAL = "hp.unpack_arrival"
"""Future -> N tensors, with the attributes of ``hp.unpack``: a wait and it in one. No Program holds it; `coalescing`
makes it for code that is to run."""

COLLECTIVES = frozenset({"hp.all_gather", "hp.reduce_scatter", "hp.all_reduce", "hp.all_to_all", "hp.broadcast"})
"""The targets in which every rank of a group takes part."""


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
