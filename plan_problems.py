"""What is wrong with a plan, in our words: once per key, with what was expected and the nearest valid spelling."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .errors import PlanError, nearest
from .plan_sections import SECTIONS


def plan_error(source: str, problems: Sequence[tuple[str, str]]) -> PlanError:
    """Build the error for (key, message) pairs."""
    return PlanError("\n".join(f"{source}: {key}: {message}" for key, message in problems))


def shown(value: object) -> str:
    """Spell a value as TOML would, as far as that is short."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def problems_of(error: ValidationError) -> list[tuple[str, str]]:
    """Say in our words what pydantic found, once per key (it reports a union once per arm)."""
    problems: dict[str, tuple[str, str]] = {}
    for details in error.errors(include_url=False):
        key, message = _problem(details)
        problems.setdefault(key.partition("[")[0] if not key.startswith("tensor") else key, (key, message))
    return list(problems.values())


def _problem(details: ErrorDetails) -> tuple[str, str]:
    section, *rest = details["loc"]
    key = str(section)
    if rest and isinstance(rest[0], int):
        key += f"[{rest.pop(0)}]"
    name = str(rest.pop(0)) if rest else ""
    key += f".{name}" if name else ""
    key += "".join(f"[{part}]" for part in rest if isinstance(part, int))  # the others are names of a union's arms
    model = SECTIONS.get(str(section))
    if details["type"] == "extra_forbidden":
        valid = ["mesh", *SECTIONS] if model is None else list(model.model_fields)
        return key, "unknown key" + (nearest(name or key, valid) or f" (keys: {', '.join(valid)})")
    if not name:
        expected = "a list of tables" if section == "tensor" and key == section else "a table"
    elif model is None:
        expected = "an integer"  # the size of a mesh axis
    else:
        expected = model.model_fields[name].description or ""
        if any(isinstance(part, int) for part in rest) and expected.startswith("a list"):
            expected = "text"
    if details["type"] == "missing":
        return key, f"missing, expected {expected}"
    value = details["input"]
    choices = re.findall("'([^']*)'", str(details.get("ctx", {}).get("expected", "")))
    hint = nearest(value, choices) if isinstance(value, str) else ""
    return key, f"expected {expected}, got: {shown(value)}{hint}"
