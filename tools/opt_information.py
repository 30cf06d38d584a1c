"""Texts of ``hp-opt --help``, ``--list-passes`` and ``--version``, made from the passes' own fields and docstrings."""

from __future__ import annotations

import textwrap
from importlib.metadata import version

from ..ir_passes.options import describe_options
from ..ir_passes.registry import MLIR_PASSES, load_all, summary


def list_passes() -> str:
    """Return every pass with its summary and options, then MLIR's."""
    lines = []
    for name, cls in load_all().items():
        lines.append(f"  --{name}")
        lines.append(f"      {summary(cls)}")
        lines.extend(f"        {option}" for option in describe_options(cls))
    mlir = textwrap.fill(
        ", ".join(MLIR_PASSES), 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    return "\n".join(["hpir's passes:", *lines, "", "MLIR's passes run too, among them:", mlir, ""])


def versions() -> str:
    """Return the versions of hpir and of the MLIR below it."""
    return f"hpir {version('hpir')} (torch-mlir {version('torch-mlir')})\n"


PASSES_HELP = (
    "Passes run in the order given. A pass is a flag, with options after '=' or in braces: "
    "--hp-set-mesh='axes=pp:2,dp:2' --hp-fsdp{axes=dp} --cse"
)
