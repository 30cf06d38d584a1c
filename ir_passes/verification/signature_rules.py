"""Rules on signatures: of a step function, and those that functions of stages and ranks share with it.

- V4: every name of a parameter, buffer or constant is of one argument; so is every name of an input or size, and every
  name of an output is of one result. Only parameters are trainable.
- V5: one loss, floating, of shape [] or [1]; at most one weight, of shape [] or [1].
- V6: a gradient has all names of a trainable parameter, its type and its sharding; no parameter has two. A frozen one
  has none, and neither has one that the loss does not depend on; any other has one.
- V7: a new buffer has all names of a buffer, its type and its sharding; no buffer has two.
- V14: every dim that changes has a name, and the names of dims and those in guards are those of size arguments.
- V16: before stages nothing is "incoming", "outgoing" or "saved".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from torch_mlir import ir

from ...dialect.attributes import read_strings
from ...dialect.signature import (
    CROSSING_ROLES,
    STATE_ROLES,
    Signature,
    ValueInfo,
    body_of,
    function_name,
    return_of,
)
from ...dialect.types import FLOAT_DTYPES, tensor_type
from ...errors import nearest
from .findings import Findings, place_in_model

_CARRIES_GRADIENT = FLOAT_DTYPES | {"complex128", "complex64", "complex32"}


def called(function: ir.Operation, side: str, info: ValueInfo) -> str:
    """Return what messages call an argument or result: ``argument 0 of @joint ('up.weight')``."""
    return f"{side} {info.index} of @{function_name(function)} ('{info.name}')"


def check_signature(
    function: ir.Operation, signature: Signature, findings: Findings, *, same_sharding: bool = True
) -> None:
    """Check the rules V4 to V7, V14 and V16; of gradients and buffers the sharding only with `same_sharding`."""
    for side, infos in (("argument", signature.arguments), ("result", signature.results)):
        for info in infos:
            if info.role in (*CROSSING_ROLES, "gathered", "partial"):  # V16
                findings.add(
                    function,
                    f"{called(function, side, info)}: role '{info.role}' is of stages, which there are none of",
                )
    check_names(function, signature, findings)
    check_loss(function, signature, findings)
    _check_gradients(function, signature, findings, same_sharding)
    _check_buffers(function, signature, findings, same_sharding)
    sizes = [info.name for info in signature.with_role("size")]
    check_dims(function, signature, sizes, findings)
    check_guards(function, sizes, findings)


def check_names(function: ir.Operation, signature: Signature, findings: Findings) -> None:
    """Check that names are unique and only parameters trainable (V4)."""
    state = [info for info in signature.arguments if info.role in STATE_ROLES]
    # A parameter may be gathered in several forms.
    given = [info for info in signature.arguments if info.role not in (*STATE_ROLES, "gathered")]
    for side, infos in (("argument", state), ("argument", given), ("result", signature.results_with_role("output"))):
        owners: dict[str, int] = {}
        for info in infos:
            for name in dict.fromkeys(info.names):
                if owners.setdefault(name, info.index) != info.index or info.names.count(name) > 1:  # V4
                    first = f"{side} {owners[name]}"
                    findings.add(function, f"{called(function, side, info)}: name '{name}' is also that of {first}")
    for info in signature.arguments:
        if info.trainable and info.role != "param":  # V4
            findings.add(function, f"{called(function, 'argument', info)} is a {info.role} and hp.trainable")


def check_loss(function: ir.Operation, signature: Signature, findings: Findings) -> None:
    """Check the loss and the weight (V5)."""
    losses, weights = signature.results_with_role("loss"), signature.results_with_role("weight")
    if len(losses) != 1:  # V5
        findings.add(function, f"expected one result with role 'loss', got: {len(losses)}")
    if len(weights) > 1:  # V5
        findings.add(function, f"expected at most one result with role 'weight', got: {len(weights)}")
    check_loss_types(function, signature, findings)


def check_loss_types(function: ir.Operation, signature: Signature, findings: Findings) -> None:
    """Check the types of a loss and a weight where there are any (V5)."""
    losses, weights = signature.results_with_role("loss"), signature.results_with_role("weight")
    for info in (*losses, *weights):
        if info.type.shape not in ((), (1,)):  # V5
            where = called(function, "result", info)
            findings.add(function, f"{where}: expected shape [] or [1], got: {info.type}")
    for info in losses:
        if info.type.dtype not in FLOAT_DTYPES:  # V5
            where = called(function, "result", info)
            findings.add(function, f"{where}: expected a floating tensor, got: {info.type}")


_GUARD_NAME = re.compile(r"[A-Za-z_]\w*")
_GUARD_WORDS = frozenset({"and", "or", "not", "min", "max"})


def check_dims(function: ir.Operation, signature: Signature, sizes: Collection[str], findings: Findings) -> None:
    """Check that each dim that changes has the name of one of the `sizes` (V14)."""
    for info in signature.arguments:
        where = called(function, "argument", info)
        if None in info.type.shape and info.role in STATE_ROLES:  # V14
            findings.add(function, f"{where} is a {info.role}, expected fixed sizes, got: {info.type}")
        elif None in info.type.shape and not info.dim_names and info.role == "input":  # V14
            findings.add(function, f"{where} has sizes that change but no hp.dim_names")
        for name in filter(None, info.dim_names):
            if name not in sizes:  # V14
                hint = nearest(name, sizes)
                findings.add(function, f"{where}: hp.dim_names: no argument is the size '{name}'{hint}")


def check_guards(op: ir.Operation, sizes: Collection[str], findings: Findings) -> None:
    """Check that the guards of a function or module are on the `sizes` (V14)."""
    guards = read_strings(op.attributes["hp.guards"]) if "hp.guards" in op.attributes else ()
    if guards is None:  # V14
        findings.add(op, f"expected hp.guards to be a list of conditions, got: {op.attributes['hp.guards']}")
    for guard in guards or ():
        for name in _GUARD_NAME.findall(guard):
            if name not in sizes and name not in _GUARD_WORDS:  # V14
                findings.add(op, f"guard '{guard}': no argument is the size '{name}'{nearest(name, sizes)}")


def _check_gradients(function: ir.Operation, signature: Signature, findings: Findings, same_sharding: bool) -> None:
    parameters = signature.with_role("param")
    by_name = {name: info for info in parameters for name in info.names}
    have: set[int] = set()
    for gradient in signature.results_with_role("grad"):
        where = called(function, "result", gradient)
        parameter = check_owner(
            function, gradient, ("a gradient", "parameter"), by_name, findings, same_sharding=same_sharding
        )
        if parameter is None:
            continue
        if parameter.index in have:  # V6
            findings.add(function, f"{where}: parameter '{parameter.name}' has another gradient")
        have.add(parameter.index)
        if not parameter.trainable:  # V6
            findings.add(function, f"{where}: parameter '{parameter.name}' is frozen, expected no gradient")
    missing = [info for info in parameters if info.trainable and info.index not in have]
    if missing:
        needed = _loss_depends_on(function, signature)
        for info in missing:
            if info.index in needed:  # V6
                user = needed[info.index]
                findings.add(
                    function,
                    f"parameter '{info.name}' is trainable and the loss depends on it, but it has no gradient",
                    notes=[(user, f"'{info.name}' is used here{place_in_model(user)}")],
                )


def _check_buffers(function: ir.Operation, signature: Signature, findings: Findings, same_sharding: bool) -> None:
    by_name = {name: info for info in signature.with_role("buffer") for name in info.names}
    have: set[int] = set()
    for new in signature.results_with_role("buffer"):
        buffer = check_owner(function, new, ("a new value", "buffer"), by_name, findings, same_sharding=same_sharding)
        if buffer is None:
            continue
        if buffer.index in have:  # V7
            findings.add(function, f"{called(function, 'result', new)}: buffer '{buffer.name}' has another new value")
        have.add(buffer.index)


def check_owner(
    function: ir.Operation,
    result: ValueInfo,
    roles: tuple[str, str],
    by_name: Mapping[str, ValueInfo],
    findings: Findings,
    *,
    same_sharding: bool = True,
) -> ValueInfo | None:
    """Return the argument that a result is the gradient or new value of (V6, V7); what does not match is noted."""
    what, role = roles
    where = called(function, "result", result)
    owner = by_name.get(result.name)
    if owner is None:  # V6, V7
        findings.add(function, f"{where}: {what} of no {role}{nearest(result.name, by_name)}")
        return None
    if result.names != owner.names:  # V6, V7
        findings.add(function, f"{where}: expected names {_list(owner.names)}, got: {_list(result.names)}")
    if result.type != owner.type:  # V6, V7
        findings.add(function, f"{where}: expected the {role}'s type {owner.type}, got: {result.type}")
    elif same_sharding and (result.sharding, result.full_shape) != (owner.sharding, owner.full_shape):  # V6, V7
        findings.add(
            function,
            f"{where}: expected the {role}'s sharding {_spelled(owner)}, got: {_spelled(result)}",
        )
    return owner


def _spelled(info: ValueInfo) -> str:
    dims = "none" if info.sharding is None else str([list(axes) for axes in info.sharding])
    return f"{dims} of {_list(info.full_shape)}"


def _list(items: Iterable[object]) -> str:
    return "[" + ", ".join("?" if item is None else str(item) for item in items) + "]"


def _loss_depends_on(function: ir.Operation, signature: Signature) -> dict[int, ir.Operation]:
    return depends_on(function, [info.index for info in signature.results_with_role("loss")])


def depends_on(function: ir.Operation, results: Collection[int]) -> dict[int, ir.Operation]:
    """Return the arguments that results depend on through tensors that can carry a gradient, with a user each."""
    needed: dict[ir.Value, ir.Operation] = {}
    end = return_of(function)
    needed.update((value, end) for index, value in enumerate(end.operands) if index in results)
    for view in reversed(list(body_of(function).operations)):
        op = view.operation
        if any(result in needed and _may_carry_gradient(result.type) for result in op.results):
            needed.update((operand, op) for operand in op.operands)
    return {index: needed[value] for index, value in enumerate(body_of(function).arguments) if value in needed}


def _may_carry_gradient(type_: ir.Type) -> bool:
    parsed = tensor_type(type_)
    return parsed.dtype in _CARRIES_GRADIENT if parsed is not None else "tensor" in str(type_)
