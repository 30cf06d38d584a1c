"""hpir: a compiler for training PyTorch models on many devices.

The whole training step, forward and backward, as MLIR; sharded and scheduled by passes; run as torch callables.

Importing hpir is light: torch and MLIR load when something that needs them is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import CaptureError, HpirError, PassError, PlanError, RuntimeFault

if TYPE_CHECKING:
    from .compiler import compile, compile_program  # noqa: A004
    from .ir_passes.pass_manager import run_passes
    from .lowering.exported import Exported, export
    from .plan import Plan
    from .runtime.program import Program
    from .runtime.simulate import SimulationResult, simulate
    from .runtime.step import Step
    from .runtime.weighted_loss import WeightedLoss

__version__ = "0.1.0"

__all__ = [
    "CaptureError",
    "Exported",
    "HpirError",
    "PassError",
    "Plan",
    "PlanError",
    "Program",
    "RuntimeFault",
    "SimulationResult",
    "Step",
    "WeightedLoss",
    "compile",
    "compile_program",
    "export",
    "run_passes",
    "simulate",
]

_LAZY = {
    "Exported": "lowering.exported",
    "Plan": "plan",
    "Program": "runtime.program",
    "SimulationResult": "runtime.simulate",
    "Step": "runtime.step",
    "WeightedLoss": "runtime.weighted_loss",
    "compile": "compiler",
    "compile_program": "compiler",
    "export": "lowering.exported",
    "run_passes": "ir_passes.pass_manager",
    "simulate": "runtime.simulate",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'hpir' has no attribute '{name}'")
    value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
