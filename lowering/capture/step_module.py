"""The model and its step function as one module with flat tensor inputs and outputs, and what its outputs look like."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._dynamo.functional_export import dynamo_graph_capture_for_export
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ...runtime.trees import output_tree
from .assigned_state import BufferSnapshot, buffers_of, write_back
from .capture_errors import unheard
from .step_results import (
    StepResults,
    check_numbers,
    flat_results,
    loss_and_outputs,
    number_leaves,
    read_results,
    whether_outputs,
)
from .trial_copy import fake_copy, running_on

TrainFunction = Callable[..., Any]
"""``train_fn(model, **batch)`` returning the loss (plain or a `WeightedLoss`), or the loss and extra outputs."""


@contextlib.contextmanager
def traces_dropped() -> Iterator[None]:
    """Drop what dynamo has put among the globals of `StepModule.forward`: graphs, which hold on to the model."""
    before = set(globals())
    try:
        yield
    finally:
        for name in globals().keys() - before:
            del globals()[name]


class StepModule(nn.Module):
    """The model and its step function as one module with flat tensor inputs and outputs, which is what dynamo takes."""

    def __init__(self, model: nn.Module, train_fn: TrainFunction, rebuild: Callable[[Sequence[Any]], dict[str, Any]]):
        super().__init__()
        self.model = model
        self._train_fn = train_fn
        self._rebuild = rebuild
        self._asked_for_outputs = False
        self._assigned: list[str] = []
        self._lost: set[str] = set()

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the loss, its weight if it has one, then the leaves of the extra outputs."""
        # Dynamo takes a tensor for what it meets it as first: not as an element of some list, which is a constant.
        list(self.model.parameters())
        list(self.model.buffers())
        before = buffers_of(self.model, self._assigned)
        result = self._train_fn(self.model, **self._rebuild(leaves))
        write_back(self.model, self._assigned, before)
        return whether_outputs(result) if self._asked_for_outputs else flat_results(result)

    def keep_assigned(self, leaves: Mapping[str, torch.Tensor]) -> set[str]:
        """Run the step to find the buffers it assigns; from then on their new values are written to the old ones.

        Returns:
            The paths of the modules that have buffers whose new values cannot be kept.

        Raises:
            Exception: whatever the step function raises.
        """
        self._fake_run(leaves, {})
        return self._lost

    def returns_loss_only(self, example: Sequence[torch.Tensor]) -> bool:
        """Return whether the step function returns a plain loss and nothing else; traces it once more."""
        self._asked_for_outputs = True
        try:
            captured = dynamo_graph_capture_for_export(self)(*example)
        finally:
            self._asked_for_outputs = False
        returned: Any = captured.graph.output_node().args[0]
        return len(returned) == 1

    def learn_results(
        self,
        source: str,
        leaves: Mapping[str, torch.Tensor],
        dims: Mapping[str, int | None],
        dynamic: Mapping[str, Mapping[int, str]],
    ) -> StepResults:
        """Run the step on fake tensors to check its loss and learn its outputs, and again with twice the batch.

        A dim of an output that doubles with the batch is its batch dim: data ranks and microbatches are concatenated
        along it. An output without one (a count, a mean) is stacked. With dynamic sizes it runs once more with twice
        those: numbers among the outputs are compiled in, and must not follow a size that changes.

        Raises:
            CaptureError: the loss or an output is not what it should be.
            Exception: whatever the step function raises.
        """
        results, flat = read_results(self._fake_run(leaves, {}), source)
        if dynamic and number_leaves(results.tree):
            again = self._outputs_with_twice(leaves, dynamic)
            check_numbers(results.tree, None if again is None else output_tree(again)[0], source)
        if not flat:
            return results
        doubled = self._outputs_with_twice(leaves, {name: (dim,) for name, dim in dims.items() if dim is not None})
        if doubled is None:
            # A model that is written for one batch size: its outputs have no dim known to follow the batch.
            return results
        _, grown_leaves = output_tree(doubled)
        found = []
        for name, leaf in flat.items():
            pairs = enumerate(zip(leaf.shape, grown_leaves[name].shape, strict=True))
            grown = [dim for dim, (a, b) in pairs if b == 2 * a != 0]
            found.append(grown[0] if len(grown) == 1 else None)
        results.batch_dims = found
        return results

    def _outputs_with_twice(self, leaves: Mapping[str, torch.Tensor], dims: Mapping[str, Collection[int]]) -> Any:
        """Return the extra outputs with `dims` of the inputs twice as long, None where the model does not take that."""
        try:
            return loss_and_outputs(self._fake_run(leaves, dims))[1]
        except (RuntimeError, ValueError, TypeError, AssertionError, LookupError):
            return None

    def _fake_run(self, leaves: Mapping[str, torch.Tensor], twice: Mapping[str, Collection[int]]) -> Any:
        """Run the step function on a copy of the model with fake tensors: no memory, nothing left on it."""
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(allow_scalar_outputs=False))
        model = fake_copy(self.model, mode)
        inputs = []
        with unheard(), running_on(mode):
            for name, leaf in leaves.items():
                grown = twice.get(name, ())
                shape = [2 * size if dim in grown else size for dim, size in enumerate(leaf.shape)]
                inputs.append(torch.empty(shape, dtype=leaf.dtype, device=leaf.device))
            buffers = BufferSnapshot(model)
            result = self._train_fn(model, **self._rebuild(inputs))
        self._assigned, self._lost = buffers.assigned()
        return result
