"""Outputs of an evaluation, which one pipeline stage has, on all of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from .device import RankMesh
from .operators import torch_dtype
from .program import Program, Result
from .wires import carrier


class OutputExchange:
    """Hands each output of an evaluation to the ranks along the pipeline axis that do not have it.

    Args:
        program: the Program.
        ranks: the mesh.
    """

    def __init__(self, program: Program, ranks: RankMesh):
        self._ranks = ranks
        self._axis = program.pipeline_axis
        self._holders: dict[str, list[int]] = {}
        self._results: dict[str, Result] = {}
        if self._axis is None or program.mesh.axis_size(self._axis) == 1:
            return
        for position, name in enumerate(program.evaluate):
            for result in program.functions[name].results:
                if result.role == "output":
                    self._holders.setdefault(result.name, []).append(position)
                    self._results.setdefault(result.name, result)

    def share(self, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the outputs of all ranks by name.

        Args:
            values: those that this rank has.
        """
        shared = dict(values)
        for name, holders in self._holders.items():
            if len(holders) < self._ranks.mesh.axis_size(str(self._axis)):
                result = self._results[name]
                value = self._broadcast(shared.get(name), result, holders[0])
                shared.update((alias, value) for alias in result.names if alias not in shared)
        return shared

    def _broadcast(self, own: Tensor | None, result: Result, position: int) -> Tensor:
        ranks, axis = self._ranks, str(self._axis)
        assert ranks.device_mesh is not None
        group, root = ranks.device_mesh.get_group(axis), ranks.neighbour(axis, position)
        shape = tuple(own.shape) if own is not None else result.type.shape
        if None in result.type.shape:
            sizes = torch.tensor([size or 0 for size in shape], dtype=torch.int64, device=ranks.device)
            dist.broadcast(sizes, root, group=group)
            shape = tuple(sizes.tolist())
        if own is None:
            own = torch.empty([size or 0 for size in shape], dtype=torch_dtype(result.type.dtype), device=ranks.device)
        bits, back = carrier(own)
        dist.broadcast(bits, root, group=group)
        return bits if back is None else back(bits)
