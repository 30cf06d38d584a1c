"""The model and its step function as one module with flat tensor inputs and outputs, and what its outputs look like."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from ..runtime.trees import output_tree
from .step_results import StepResults, blind_results, flat_results, loss_and_outputs, read_results

TrainFunction = Callable[..., Any]
"""``train_fn(model, **batch)`` returning the loss (plain or a `WeightedLoss`), or the loss and extra outputs."""


class StepModule(nn.Module):
    """The model and its step function as one module with flat tensor inputs and outputs, which is what dynamo takes."""

    def __init__(self, model: nn.Module, train_fn: TrainFunction, rebuild: Callable[[Sequence[Any]], dict[str, Any]]):
        super().__init__()
        self.model = model
        self._train_fn = train_fn
        self._rebuild = rebuild
        self._results = StepResults()

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the loss, its weight if it has one, then the leaves of the extra outputs."""
        result = self._train_fn(self.model, **self._rebuild(leaves))
        return flat_results(result, self._results) if self._results.fault is None else blind_results(result)

    def learn_results(
        self, source: str, leaves: Mapping[str, torch.Tensor], dims: Mapping[str, int | None]
    ) -> StepResults:
        """Run the step on fake tensors to check its loss and learn its outputs, and again with twice the batch.

        A dim of an output that doubles with the batch is its batch dim: data ranks and microbatches are concatenated
        along it. An output without one (a count, a mean) is stacked.

        Raises:
            CaptureError: the loss or an output is not what it should be.
            Exception: whatever the step function raises.
        """
        try:
            result = self._fake_run(leaves, dims, 1)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            # Dynamo takes some of these, and of the others can say what they are in the user's code.
            self._results.fault = error
            return self._results
        self._results, flat = read_results(result, source)
        if not flat:
            return self._results
        try:
            doubled = self._fake_run(leaves, dims, 2)
        except (RuntimeError, ValueError, TypeError, AssertionError, LookupError):
            # A model that is written for one batch size: its outputs have no dim known to follow the batch.
            return self._results
        _, again = output_tree(loss_and_outputs(doubled)[1])
        found = []
        for name, leaf in flat.items():
            pairs = enumerate(zip(leaf.shape, again[name].shape, strict=True))
            grown = [dim for dim, (a, b) in pairs if b == 2 * a != 0]
            found.append(grown[0] if len(grown) == 1 else None)
        self._results.batch_dims = found
        return self._results

    def _fake_run(self, leaves: Mapping[str, torch.Tensor], dims: Mapping[str, int | None], factor: int) -> Any:
        """Run the step function on a copy of the model with fake tensors: no memory, nothing left on it."""
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        tensors = [*self.model.parameters(), *self.model.buffers()]
        memo: dict[int, Any] = {id(tensor): mode.from_tensor(tensor, static_shapes=True) for tensor in tensors}
        model = copy.deepcopy(self.model, memo)
        inputs = []
        with mode, torch.no_grad():
            for name, leaf in leaves.items():
                dim = dims[name]
                shape = [size * factor if number == dim else size for number, size in enumerate(leaf.shape)]
                inputs.append(torch.empty(shape, dtype=leaf.dtype, device=leaf.device))
            return self._train_fn(model, **self._rebuild(inputs))
