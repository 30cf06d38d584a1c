"""Rules of level "spmd", besides those on signatures.

- V1: the module has one function, ``@joint``, of one block.
- V8: every `hp.sharding` names the module's mesh, and the local type is that of the largest shard: per axis, major to
  minor, ceil(rows / ranks) of `hp.full_shape`. What has no `hp.sharding` is whole.
- V9: no op computes with a parameter's shard over a data axis; it is gathered first.
- V10: every gradient is reduced exactly once over each data axis; what is the same on all ranks of it needs no
  averaging.
- V11: it is reduced over no other axis, unless that splits an argument.
- V12: the reduction is "avg" with a plain loss, "sum" where the function returns a weight; that of the loss too.
- V13: over the data axes a gradient is split as its parameter is.

The data axes are those that split the inputs' batch dims; where no input is split, those over which any gradient is
reduced. Axes of one rank need nothing and may have anything.
"""

from __future__ import annotations

from torch_mlir import ir

from ...dialect.attributes import find_mesh
from ...dialect.signature import Signature, read_signature
from ...mesh import Mesh, local_shape
from .findings import Findings
from .gradient_flow import Flows, GradientFlow
from .joint import attribute_dictionaries, check_mesh_names, step_function
from .reductions import ReductionProof
from .signature_rules import check_signature


def check_spmd(module: ir.Operation, findings: Findings) -> None:
    """Check the rules of level "spmd"."""
    function = step_function(module)  # V1
    found = find_mesh(module)
    signature = read_signature(function, found[1] if found else None)
    check_mesh_names(function, signature, found, findings)  # V8
    check_signature(function, signature, findings)
    if found is not None:
        check_local_types(function, signature, found[1], findings)
        updated = [info.name for info in signature.results_with_role("buffer")]
        flows = Flows(found[1], signature.data_axes, updated)
        flow = GradientFlow(function, signature, flows)
        proof = ReductionProof(flows, [(function, signature, flow)], found[1], findings)
        proof.check_uses()
        proof.check(function, signature, flow)


def check_local_types(function: ir.Operation, signature: Signature, mesh: Mesh, findings: Findings) -> None:
    """Check that types are those of the largest shard (V8)."""
    for where, info, _ in attribute_dictionaries(function, signature):
        sharding = info.sharding or ((),) * len(info.type.shape)
        full = [-1 if size is None else size for size in info.full_shape]
        local = local_shape(full, sharding, mesh)
        expected = tuple(
            size if full_size is not None and actual is not None else actual
            for size, full_size, actual in zip(local, info.full_shape, info.type.shape, strict=True)
        )
        if info.type.shape != expected:  # V8
            split = str([list(axes) for axes in sharding]) if info.sharding else "not split"
            findings.add(
                function,
                f"{where}: expected the local type of {full}, {split}, to be {info.type.with_shape(expected)}, "
                f"got: {info.type}",
            )
