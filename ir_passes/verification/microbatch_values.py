"""What values of a rank function are: which value of which microbatch, or a total of which parts. Data only."""

from __future__ import annotations

from dataclasses import dataclass, replace

WHOLE = -1
"""In place of a microbatch: all of them."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A value that a stage takes or makes.

    Attributes:
        kind: "value" (one that crosses), "input", "state", "buffer", "size" or "output".
        name: of the value, input, ...
        microbatch: whose it is, or `WHOLE`; of a buffer, the number of microbatches that have updated it.
    """

    kind: str
    name: str
    microbatch: int = WHOLE

    def __str__(self) -> str:
        if self.kind == "buffer":
            return f"'{self.name}' after {self.microbatch} microbatches"
        if self.microbatch == WHOLE:
            return f"'{self.name}'"
        return f"'{self.name}' of microbatch {self.microbatch}"


@dataclass(frozen=True, slots=True)
class Total:
    """A sum of what stage functions return.

    Attributes:
        role: "loss", "weight" or "grad".
        names: of the parameters that it is the gradient of: all names of one, or of several that share a partial
            gradient; of others the role.
        parts: by stage, ascending, the microbatches that are summed, one bit each.
        divisor: what it was divided by: nothing, "microbatches" or "weight".
    """

    role: str
    names: tuple[str, ...]
    parts: tuple[tuple[int, int], ...]
    divisor: str = ""

    def __str__(self) -> str:
        return f"gradient of '{self.names[0]}'" if self.role == "grad" else f"the {self.role}"


@dataclass(frozen=True, slots=True)
class Zero:
    """Zeros: what a sum begins with."""

    def __str__(self) -> str:
        return "zeros"


@dataclass(frozen=True, slots=True)
class Packed:
    """One tensor that holds several."""

    members: tuple[Known | None, ...]

    def __str__(self) -> str:
        return f"a bucket of {len(self.members)}"


Known = Origin | Total | Zero | Packed
"""What can be known of a value."""


class UnequalError(Exception):
    """Values that must not be added; the text says why, without where."""


def add(left: Known | None, right: Known | None) -> Known | None:
    """Return the sum of two values; None where one is unknown.

    Raises:
        UnequalError: they are totals of different things, were divided differently, or have parts in common.
    """
    if isinstance(left, Zero):
        return right
    if isinstance(right, Zero):
        return left
    if isinstance(left, Packed) and isinstance(right, Packed) and len(left.members) == len(right.members):
        return Packed(tuple(add(mine, other) for mine, other in zip(left.members, right.members, strict=True)))
    if not isinstance(left, Total) or not isinstance(right, Total):
        return None
    names = tuple(name for name in left.names if name in right.names)
    if left.role != right.role or not names:
        raise UnequalError(f"adds {right} to {left}")
    if left.divisor != right.divisor:
        raise UnequalError(f"adds parts of {left} of which some were divided and some were not")
    parts = dict(left.parts)
    for stage, microbatches in right.parts:
        common = parts.get(stage, 0) & microbatches
        if common:
            raise UnequalError(f"adds {left} of microbatch {lowest(common)}, stage {stage}, twice")
        parts[stage] = parts.get(stage, 0) | microbatches
    return replace(left, names=names, parts=tuple(sorted(parts.items())))


def lowest(microbatches: int) -> int:
    """Return the lowest of a set of microbatches."""
    return (microbatches & -microbatches).bit_length() - 1
