"""One function that gives an MLIR context with every dialect hpir uses."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect

from .hp import Hp


def make_context() -> ir.Context:
    """Return a new context with the torch and hp dialects, and MLIR's own, registered and loaded.

    Takes some 15 ms. Unregistered dialects are refused, as in `mlir-opt`.
    """
    context = ir.Context()
    torch_dialect.register_dialect(context)
    with context:
        Hp.load()
    return context
