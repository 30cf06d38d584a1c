"""Device meshes and the arithmetic of shards, as plain data: shared by the dialect, the passes and the runtime.

Nothing here imports torch or MLIR.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .errors import PlanError, nearest

Sharding = tuple[tuple[str, ...], ...]
"""Mesh axes that split each dim of a tensor, major to minor: ``(("dp",), ())`` splits dim 0 over ``dp``."""


MOST_RANKS = 2**20
"""Bound on a mesh's ranks: far above any machine, and low enough that a slip of the pen is an error, not a hang."""


@dataclass(frozen=True)
class Mesh:
    """A named grid of ranks, outermost axis first; a rank's number is its row-major coordinate.

    Args:
        axis_names: one name per axis, unique, none empty.
        axis_sizes: ranks along each axis, each at least 1.

    Raises:
        PlanError: a name is repeated or empty, a size is below 1, or the lengths differ.
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.axis_names) != len(self.axis_sizes):
            raise PlanError(f"mesh has {len(self.axis_names)} axis names but {len(self.axis_sizes)} axis sizes")
        if not self.axis_names:
            raise PlanError("mesh has no axes")
        for name, size in zip(self.axis_names, self.axis_sizes, strict=True):
            if not name:
                raise PlanError("mesh has an axis without a name")
            if self.axis_names.count(name) > 1:
                raise PlanError(f"mesh axis '{name}' is named twice")
            if size < 1:
                raise PlanError(f"mesh axis '{name}' has size {size}, expected at least 1")
        if math.prod(self.axis_sizes) > MOST_RANKS:
            raise PlanError(f"mesh {self} has {math.prod(self.axis_sizes)} ranks, expected at most {MOST_RANKS}")

    @classmethod
    def of(cls, axes: Mapping[str, int]) -> Mesh:
        """Build a mesh from an ordered mapping of axis name to size."""
        return cls(tuple(axes), tuple(axes.values()))

    @cached_property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self.axis_sizes)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    def axis_size(self, axis: str) -> int:
        """Return the size of one axis; an unknown name is a `PlanError` that names the nearest."""
        size = self._sizes.get(axis)
        if size is None:
            raise PlanError(f"mesh has no axis '{axis}'{nearest(axis, self.axis_names)}")
        return size

    def sizes(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the sizes of several axes, in the order asked for."""
        return tuple(self.axis_size(axis) for axis in axes)

    def count(self, axes: Sequence[str]) -> int:
        """Return the number of ranks along several axes together; 1 for none."""
        return math.prod(self.sizes(axes))

    def in_mesh_order(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Return `axes` ordered as the mesh orders them, outermost first, each once."""
        for axis in axes:
            self.axis_size(axis)
        return tuple(axis for axis in self.axis_names if axis in axes)

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return the position of `rank` on every axis."""
        if not 0 <= rank < self.size:
            raise PlanError(f"mesh has ranks 0 to {self.size - 1}, got: {rank}")
        position: dict[str, int] = {}
        for name, size in zip(reversed(self.axis_names), reversed(self.axis_sizes), strict=True):
            rank, position[name] = divmod(rank, size)
        return {name: position[name] for name in self.axis_names}

    def rank(self, coordinate: Mapping[str, int]) -> int:
        """Return the rank at a coordinate; axes left out are at position 0."""
        rank = 0
        for name, size in zip(self.axis_names, self.axis_sizes, strict=True):
            rank = rank * size + coordinate.get(name, 0)
        return rank

    def position(self, rank: int, axes: Sequence[str]) -> int:
        """Return the index of `rank` in its group over `axes` (first axis major)."""
        coordinate = self.coordinate(rank)
        index = 0
        for axis in axes:
            index = index * self.axis_size(axis) + coordinate[axis]
        return index

    def group(self, rank: int, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` only along `axes`, by coordinate, first axis major."""
        coordinate = self.coordinate(rank)
        members = []
        for indices in itertools.product(*(range(self.axis_size(axis)) for axis in axes)):
            members.append(self.rank({**coordinate, **dict(zip(axes, indices, strict=True))}))
        return tuple(members)

    def groups(self, axes: Sequence[str]) -> Iterator[tuple[int, ...]]:
        """Yield every group over `axes` once, by its lowest rank."""
        seen: set[int] = set()
        for rank in range(self.size):
            if rank not in seen:
                members = self.group(rank, axes)
                seen.update(members)
                yield members

    def __str__(self) -> str:
        return ",".join(f"{name}:{size}" for name, size in zip(self.axis_names, self.axis_sizes, strict=True))


def padded_shard_size(rows: int, counts: Sequence[int]) -> int:
    """Return the rows of the largest shard when `rows` are split over axes of sizes `counts`, major to minor.

    Each axis takes ``ceil(rows / ranks)`` in turn, as torch's DTensor does. This is the size of every rank's local
    (padded) tensor.
    """
    for count in counts:
        rows = -(-rows // count)
    return rows


def shard_spans(rows: int, counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return ``(offset, rows)`` of each shard, ordered by coordinate, major axis first; ``(end, 0)`` for an empty one.

    Example:
        >>> shard_spans(10, (2, 2))
        [(0, 3), (3, 2), (5, 3), (8, 2)]
    """
    spans = [(0, rows)]
    for count in counts:
        split: list[tuple[int, int]] = []
        for offset, size in spans:
            chunk = -(-size // count)
            for index in range(count):
                begin, end = min(index * chunk, size), min((index + 1) * chunk, size)
                split.append((offset + begin, end - begin))
        spans = split
    return spans


def local_shape(full: Sequence[int], sharding: Sequence[Sequence[str]], mesh: Mesh) -> tuple[int, ...]:
    """Return the (padded) shape each rank holds of a tensor of shape `full`."""
    return tuple(padded_shard_size(size, mesh.sizes(axes)) for size, axes in zip(full, sharding, strict=True))
