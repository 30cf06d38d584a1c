"""An entry of a Program on one rank: how it is given a batch, checked, beside the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import RuntimeFault, nearest
from .acknowledgements import Acknowledgements
from .entries import entries_of, inputs_of, peers_of, unused_inputs
from .host_copies import to_device
from .operators import torch_dtype
from .program import Function, Program
from .sizes import SizeReader
from .state import ModelState
from .static_inputs import describe_leaf, refuse_gradients, refuse_kind, take_static
from .trees import flatten_batch

_HOST = torch.device("cpu")


class Entry:
    """A function that a rank enters, with what reads its arguments.

    Args:
        program: the Program.
        function: the entry.
        state: of the rank.
        owned: per result, whether its memory is nobody else's.
        acknowledgements: what received messages say of sent ones.
    """

    def __init__(
        self,
        program: Program,
        function: Function,
        state: ModelState,
        owned: Sequence[bool],
        acknowledgements: Acknowledgements,
    ):
        self.function = function
        self.acknowledgements = acknowledgements
        self._static = program.static_inputs
        self.read = state.reader(function)
        self.owned = owned
        self._sizes = SizeReader(program, function)
        taken = inputs_of(peers_of(program, function))
        self._needed = frozenset(argument.name for argument in function.arguments)
        measured = {name for argument in taken.values() for name in argument.dim_names}
        self._expected = {
            name: (argument.type.shape, torch_dtype(argument.type.dtype), argument)
            for name, argument in taken.items()
            if argument.role == "input" or name not in measured
        }
        every = inputs_of([*entries_of(program, "train"), *entries_of(program, "evaluate")])
        self._ignored = frozenset(every).union(unused_inputs(program)) - self._expected.keys()

    def inputs(self, batch: Mapping[str, Any], device: torch.device, rank: int) -> dict[str, Any]:
        """Return the leaves of a batch by name, checked: contiguous tensors on the device, and integers for sizes.

        What only other pipeline stages take is checked too, so that all ranks find what is wrong, and left where it is.
        """
        leaves = take_static(self._static, flatten_batch(batch), f"rank {rank}: ")
        for name, leaf in leaves.items():
            expected = self._expected.get(name)
            if expected is None and name in self._ignored:
                continue
            if expected is None:
                hint = nearest(name, self._expected)
                raise RuntimeFault(f"rank {rank}: unexpected input '{name}': the step was compiled without it{hint}")
            shape, dtype, argument = expected
            if argument.role == "size" and isinstance(leaf, int):
                continue
            refuse_kind(name, leaf, f"rank {rank}: ")
            if not isinstance(leaf, Tensor) or leaf.dtype != dtype or not _fits(tuple(leaf.shape), shape):
                raise RuntimeFault(
                    f"rank {rank}: input '{name}': the step was compiled for {argument.type}, got: "
                    f"{describe_leaf(leaf)}"
                )
            if leaf.device not in (device, _HOST):
                raise RuntimeFault(
                    f"rank {rank}: input '{name}' is on device '{leaf.device}', the step runs on '{device}'"
                )
            refuse_gradients(name, leaf, f"rank {rank}: ")
            if name not in self._needed:
                continue
            if leaf.device != device:
                leaves[name] = to_device(leaf, device)
            elif not leaf.is_contiguous() or leaf.is_conj() or leaf.is_neg():
                # As it was traced: operators are recorded for dense inputs.
                leaves[name] = leaf.resolve_conj().resolve_neg().contiguous()
        for name, (_, _, argument) in self._expected.items():
            if name not in leaves:
                raise RuntimeFault(f"rank {rank}: missing input '{name}' of type {argument.type}")
        if self._sizes.names:
            try:
                leaves.update(self._sizes.read(leaves))
            except RuntimeFault as fault:
                raise RuntimeFault(f"rank {rank}: {fault}") from None
        return leaves


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    return shape == expected or (
        len(shape) == len(expected)
        and all(want is None or size == want for size, want in zip(shape, expected, strict=True))
    )
