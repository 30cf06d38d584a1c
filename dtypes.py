"""Sizes of elements, by the names torch gives its dtypes; for code that loads neither torch nor MLIR."""

from __future__ import annotations

DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex128": 16,
    "complex64": 8,
    "complex32": 4,
}
"""Bytes per element."""
