"""Where tensors lie that one collective moves: shared by the dialect, the passes and the runtime.

Nothing here imports torch or MLIR.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .dtypes import DTYPE_BYTES
from .errors import PlanError

BYTES = "uint8"
"""The dtype in which tensors of several dtypes lie side by side."""


@dataclass(frozen=True)
class PackedLayout:
    """Members one after the other, once for each rank: for each rank, its piece of every member.

    Attributes:
        dtype: of the packed tensor: the members' own, or `BYTES` where they differ. All sizes count its elements.
        ranks: pieces that each member is cut into.
        offsets: where each member's piece starts in a rank's part.
        sizes: of each member's piece.
        length: of a rank's part, the padding behind the last piece included.
    """

    dtype: str
    ranks: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    length: int

    @property
    def gaps(self) -> tuple[int, ...]:
        """Elements of padding behind each member's piece."""
        ends = (*self.offsets[1:], self.length)
        return tuple(end - start - size for start, size, end in zip(self.offsets, self.sizes, ends, strict=True))

    @classmethod
    def of(
        cls,
        shapes: Sequence[Sequence[int | None]],
        dtypes: Sequence[str],
        *,
        ranks: int = 1,
        dims: Sequence[int] = (),
        alignment: int = 1,
    ) -> PackedLayout:
        """Lay out members.

        Args:
            shapes: of the members, whole.
            dtypes: of the members.
            ranks: pieces that each is cut into.
            dims: the dim along which each is cut; none where there is one piece.
            alignment: elements of which every piece starts at a multiple.

        Raises:
            PlanError: they cannot be laid out like this.
        """
        if not shapes:
            raise PlanError("expected at least one tensor to pack")
        if ranks < 1 or alignment < 1:
            raise PlanError(f"expected ranks and alignment >= 1, got: {ranks} and {alignment}")
        expected = len(shapes) if ranks > 1 else 0
        if len(dims) != expected:
            raise PlanError(f"expected {expected} dims with ranks = {ranks}, got: {len(dims)}")
        mixed = len(set(dtypes)) > 1
        offsets: list[int] = []
        sizes: list[int] = []
        end = 0
        for number, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
            known = [size for size in shape if size is not None]
            if len(known) < len(shape):
                raise PlanError(f"expected tensor {number} to have a static shape")
            if ranks > 1 and not 0 <= dims[number] < len(known):
                raise PlanError(f"expected dim < {len(known)}, got: {dims[number]}")
            if ranks > 1 and known[dims[number]] % ranks:
                raise PlanError(
                    f"expected dim {dims[number]} to divide into {ranks} pieces, got: {known[dims[number]]}"
                )
            size = math.prod(known) // ranks
            if mixed:
                width = DTYPE_BYTES.get(dtype)
                if width is None:
                    raise PlanError(f"expected tensors of dtypes whose size is known, got: {dtype}")
                if alignment % width:
                    raise PlanError(
                        f"expected alignment to be a multiple of {width} bytes for {dtype}, got: {alignment}"
                    )
                size *= width
            offsets.append(end)
            sizes.append(size)
            end = -(-(end + size) // alignment) * alignment
        return cls(BYTES if mixed else dtypes[0], ranks, tuple(offsets), tuple(sizes), end)
