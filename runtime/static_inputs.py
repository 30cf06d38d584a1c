"""Inputs that are Python values: compiled into the step, and compared with what each call gives.

A step keeps the values by leaf path (`Program.static_inputs`). A value that has changed since is an error, because the
ops hold what was computed with the old one. Two values are the same when they have one type and one spelling: ``1``,
``1.0`` and ``True`` differ, so do ``0.0`` and ``-0.0``, and a NaN is itself.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import RuntimeFault, nearest
from .operators import describe, dtype_name
from .program import Arg, Named

_PLAIN = (bool, int, float, complex, str, type(None))


def static_value(leaf: Any) -> tuple[Arg] | None:
    """Return a Python value as a Program keeps it, in a tuple of one; None for what is no value of a known type.

    A member of an enumeration is kept by its class's and its own name.
    """
    if type(leaf) in _PLAIN:
        return None if isinstance(leaf, str) and not _is_text(leaf) else (leaf,)
    if isinstance(leaf, torch.dtype):
        return (Named("dtype", dtype_name(leaf)),)
    if isinstance(leaf, enum.Enum):
        return (Named("enum", f"{type(leaf).__qualname__}.{leaf.name or leaf.value}"),)
    if isinstance(leaf, Named) and leaf.kind in ("dtype", "enum"):
        return (leaf,)
    return None


def _is_text(leaf: str) -> bool:
    try:
        leaf.encode()
    except UnicodeEncodeError:
        return False
    return True


def spelling(value: Arg) -> str:
    """Return a kept value as messages show it; equal for equal values only."""
    if isinstance(value, Named):
        return f"torch.{value.name}" if value.kind == "dtype" else value.name
    return repr(value)


def describe_leaf(leaf: Any) -> str:
    """Return what a leaf of a batch is, for a message, with what to give instead of an array of another library."""
    kept = None if isinstance(leaf, torch.Tensor) else static_value(leaf)
    if kept is not None:
        return spelling(kept[0])
    return f"{describe(leaf)}{hint_for(leaf)}"


def hint_for(leaf: Any) -> str:
    """Return what to do about a leaf that is neither tensor nor Python value, in brackets, or an empty string."""
    kind = type(leaf)
    if kind is str:
        return " (of characters that UTF-8 can encode)"
    if kind.__module__.partition(".")[0] == "numpy":
        advice = "torch.from_numpy makes it a tensor" if kind.__name__ == "ndarray" else ".item() makes it a number"
        return f" (of numpy: {advice})"
    return ""


def refuse_gradients(name: str, leaf: torch.Tensor, place: str = "") -> None:
    """Refuse an input whose gradient eager code would accumulate.

    Raises:
        RuntimeFault: it requires gradients.
    """
    if leaf.requires_grad:
        raise RuntimeFault(
            f"{place}input '{name}' requires gradients, which a compiled step gives to parameters only: give it "
            "detached"
        )


def refuse_kind(name: str, leaf: object, place: str = "") -> None:
    """Refuse a tensor that is not dense or has no values.

    Raises:
        RuntimeFault: it is sparse, nested or on the meta device.
    """
    if not isinstance(leaf, torch.Tensor):
        return
    if leaf.is_nested or leaf.layout != torch.strided or leaf.is_meta:
        kind = "nested" if leaf.is_nested else "meta" if leaf.is_meta else "sparse"
        raise RuntimeFault(f"{place}input '{name}' is a {kind} tensor, expected a dense one with values")


def take_static(expected: Mapping[str, Arg], leaves: dict[str, Any], place: str = "") -> dict[str, Any]:
    """Compare the Python values among the leaves of a batch with those compiled in, and return the other leaves.

    Args:
        expected: `Program.static_inputs`.
        leaves: of the batch, by path.
        place: what messages begin with, such as ``rank 0: ``.

    Raises:
        RuntimeFault: one is missing or has changed; the text names the input, both values and what to do.
    """
    if not expected:
        return leaves
    for name, value in expected.items():
        if name not in leaves:
            others = [other for other in leaves if other not in expected]
            raise RuntimeFault(
                f"{place}missing input '{name}': the step was compiled for the value {spelling(value)}"
                f"{nearest(name, others)}"
            )
        leaf = leaves[name]
        if leaf is value:
            continue
        kept = None if isinstance(leaf, torch.Tensor) else static_value(leaf)
        if kept is None or type(kept[0]) is not type(value) or spelling(kept[0]) != spelling(value):
            raise RuntimeFault(
                f"{place}input '{name}': the step was compiled for the value {spelling(value)}, got: "
                f"{describe_leaf(leaf)}; pass a tensor for what changes from step to step, or compile again"
            )
    return {name: leaf for name, leaf in leaves.items() if name not in expected}
