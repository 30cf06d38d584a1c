"""Programs of the acceptance models for real ranks, and the plain training they must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from models import BY_NAME, Case, Reference, reference_step
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import hpir
from hpir.runtime.program import Program
from hpir.runtime.step import Step

ROWS = 2
"""Rows of one microbatch of one data rank."""


def plan_of(
    case: Case, mesh: Mapping[str, int], *, microbatches: int = 1, split: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the plan that splits parameters over `split` (default: all axes) and the batch over all axes."""
    axes = list(mesh)
    split = axes if split is None else list(split)
    fsdp = {
        "axes": split,
        "replicate_axes": [axis for axis in axes if axis not in split],
        "units": list(case.units),
        "ignore": list(case.ignore),
    }
    return {"mesh": dict(mesh), "data": {"axes": axes, "microbatches": microbatches}, "fsdp": fsdp}


def save_program(path: Path, name: str, plan: Mapping[str, Any], **options: Any) -> str:
    """Compile an acceptance model for a plan, save the Program under `path` and return where."""
    case = BY_NAME[name]
    dtype = options.pop("dtype", torch.float32)
    exported = hpir.export(case.model(dtype), case.train, case.data(ROWS, dtype), batch_dims=case.batch_dims)
    program = hpir.compile_program(exported, plan, **options)
    where = path / f"{name}-{program.digest[:12]}"
    program.save(where)
    torch.save(
        {
            name: exported.state[name]
            for function in program.functions.values()
            for argument in function.arguments
            if argument.role == "constant"
            for name in argument.names
        },
        where / "constants.pt",
    )
    return str(where)


def load_step(where: str, model: nn.Module, **options: Any) -> Step:
    """Make the step of a saved Program around `model`."""
    constants = torch.load(Path(where) / "constants.pt")
    return Step(Program.load(where), model, constants=constants, **options)


def own_batch(case: Case, program: Program, rank: int, seed: int = 1) -> dict[str, Tensor]:
    """Return one rank's part of the global batch."""
    ranks = program.mesh.count(program.data_axes)
    whole = case.data(ROWS * program.microbatches * ranks, seed=seed)
    position = program.mesh.position(rank, program.data_axes)
    part = {}
    for name, leaf in whole.items():
        dim = case.batch_dims if isinstance(case.batch_dims, int) else case.batch_dims.get(name, 0)
        part[name] = leaf if dim is None or leaf.dim() == 0 else leaf.chunk(ranks, dim)[position].clone()
    return part


def expected_step(case: Case, program: Program, model: nn.Module, seed: int = 1, step: int = 0) -> Reference:
    """Run the plain step of this number on the same global batch; gradients are added to those of `model`."""
    ranks = program.mesh.count(program.data_axes)
    batch = case.data(ROWS * program.microbatches * ranks, seed=seed)
    return reference_step(
        model,
        case.train,
        batch,
        data_ranks=ranks,
        microbatches=program.microbatches,
        batch_dims=case.batch_dims,
        step=step,
        seed=program.seed,
    )


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor of any kind as a plain one of the whole shape."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def prefixed(where: str) -> Callable[[str], str]:
    """Return what puts a place before a message of `torch.testing.assert_close`."""
    return lambda message: f"{where}: {message}"


def assert_equal_models(model: nn.Module, reference: nn.Module, *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Check parameters, gradients and buffers of a live model against a plain one's."""
    plain = dict(reference.named_parameters(remove_duplicate=False))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        torch.testing.assert_close(whole(parameter), plain[name].detach(), msg=prefixed(name), rtol=rtol, atol=atol)
        assert parameter.requires_grad == plain[name].requires_grad, name
        assert (parameter.grad is None) == (plain[name].grad is None), name
        if parameter.grad is not None and plain[name].grad is not None:
            torch.testing.assert_close(
                whole(parameter.grad), plain[name].grad, msg=prefixed(f"grad of {name}"), rtol=rtol, atol=atol
            )
    buffers = dict(reference.named_buffers(remove_duplicate=False))
    for name, buffer in model.named_buffers(remove_duplicate=False):
        torch.testing.assert_close(buffer, buffers[name], msg=prefixed(f"buffer {name}"), rtol=rtol, atol=atol)
