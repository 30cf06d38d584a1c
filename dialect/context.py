"""One function that gives an MLIR context with every dialect hpir uses."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir._mlir_libs import _mlir
from torch_mlir.dialects import torch as torch_dialect

from .hp import Hp

# Where MLIR's bindings look for the Python classes of a dialect's ops. Without this they search for a module
# `torch_mlir.dialects.hp` again, and in vain, each time an `hp` op is touched: 0.1 ms per op.
_mlir.globals.append_dialect_search_prefix(__package__)


def make_context() -> ir.Context:
    """Return a new context with the torch and hp dialects, and MLIR's own, registered and loaded.

    Takes some 15 ms. Unregistered dialects are refused, as in `mlir-opt`.
    """
    context = ir.Context()
    torch_dialect.register_dialect(context)
    with context:
        Hp.load()
    return context
