"""Checking a Program against the step it was made from, in float64: what `hp-run --check` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import RuntimeFault
from ..mesh import Mesh
from ..runtime.entries import entries_of, inputs_of, state_arguments, unused_inputs
from ..runtime.program import Argument, Function, Program, TensorType
from ..runtime.simulate import SimulationResult, simulate
from ..runtime.trees import flatten_batch, nest_leaves
from .step_function import assemble


@dataclass(frozen=True)
class Difference:
    """How far one result of a Program is from the reference's, relative to the largest value.

    `kind` is loss, grad, buffer or output. `differs` says whether it is beyond the tolerance.
    """

    kind: str
    name: str
    difference: float
    differs: bool


def check_program(
    program: Program, state: Mapping[str, torch.Tensor], batch: Mapping[str, Any], *, tolerance: float = 1e-10
) -> list[Difference]:
    """Simulate all ranks of a Program and the plain loop over its reference function, both in float64.

    Args:
        program: with a reference function.
        state: full tensors by name.
        batch: the global batch.
        tolerance: largest relative difference that counts as equal.

    Returns:
        One entry per result: those that differ first, each part in the order of the results.

    Raises:
        RuntimeFault: the Program has no reference, or one of the two cannot run.
    """
    if program.reference is None:
        raise RuntimeFault("the Program holds no reference function: give the unpartitioned module")
    found = simulate(program, state, batch, dtype=torch.float64)
    differences = list(_differences(found, _reference(program, state, batch), tolerance))
    return sorted(differences, key=lambda difference: not difference.differs)


def _reference(program: Program, state: Mapping[str, torch.Tensor], batch: Mapping[str, Any]) -> SimulationResult:
    """Run the reference on one data rank's rows after the other, and average: the loop that defines a step.

    With a weight the ranks' sums are added up and divided once.
    """
    function = program.functions[str(program.reference)]
    ranks = program.mesh.count(program.data_axes)
    mesh = Mesh(("all",), (1,))
    functions, train, evaluate = assemble(function, mesh, (), program.microbatches, divide=False)
    single = Program(
        mesh=mesh,
        data_axes=(),
        microbatches=program.microbatches,
        functions=functions,
        train=(train,),
        evaluate=(evaluate,),
        seed=program.seed,
        output_tree=program.output_tree,
        static_inputs=program.static_inputs,
    )
    leaves = flatten_batch(batch)
    results = [
        simulate(single, state, _rows(function, leaves, rank, ranks), dtype=torch.float64, data_coordinate=rank)
        for rank in range(ranks)
    ]
    weights = [value for result in results for value in _weights(single, result)]
    divisor = torch.stack(weights).sum() if weights else torch.tensor(ranks)

    def mean(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(parts).sum(0) / divisor

    first = results[0]
    return SimulationResult(
        loss=mean([result.loss for result in results]),
        grads={name: mean([result.grads[name] for result in results]) for name in first.grads},
        buffers=first.buffers,
        outputs=None,
        per_rank=(),
    )


def _weights(program: Program, result: SimulationResult) -> Iterator[torch.Tensor]:
    for stated, value in zip(program.entry(0).results, result.per_rank[0], strict=True):
        if stated.role == "weight":
            yield value.reshape(())


def _rows(function: Function, leaves: Mapping[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    dims = {argument.name: argument.batch_dim for argument in function.arguments if argument.role == "input"}
    parts = {}
    for name, leaf in leaves.items():
        dim = dims.get(name)
        whole = dim is None or not isinstance(leaf, torch.Tensor)
        parts[name] = leaf if whole else leaf.tensor_split(ranks, dim)[rank]
    return nest_leaves(parts)


def _differences(found: SimulationResult, expected: SimulationResult, tolerance: float) -> Iterator[Difference]:
    pairs = [("loss", "loss", found.loss, expected.loss)]
    for kind, left, right in (("grad", found.grads, expected.grads), ("buffer", found.buffers, expected.buffers)):
        for name, tensor in right.items():
            if name not in left:
                yield Difference(kind, name, float("inf"), True)
                continue
            pairs.append((kind, name, left[name], tensor))
    for kind, name, left_value, right_value in pairs:
        a, b = left_value.double(), right_value.double()
        scale = max(float(b.abs().max()) if b.numel() else 0.0, 1e-30)
        difference = float((a - b).abs().max()) / scale if b.numel() else 0.0
        yield Difference(kind, name, difference, not difference <= tolerance)


def random_state(program: Program, seed: int = 0) -> dict[str, torch.Tensor]:
    """Make full tensors for a Program's parameters, buffers and constants: small normal numbers, positive buffers."""
    generator = torch.Generator().manual_seed(seed)
    functions = [*entries_of(program, "train"), *entries_of(program, "evaluate")]
    if program.reference is not None:  # It may take what no rank needs.
        functions.append(program.functions[program.reference])
    state: dict[str, torch.Tensor] = {}
    for argument in state_arguments(functions).values():
        type_ = TensorType(argument.full_shape, argument.type.dtype)
        tensor = _random(type_, generator) * (0.1 if argument.role == "param" else 1)
        state.update({name: tensor.abs() if argument.role == "buffer" else tensor for name in argument.names})
    return state


def random_batch(program: Program, seed: int = 0) -> dict[str, Any]:
    """Make a global batch for a Program: normal numbers; integers are 0 or 1, which any embedding has rows for.

    Python values are those compiled in.
    """
    generator = torch.Generator().manual_seed(seed)
    arguments = inputs_of([*entries_of(program, "train"), *entries_of(program, "evaluate")])
    examples = {argument.name: argument.example or 2 for argument in arguments.values() if argument.role == "size"}
    parts = program.mesh.count(program.data_axes) * program.microbatches
    unused = {name: _whole(argument, parts) for name, argument in unused_inputs(program).items()}
    leaves: dict[str, Any] = {}
    for argument in {**arguments, **unused}.values():
        if argument.role == "input":
            shape = list(argument.full_shape)
            for dim, name in enumerate(argument.dim_names):
                if name:
                    shape[dim] = examples.get(name, 2) * (parts if dim == argument.batch_dim else 1)
            leaves[argument.name] = _random(TensorType(tuple(shape), argument.type.dtype), generator)
    return nest_leaves({**leaves, **program.static_inputs})


def _whole(argument: Argument, parts: int) -> Argument:
    """Return an input of one microbatch as that of the global batch."""
    dim = argument.batch_dim
    full = tuple(
        size * parts if index == dim and size is not None else size for index, size in enumerate(argument.full_shape)
    )
    return replace(argument, full_shape=full)


def _random(type_: TensorType, generator: torch.Generator) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, type_.dtype)
    shape = [0 if size is None else size for size in type_.shape]
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)
