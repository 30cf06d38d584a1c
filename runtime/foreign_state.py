"""What of a model belongs to other pipeline stages: it keeps its names and takes no memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .program import Argument
from .shards import Owner

_MARK = "_hpir_foreign"


class ForeignParameter(nn.Parameter):
    """Takes the place of a parameter that another rank owns: it has no values there, unlike one of a meta model.

    A type, because copies of a parameter keep it and nothing else of it.
    """


class ForeignState:
    """Parameters and buffers of a model that other ranks own.

    Args:
        parameters: what the Program says of each, and where the model holds it.
        buffers: the same.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[Argument, Sequence[Owner]]],
        buffers: Sequence[tuple[Argument, Owner]],
    ):
        self._parameters = parameters
        self._buffers = buffers
        self.names = frozenset(name for argument, _ in (*parameters, *buffers) for name in argument.names)

    def release(self) -> None:
        """Move all of it to the meta device, marked, so that it is not taken for a meta model's afterwards."""
        for _, owners in self._parameters:
            module, key = owners[0]
            live = module._parameters[key]
            assert live is not None
            if isinstance(live, ForeignParameter):
                continue
            empty = ForeignParameter(
                torch.empty(live.shape, dtype=live.dtype, device="meta"), requires_grad=live.requires_grad
            )
            for owner, name in owners:
                owner._parameters[name] = empty
        for _, (module, key) in self._buffers:
            buffer = module._buffers[key]
            if buffer is not None and not hasattr(buffer, _MARK):
                without = torch.empty(buffer.shape, dtype=buffer.dtype, device="meta")
                setattr(without, _MARK, True)
                module._buffers[key] = without

    def beside(self, modules: Collection[int]) -> Iterable[tuple[Argument, Sequence[Owner]]]:
        """Yield the parameters that modules with these ids hold beside what this rank owns."""
        for argument, owners in self._parameters:
            if any(id(module) in modules for module, _ in owners):
                yield argument, owners

    def take_part(self, values: Mapping[str, object]) -> None:
        """Take this rank's part in putting together foreign values that are spread over ranks, which others need."""
        for name, value in values.items():
            if name in self.names and isinstance(value, DTensor) and value.device_mesh.get_coordinate() is not None:
                value.full_tensor()

    def drop_from(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a model's state without what is foreign."""
        return {name: value for name, value in state.items() if name not in self.names}


def is_foreign(tensor: Tensor) -> bool:
    """Tell whether another rank owns a parameter or buffer of a live model, which has been divided into stages."""
    return tensor.is_meta and (isinstance(tensor, ForeignParameter) or hasattr(tensor, _MARK))
