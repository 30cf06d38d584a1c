"""Stages put on a step by hand: what tests of the passes behind hp-assign-stages need of it."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from hpir.dialect.attributes import i64_attr, ints_attr
from hpir.dialect.signature import STATE_ROLES, body_of, read_signature, step_functions
from hpir.ir_passes.phases import BACKWARD, Phases

_UNPLACED = ("torch.constant.", "torch.prim.ListConstruct", "torch.vtensor.literal")


def place_by_module(module: ir.Operation, stages: Sequence[Sequence[str]]) -> None:
    """Give every op a stage, in place: that of the module it came from as far as the order of stages allows.

    An op without a module, or of one that is not listed, follows its operands: the latest of the forward's, the
    earliest of the backward's. State is held by the stages that use it.

    Args:
        module: with a mesh that has an axis "pp".
        stages: per stage, names of its modules; what is in them belongs to them.
    """
    (function,) = step_functions(module)
    phases = Phases(function)
    signature = read_signature(function)
    arguments = list(body_of(function).arguments)
    at: dict[ir.Value, int] = {}
    users: dict[ir.Value, set[int]] = {argument: set() for argument in arguments}
    with module.context:
        for view in body_of(function).operations:
            op = view.operation
            if op.name.startswith(_UNPLACED) or op.name == "func.return":
                continue
            backward = phases.of(op) == BACKWARD
            limits = [at[value] for value in _tensors(op) if value in at and (phases_of(value) == BACKWARD) == backward]
            limit = (min if backward else max)(limits, default=len(stages) - 1 if backward else 0)
            name = op.attributes["hp.module"].value if "hp.module" in op.attributes else ""
            wanted = next((k for k, listed in enumerate(stages) for each in listed if _is_in(name, each)), limit)
            stage = min(wanted, limit) if backward else max(wanted, limit)
            op.attributes["hp.stage"] = i64_attr(stage)
            at.update((result, stage) for result in op.results)
            for value in op.operands:
                if value in users:
                    users[value].add(stage)
        attributes = []
        for info, argument, item in zip(
            signature.arguments, arguments, ir.ArrayAttr(function.attributes["arg_attrs"]), strict=True
        ):
            named = {each.name: each.attr for each in ir.DictAttr(item)}
            if info.role in STATE_ROLES:
                named["hp.stages"] = ints_attr(sorted(users[argument]) or [0])
            attributes.append(ir.DictAttr.get(named))
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
        module.attributes["hp.pipeline_axis"] = ir.StringAttr.get("pp")
        module.attributes["hp.stage_count"] = i64_attr(len(stages))


def phases_of(value: ir.Value) -> str:
    """Return the phase of the op that makes a value; empty for one without."""
    owner = value.owner
    if isinstance(owner, ir.Block) or "hp.phase" not in owner.attributes:
        return ""
    return str(owner.attributes["hp.phase"].value)


def _tensors(op: ir.Operation) -> list[ir.Value]:
    found = []
    for value in op.operands:
        owner = value.owner
        if not isinstance(owner, ir.Block) and owner.name == "torch.prim.ListConstruct":
            found += list(owner.operands)
        else:
            found.append(value)
    return found


def _is_in(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")
