"""The buckets of a function, as hp-expand-buckets finds them: what each moves, and whether one launch can."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from torch_mlir import ir

from ...dialect.attributes import read_ints, read_strings
from ...dialect.diagnostics import remark
from ...dialect.signature import body_of
from ...dialect.types import TensorType, tensor_type
from ...mesh import Mesh
from ..build import type_of
from ..views import CASTS, is_link, operator_name

GATHER, SCATTER, REDUCE = "hp.all_gather", "hp.reduce_scatter", "hp.all_reduce"
_FUSED = frozenset({GATHER, SCATTER, REDUCE})


@dataclass
class Bucket:
    """One collective of several operands, with its wait.

    Attributes:
        start: the collective.
        wait: its wait.
        ranks: of its group.
        inputs: its operands.
        types: of its operands.
        dims: along which each is gathered or scattered; none for an all-reduce.
        parameters: the arguments that the operands are the shards of, as they are or all cast alike; empty where they
            are anything else.
        cast_to: the dtype they are all cast to; empty where they are not.
        order: positions of the operands in the order in which they are to be packed.
    """

    start: ir.Operation
    wait: ir.Operation
    ranks: int
    inputs: list[ir.Value]
    types: list[TensorType]
    dims: tuple[int, ...]
    parameters: list[ir.Value] = field(default_factory=list)
    cast_to: str = ""
    order: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name, or an empty string."""
        name = self.start.attributes.get("hp.bucket")
        return name.value if isinstance(name, ir.StringAttr) else ""

    @property
    def forward(self) -> bool:
        """Whether it belongs to the forward."""
        phase = self.start.attributes.get("hp.phase")
        return not isinstance(phase, ir.StringAttr) or phase.value == "forward"


def find_buckets(function: ir.Operation, mesh: Mesh) -> list[Bucket]:
    """Return the buckets of a function that one launch can move, in order; a remark says of others why it cannot."""
    found = []
    for view in body_of(function).operations:
        op = view.operation
        if op.name not in _FUSED or len(op.operands) < 2:
            continue
        ranks = mesh.count(read_strings(op.attributes["axes"]) or ())
        if "coordinates" in op.attributes:
            ranks = len(read_ints(op.attributes["coordinates"]) or ())
        users = [use.owner.operation for use in op.results[0].uses]
        types = [tensor_type(operand.type) for operand in op.operands]
        static = [type_ for type_ in types if type_ is not None and None not in type_.shape]
        reason = ""
        if len(users) != 1 or users[0].name != "hp.wait":
            reason = f"expected one hp.wait for it, found {len(users)} uses"
        elif len(static) < len(types):
            reason = "an operand has a dynamic size"
        elif op.name != GATHER and len({type_.dtype for type_ in static}) > 1:
            reason = "it reduces several dtypes"
        elif ranks > 1:
            dims = read_ints(op.attributes["dims"]) if "dims" in op.attributes else None
            found.append(Bucket(op, users[0], ranks, list(op.operands), static, dims or ()))
            found[-1].order = list(range(len(static)))
        if reason:
            remark(op, f"stays a collective of {len(op.operands)} tensors: {reason}")
    return found


def trace_parameters(buckets: list[Bucket], parameters: Set[ir.Value]) -> None:
    """Fill in which gathers are of parameters' shards.

    Shards that were all cast alike are too: the bucket can be cast as a whole instead.

    Args:
        buckets: of a function.
        parameters: its arguments that are parameters.
    """
    for bucket in buckets:
        if bucket.start.name != GATHER:
            continue
        if all(value in parameters for value in bucket.inputs):
            bucket.parameters = list(bucket.inputs)
            continue
        sources = [_cast_source(value) for value in bucket.inputs]
        known = [source for source in sources if source is not None and source in parameters]
        alike = {type_of(source).dtype for source in known}, {type_.dtype for type_ in bucket.types}
        if len(known) == len(sources) and all(len(dtypes) == 1 for dtypes in alike):
            bucket.parameters, bucket.cast_to = known, bucket.types[0].dtype


def _cast_source(value: ir.Value) -> ir.Value | None:
    if isinstance(value.owner, ir.Block):
        return None
    op = value.owner.operation
    if operator_name(op) not in CASTS or not is_link(op):
        return None
    source = op.operands[0]
    before, after = tensor_type(source.type), tensor_type(value.type)
    return source if before is not None and after is not None and before.shape == after.shape else None
