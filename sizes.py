"""Sizes that users give in MiB; for code that loads neither torch nor MLIR."""

from __future__ import annotations

MIB = 1 << 20
"""Bytes."""

MOST_MIB = 1e9
"""The most MiB that an option takes: a pebibyte, more than there is, and what a number of bytes is exact for."""
