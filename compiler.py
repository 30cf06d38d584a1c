"""From a model and a plan to something that trains: `compile_program` (anywhere) and `compile` (on every rank)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from .collection import collection_paused
from .errors import CaptureError, HpirError, PassError, PlanError, RuntimeFault
from .ir_passes.pass_manager import run_passes
from .lowering.capture.batch_inputs import batch_leaves, split_dims
from .lowering.capture.batch_rebuild import rebuilder
from .lowering.capture.dynamic_sizes import read_dynamic
from .lowering.capture.source_places import definition_place
from .lowering.capture.step_module import TrainFunction
from .lowering.exported import Exported, export
from .lowering.to_program import to_program
from .plan import Plan
from .runtime.program import Program

if TYPE_CHECKING:
    from .runtime.step import Step


@collection_paused()
def compile_program(
    exported: Exported, plan: Plan | Mapping[str, Any] | None = None, *, allow: Sequence[str] = ()
) -> Program:
    """Compile a captured step for a plan. Needs no process group and no device.

    Args:
        exported: from `hpir.export`, one microbatch of one data rank.
        plan: a `Plan` or the same keys as a dict; None for one rank.
        allow: custom-op namespaces that the model's ops may come from.

    Returns:
        The Program that every rank runs, with the unpartitioned step in it as the reference to check against.

    Raises:
        PlanError: the plan is malformed or asks for what this version has no pass for.
        PassError: a pass refuses the module.
    """
    plan = _plan(plan)
    module = exported.module.operation.clone()
    run_passes(module, plan.pipeline())
    return to_program(
        module,
        microbatches=plan.data.microbatches,
        seed=plan.data.seed,
        reference=exported.module,
        allow=allow,
    )


def compile(  # noqa: A001 - the public name is fixed
    model: nn.Module,
    train_fn: TrainFunction,
    batch: Mapping[str, Any],
    *,
    plan: Plan | Mapping[str, Any] | None = None,
    backend: str = "eager",
    batch_dims: int | Mapping[str, int | None] = 0,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    allow: Sequence[str] = (),
    init: Callable[[nn.Module], None] | None = None,
) -> Step:
    """Compile a training step and make the live model ready for it; call this on every rank.

    Rank 0 captures and compiles; every rank gets the same Program. The model's parameters are replaced in place by
    DTensors, as `fully_shard` does; a model on the meta device is initialised shard by shard.

    Args:
        model: the model to train.
        train_fn: called as ``train_fn(model, **batch)``; returns the loss or ``(loss, outputs)``, as for `hpir.export`.
        batch: one data rank's whole batch, as every call of the step will have it; it is split into microbatches. With
            a dynamic batch dim and a `WeightedLoss`, microbatches may differ by a row.
        plan: a `Plan` or the same keys as a dict; None for one rank.
        backend: "eager" runs the generated torch code, "inductor" compiles it.
        batch_dims: as for `hpir.export`.
        dynamic: as for `hpir.export`.
        allow: custom-op namespaces that the model's ops may come from.
        init: for a model on the meta device, called with each module that owns parameters, in place of its own
            `reset_parameters`.

    Returns:
        The `Step`.

    Raises:
        CaptureError: the step cannot be captured, or the batch does not divide into the plan's microbatches.
        PlanError: the plan is malformed.
        PassError: a pass refuses the module.
        RuntimeFault: the mesh does not fit the process group, or the ranks' models differ.
    """
    # Only here, so that compiling a Program elsewhere loads nothing of the runtime.
    from .runtime.device import init_process_group
    from .runtime.step import Step

    plan = _agreed_plan(plan)
    mesh = plan.device_mesh()
    if mesh is not None and mesh.size > 1:
        init_process_group()
    program, constants = _compiled_once(model, train_fn, batch, plan, batch_dims, dynamic, allow)
    return Step(program, model, constants=constants, backend=backend, allow=allow, init=init)


def _plan(plan: Plan | Mapping[str, Any] | None) -> Plan:
    if isinstance(plan, Plan):
        return plan
    return Plan.model_validate({} if plan is None else plan)


def _agreed_plan(plan: Plan | Mapping[str, Any] | None) -> Plan:
    """Read the plan on every rank; a rank whose plan is wrong makes all of them say so, none waits for it."""
    fault: HpirError | None = None
    checked = Plan()
    try:
        checked = _plan(plan)
    except HpirError as error:
        fault = error
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        faults: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(faults, None if fault is None else str(fault))
        for rank, text in enumerate(faults):
            if text is not None and fault is None:
                raise PlanError(f"rank {rank}: {text}")
    if fault is not None:
        raise fault
    return checked


def _compiled_once(
    model: nn.Module,
    train_fn: TrainFunction,
    batch: Mapping[str, Any],
    plan: Plan,
    batch_dims: int | Mapping[str, int | None],
    dynamic: Mapping[str, Mapping[int, str]] | None,
    allow: Sequence[str],
) -> tuple[Program, dict[str, torch.Tensor]]:
    """Compile on rank 0 and hand the Program and the tensor constants to all; an error there is raised on all."""
    distributed = dist.is_available() and dist.is_initialized()
    outcome: list[Any] = [None, None, None]
    if not distributed or dist.get_rank() == 0:
        try:
            part = _microbatch(batch, plan, batch_dims, dynamic, definition_place(train_fn))
            exported = export(model, train_fn, part, batch_dims=batch_dims, dynamic=dynamic)
            program = compile_program(exported, plan, allow=allow)
            constants = {
                name: exported.state[name]
                for function in program.functions.values()
                for argument in function.arguments
                if argument.role == "constant"
                for name in argument.names
            }
            if not distributed:
                return program, constants
            outcome = [program, constants, None]
        except HpirError as error:
            if not distributed:
                raise
            outcome = [None, None, (type(error).__name__, str(error))]
    dist.broadcast_object_list(outcome, src=0)
    if outcome[2] is not None:
        kind, text = outcome[2]
        raise _ERRORS.get(kind, PassError)(text)
    return outcome[0], outcome[1]


_ERRORS: dict[str, type[HpirError]] = {
    error.__name__: error for error in (CaptureError, PlanError, PassError, RuntimeFault)
}


def _microbatch(
    batch: Mapping[str, Any],
    plan: Plan,
    batch_dims: int | Mapping[str, int | None],
    dynamic: Mapping[str, Mapping[int, str]] | None,
    source: str,
) -> Mapping[str, Any]:
    """Return the first microbatch of one data rank's batch."""
    count = plan.data.microbatches
    if count == 1:
        return batch
    leaves, _ = batch_leaves(batch, source)
    dims = split_dims(leaves, batch_dims, source)
    sizes = read_dynamic(dynamic, leaves, dims, source)
    parts = []
    for (name, leaf), dim in zip(leaves.items(), dims.values(), strict=True):
        rows = count if dim is None else leaf.shape[dim]
        if dim is not None and dim in sizes.dims.get(name, {}):
            # Any number of rows is an example of all, but for one, which torch takes for a size that is always one.
            parts.append(leaf.narrow(dim, 0, min(rows, max(2, -(-rows // count)))))
            continue
        if rows % count:
            raise CaptureError(
                f"data.microbatches: input '{name}' has {rows} rows along dim {dim}, which do not divide into {count} "
                "microbatches: choose a divisor, or name the batch dim in dynamic=... and return hpir.WeightedLoss"
            )
        parts.append(leaf if dim is None else leaf.narrow(dim, 0, rows // count))
    return rebuilder(batch, leaves, source)(parts)
