"""Reading modules, as text or bytecode; what is wrong with one is an `IRError`."""

from __future__ import annotations

from pathlib import Path

from torch_mlir import ir

from .context import make_context
from .diagnostics import mlir_errors


def parse_module(source: str | bytes, context: ir.Context | None = None) -> ir.Module:
    """Parse and verify a module.

    Args:
        source: MLIR text, or bytes of text or bytecode.
        context: where to put it; a new context by default.

    Raises:
        IRError: it does not parse or verify; places read ``-:line:col``.
    """
    context = context or make_context()
    with mlir_errors(context):
        return ir.Module.parse(source, context)


def parse_module_file(path: str | Path, context: ir.Context | None = None) -> ir.Module:
    """Parse and verify a file of MLIR text or bytecode.

    Raises:
        IRError: it does not parse or verify, or cannot be read; places read ``path:line:col``.
    """
    context = context or make_context()
    with mlir_errors(context):
        return ir.Module.parseFile(str(path), context)
