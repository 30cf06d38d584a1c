"""Files of costs as nested tables: what they leave out, and how they are written. `costs` says what they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

KEY = "[key]"
"""What pydantic adds to the path of a key that is wrong."""

_LINK = ("latency", "bandwidth")


def merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Put nested tables over others, which are changed, and return them."""
    for key, value in over.items():
        known = base.get(key)
        base[key] = merged(known, value) if isinstance(known, dict) and isinstance(value, Mapping) else value
    return base


def inherit(costs: dict[str, Any], kinds: Sequence[str]) -> None:
    """Give links what they leave out, as `Costs.of` says. What is no table is left as it is.

    Args:
        costs: tables of costs; changed.
        kinds: names of the tables that an axis may have.
    """
    links, axes = costs["links"], costs.get("axes")
    if not isinstance(links, dict):
        return
    for kind in kinds:
        if isinstance(links.get(kind), Mapping):
            links[kind] = {**_own(links), **links[kind]}
    if not isinstance(axes, Mapping):
        return
    costs["axes"] = axes = dict(axes)
    for name, axis in axes.items():
        if not isinstance(axis, Mapping):
            continue
        axes[name] = filled = {**_own(links), **axis}
        for kind in kinds:
            table, around = axis.get(kind, {}), links.get(kind, {})
            if isinstance(table, Mapping) and isinstance(around, Mapping) and (table or around):
                filled[kind] = {**_own(links), **around, **_own(axis), **table}


def _own(links: Mapping[str, Any]) -> dict[str, Any]:
    return {key: links[key] for key in _LINK if key in links}


def is_given(data: Mapping[str, Any], path: Sequence[str | int]) -> bool:
    """Return whether nested tables have what pydantic names by a path."""
    found: Any = data
    for part in path:
        if part == KEY:
            return True
        if not isinstance(found, Mapping) or part not in found:
            return False
        found = found[part]
    return True


def toml_lines(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[str]:
    """Return a nested table as lines of TOML: its values, then its tables."""
    lines = ["", f"[{'.'.join(map(_key, path))}]"] if path and not all(_is_table(v) for v in table.values()) else []
    lines += [f"{_key(name)} = {_value(value)}" for name, value in table.items() if not _is_table(value)]
    for name, value in table.items():
        if _is_table(value):
            lines += toml_lines(value, (*path, name))
    return lines


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)
