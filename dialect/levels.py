"""Levels: what a module promises about itself, as `hp.level` on the module op."""

from __future__ import annotations

from torch_mlir import ir

from ..errors import nearest
from ..mesh import Mesh
from .attributes import find_mesh
from .diagnostics import error_at

LEVELS = ("joint", "annotated", "spmd", "staged", "program")
"""In the order of the road."""


def level_of(module: ir.Operation) -> str:
    """Return the module's level; a module that names none is at "joint".

    Raises:
        IRError: it names something else than a level.
    """
    module = module.operation
    if "hp.level" not in module.attributes:
        return "joint"
    attribute = module.attributes["hp.level"]
    if not isinstance(attribute, ir.StringAttr):
        raise error_at(module, f"expected hp.level to be a string, got: {attribute}")
    if attribute.value not in LEVELS:
        raise error_at(module, f"unknown level '{attribute.value}'{nearest(attribute.value, LEVELS)}")
    return str(attribute.value)


def set_level(module: ir.Operation, level: str) -> None:
    """State the module's level."""
    with module.operation.context:
        module.operation.attributes["hp.level"] = ir.StringAttr.get(level)


def require_level(module: ir.Operation, pass_name: str, levels: tuple[str, ...]) -> str:
    """Return the module's level, or raise an `IRError` that says which ones the pass takes."""
    level = level_of(module)
    if level not in levels:
        wanted = " or ".join(f"'{name}'" for name in levels)
        raise error_at(module, f"{pass_name} requires level {wanted}, got: '{level}'", named=False)
    return level


def require_mesh(module: ir.Operation, pass_name: str) -> tuple[str, Mesh]:
    """Return (symbol name, mesh) of a module, or raise an `IRError` that says which pass needs one."""
    found = find_mesh(module)
    if found is None:
        raise error_at(module, f"{pass_name}: the module has no mesh; run hp-set-mesh first", named=False)
    return found
