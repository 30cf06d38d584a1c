"""Rules of levels "joint" and "annotated".

- V1: the module has one function, ``@joint``, of one block.
- V2: it does not communicate and makes no local pieces (`hp.shard_slice`).
- V3: types are global: no `hp.full_shape`, and at level "joint" no `hp.sharding`. At level "annotated" each
  `hp.sharding` is well-formed: it names the module's mesh and its axes, one list per dim, each axis at most once.

The rules on signatures, V4 to V7, are in `signature_rules`.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch_mlir import ir

from ...dialect.attributes import find_mesh, read_sharding
from ...dialect.diagnostics import error_at
from ...dialect.hp import COMMUNICATION
from ...dialect.signature import Signature, ValueInfo, body_of, function_name, read_signature, step_functions
from ...dialect.types import tensor_type
from ...errors import nearest
from ...mesh import Mesh
from .findings import Findings
from .signature_rules import called, check_signature

FUNCTION = "joint"


def check_joint(module: ir.Operation, findings: Findings, *, annotated: bool = False) -> None:
    """Check the rules of level "joint", or of "annotated"."""
    function = step_function(module)
    found = find_mesh(module)
    mesh = found[1] if found else None
    signature = read_signature(function, mesh)
    for op in _all_ops(body_of(function)):
        if op.name in COMMUNICATION or op.name == "hp.shard_slice":  # V2
            findings.add(op, f"is not allowed at level '{'annotated' if annotated else 'joint'}': nothing is split yet")
        elif "hp.sharding" in op.attributes:  # V3
            if annotated:
                _check_annotation(op, found, findings)
            else:
                findings.add(op, "has hp.sharding, which level 'joint' does not know")
    for where, _, attributes in attribute_dictionaries(function, signature):
        for key in ("hp.full_shape",) if annotated else ("hp.full_shape", "hp.sharding"):  # V3
            if key in attributes:
                level = "annotated" if annotated else "joint"
                findings.add(function, f"{where} has {key}, but types are global at level '{level}'")
    if annotated:
        check_mesh_names(function, signature, found, findings)  # V3
    check_signature(function, signature, findings, same_sharding=not annotated)


def step_function(module: ir.Operation) -> ir.Operation:
    """Return the one step function (V1).

    Raises:
        IRError: there is none, there are more, or it has another name or control flow.
    """
    functions = list(step_functions(module))
    names = [function_name(function) for function in functions]
    if names.count(FUNCTION) == 0:
        got = ", ".join(f"@{name}" for name in names) or "none"
        raise error_at(module, f"expected one function @{FUNCTION}, got: {got}", named=False)
    for function, name in zip(functions, names, strict=True):
        if name != FUNCTION:
            raise error_at(function, f"@{name} is one function too many: expected @{FUNCTION} alone")
    body_of(functions[0])
    return functions[0]


def attribute_dictionaries(
    function: ir.Operation, signature: Signature
) -> Iterator[tuple[str, ValueInfo, ir.DictAttr]]:
    """Yield, for each argument and result, what messages call it, what it is and its attributes."""
    for side, infos, key in (
        ("argument", signature.arguments, "arg_attrs"),
        ("result", signature.results, "res_attrs"),
    ):
        if key in function.attributes:
            for info, attributes in zip(infos, ir.ArrayAttr(function.attributes[key]), strict=True):
                yield called(function, side, info), info, ir.DictAttr(attributes)


def check_mesh_names(
    function: ir.Operation, signature: Signature, found: tuple[str, Mesh] | None, findings: Findings
) -> None:
    """Check that each `hp.sharding` of a signature names the module's mesh."""
    for where, _, attributes in attribute_dictionaries(function, signature):
        if "hp.sharding" not in attributes:
            continue
        parsed = read_sharding(attributes["hp.sharding"])
        if parsed is not None and found is not None and parsed[0] != found[0]:
            findings.add(function, f"{where}: hp.sharding names '@{parsed[0]}', the module's mesh is '@{found[0]}'")


def _all_ops(block: ir.Block) -> Iterator[ir.Operation]:
    for view in block.operations:
        op = view.operation
        yield op
        for region in op.regions:
            for inner in region.blocks:
                yield from _all_ops(inner)


def _check_annotation(op: ir.Operation, found: tuple[str, Mesh] | None, findings: Findings) -> None:
    parsed = read_sharding(op.attributes["hp.sharding"])
    if parsed is None:
        findings.add(op, f"expected an #hp.sharding, got: {op.attributes['hp.sharding']}")
        return
    name, sharding = parsed
    if found is None or found[0] != name:
        findings.add(
            op, f"hp.sharding names '@{name}', " + (f"the mesh is '@{found[0]}'" if found else "there is no mesh")
        )
        return
    axes = [axis for dim in sharding for axis in dim]
    for axis in dict.fromkeys(axes):
        if axis not in found[1].axis_names:
            findings.add(op, f"hp.sharding: mesh has no axis '{axis}'{nearest(axis, found[1].axis_names)}")
        elif axes.count(axis) > 1:
            findings.add(op, f"hp.sharding: axis '{axis}' splits it twice")
    type_ = tensor_type(op.results[0].type) if len(op.results) else None
    if type_ is None or len(type_.shape) != len(sharding):
        dims = "a tensor" if type_ is None else f"{len(type_.shape)} dims"
        findings.add(op, f"hp.sharding: expected {dims}, got: {len(sharding)} dims")
