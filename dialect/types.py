"""Tensor types as data: reading `!torch.vtensor<[2,?],f32>` without torch, and building it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir

from ..dtypes import DTYPE_BYTES as DTYPE_BYTES

DTYPES: dict[str, str] = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "si64": "int64",
    "si32": "int32",
    "si16": "int16",
    "si8": "int8",
    "ui8": "uint8",
    "i1": "bool",
    "complex<f64>": "complex128",
    "complex<f32>": "complex64",
    "complex<f16>": "complex32",
}
"""MLIR element type to torch dtype name."""

ELEMENT_TYPES: dict[str, str] = {name: element for element, name in DTYPES.items()}
"""Torch dtype name to MLIR element type."""

FLOAT_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16"})
"""Real floating dtypes: what `param-dtype` and `reduce-dtype` may name."""

TORCH_DTYPE_CODES: dict[str, int] = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "complex32": 8,
    "complex64": 9,
    "complex128": 10,
    "bool": 11,
    "bfloat16": 15,
}
"""The integers by which the torch dialect spells a dtype operand (c10::ScalarType)."""

_VTENSOR = re.compile(r"!torch\.vtensor<\[([0-9?,]*)\],(.+)>")


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape (None for a dynamic size) and torch dtype name of a value tensor."""

    shape: tuple[int | None, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements; dynamic sizes count as 1."""
        count = 1
        for size in self.shape:
            count *= 1 if size is None else size
        return count

    @property
    def bytes(self) -> int:
        """Bytes of a dense tensor of this type."""
        return self.elements * DTYPE_BYTES[self.dtype]

    def with_shape(self, shape: Sequence[int | None]) -> TensorType:
        """Return the type with another shape."""
        return TensorType(tuple(shape), self.dtype)

    def with_size(self, dim: int, size: int | None) -> TensorType:
        """Return the type with one dim changed."""
        return TensorType((*self.shape[:dim], size, *self.shape[dim + 1 :]), self.dtype)

    def with_dtype(self, dtype: str) -> TensorType:
        """Return the type with another dtype (a torch name)."""
        return TensorType(self.shape, dtype)

    def to_mlir(self) -> ir.Type:
        """Build the MLIR type in the current context."""
        shape = ",".join("?" if size is None else str(size) for size in self.shape)
        return ir.Type.parse(f"!torch.vtensor<[{shape}],{ELEMENT_TYPES[self.dtype]}>")

    def __str__(self) -> str:
        shape = ",".join("?" if size is None else str(size) for size in self.shape)
        return f"!torch.vtensor<[{shape}],{ELEMENT_TYPES[self.dtype]}>"


_by_text: dict[str, TensorType | None] = {}


def tensor_type(type_: ir.Type) -> TensorType | None:
    """Return the tensor type that `type_` spells, or None for anything else (an unranked tensor, an int, a list)."""
    text = str(type_)
    if text in _by_text:
        return _by_text[text]
    parsed: TensorType | None = None
    match = _VTENSOR.fullmatch(text)
    if match and match[2] in DTYPES:
        sizes = match[1].split(",") if match[1] else []
        parsed = TensorType(tuple(None if size == "?" else int(size) for size in sizes), DTYPES[match[2]])
    _by_text[text] = parsed
    return parsed
