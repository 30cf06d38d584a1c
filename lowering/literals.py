"""Reading MLIR's dense element attributes into plain numbers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from torch_mlir import ir

from ..runtime.program import Arg


def literal_data(attribute: ir.Attribute) -> tuple[Arg, ...] | None:
    """Return the elements of a dense attribute in row-major order, or None for what is not one of a known dtype.

    Floats come back exactly: float32, float16 and bfloat16 are all doubles.
    """
    if not isinstance(attribute, (ir.DenseElementsAttr, ir.DenseIntElementsAttr, ir.DenseFPElementsAttr)):
        return None
    text = str(ir.ShapedType(attribute.type).element_type)
    count = 1
    for size in ir.ShapedType(attribute.type).shape:
        count *= size
    if count == 0:
        return ()
    read = _READERS.get(text)
    if read is None:
        return None
    values = read(attribute)
    return tuple(values) * count if len(values) == 1 else tuple(values)


def _buffer(attribute: Any, format_: str, width: int) -> list[Any]:
    raw = bytes(
        memoryview(attribute).cast("B") if memoryview(attribute).contiguous else memoryview(attribute).tobytes()
    )
    return list(struct.unpack(f"<{len(raw) // width}{format_}", raw))


def _plain(attribute: Any) -> list[Any]:
    return [attribute[index] for index in range(1 if attribute.is_splat else len(attribute))]


def _halves(unpack: Callable[[int], float]) -> Callable[[Any], Sequence[Any]]:
    def read(attribute: Any) -> Sequence[Any]:
        return [unpack(bits) for bits in _buffer(attribute, "H", 2)]

    return read


def _bfloat16(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def _float16(bits: int) -> float:
    return float(struct.unpack("<e", struct.pack("<H", bits))[0])


_READERS: dict[str, Callable[[Any], Sequence[Any]]] = {
    "f64": _plain,
    "f32": _plain,
    "i1": lambda attribute: [bool(value) for value in _plain(attribute)],
    "bf16": _halves(_bfloat16),
    "f16": _halves(_float16),
    **dict.fromkeys(("si64", "si32", "si16", "si8", "ui8", "i64", "i32", "i16", "i8"), _plain),
}
