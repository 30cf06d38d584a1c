"""Dynamic sizes at run time: read from the inputs, checked against each other, the guards and the microbatches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..errors import RuntimeFault
from .entries import inputs_of, peers_of
from .program import Argument, Function, Program
from .size_guards import Guard


class SizeReader:
    """What the sizes of an entry are in a batch: read from the inputs of all ranks' entries, not from its own alone.

    Args:
        program: the Program, for its guards and number of microbatches.
        function: the entry whose sizes are read.
    """

    def __init__(self, program: Program, function: Function):
        together = inputs_of(peers_of(program, function))
        inputs = [argument for argument in together.values() if argument.role == "input"]
        self.measured = frozenset(argument.name for argument in inputs if any(argument.dim_names))
        self.names = tuple(argument.name for argument in function.arguments if argument.role == "size")
        self._dims = [
            (argument.name, dim, name)
            for argument in inputs
            for dim, name in enumerate(argument.dim_names)
            if name in self.names
        ]
        self._rows = batch_size_name(inputs)
        self._guards = [Guard.parse(text) for text in program.guards]
        self._microbatches = program.microbatches
        self._weighted = is_weighted(program)

    def read(self, leaves: Mapping[str, Any]) -> dict[str, int]:
        """Return every size by name.

        Args:
            leaves: one data rank's inputs by name, at least those of `measured`; sizes that no input has, as integers.

        Raises:
            RuntimeFault: two inputs disagree, a guard does not hold, or the rows do not divide into the microbatches as
                the loss needs. The text does not say which rank.
        """
        sizes: dict[str, int] = {}
        owners: dict[str, str] = {}
        for leaf, dim, name in self._dims:
            value = leaves[leaf]
            assert isinstance(value, Tensor)
            size = value.shape[dim]
            if sizes.setdefault(name, size) != size:
                raise RuntimeFault(
                    f"input '{leaf}' has size {size} at dim {dim} but {owners[name]} has {sizes[name]}: both are "
                    f"size '{name}'"
                )
            owners.setdefault(name, f"dim {dim} of '{leaf}'")
        for name in self.names:
            if name not in sizes:
                if name not in leaves:
                    raise RuntimeFault(f"size '{name}' is of no input that any rank takes: give it as an integer")
                sizes[name] = leaves[name]
        if self._rows in sizes:
            self._check_rows(sizes[self._rows], owners[self._rows])
        for part in self._parts(sizes):
            for guard in self._guards:
                if not guard.holds(part):
                    found = " and ".join(f"{owners.get(name, 'the batch')} is {part[name]}" for name in guard.names)
                    each = " in a microbatch" if self._rows in guard.names and self._microbatches > 1 else ""
                    raise RuntimeFault(f"{found}{each}: the step was compiled under the guard '{guard.text}'")
        return sizes

    def _check_rows(self, rows: int, owner: str) -> None:
        count = self._microbatches
        if rows < count:
            raise RuntimeFault(f"{owner} has {rows} rows, too few for {count} microbatches")
        if rows % count and not self._weighted:
            raise RuntimeFault(
                f"{owner} has {rows} rows, which do not divide into {count} microbatches: a plain loss would be a mean "
                "of unequal means; return hpir.WeightedLoss(sum, weight)"
            )

    def _parts(self, sizes: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
        """Yield the sizes as the function of one microbatch sees them, each kind of microbatch once."""
        if self._rows not in sizes:
            yield sizes
            return
        least, more = divmod(sizes[self._rows], self._microbatches)
        for rows in (least + 1, least) if more else (least,):
            yield {**sizes, self._rows: rows}


def batch_size_name(inputs: Iterable[Argument]) -> str:
    """Return the name of the dynamic size that microbatches split, empty where rows are fixed."""
    for argument in inputs:
        if argument.batch_dim is not None and argument.dim_names:
            return argument.dim_names[argument.batch_dim]
    return ""


def is_weighted(program: Program) -> bool:
    """Return whether the step's loss is a weighted sum, exact over unequal parts."""
    return any(result.role == "weight" for function in program.functions.values() for result in function.results)


def check_data_ranks(program: Program, inputs: Sequence[Argument], leaves: Mapping[str, Any]) -> None:
    """Check that a global batch divides over the data ranks as the loss needs.

    Raises:
        RuntimeFault: there are fewer rows than ranks, or a plain loss would be a mean of unequal means.
    """
    ranks = program.mesh.count(program.data_axes)
    for argument in inputs:
        if (
            argument.role != "input"
            or argument.batch_dim is None
            or argument.type.shape[argument.batch_dim] is not None
        ):
            continue
        rows = leaves[argument.name].shape[argument.batch_dim]
        if rows < ranks:
            raise RuntimeFault(f"input '{argument.name}' has {rows} rows, too few for {ranks} data ranks")
        if rows % ranks and not is_weighted(program):
            raise RuntimeFault(
                f"input '{argument.name}' has {rows} rows, which do not divide over {ranks} data ranks: a plain loss "
                "would be a mean of unequal means; return hpir.WeightedLoss(sum, weight)"
            )
