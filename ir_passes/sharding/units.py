"""Module patterns: how a plan names groups of parameters.

A pattern is a list of components joined by dots, as a module or parameter name is: each component is matched by shell
rules (`*`, `?`, `[abc]`, case counts), and ``**`` stands for any number of components, none included. ``layers.*``
matches ``layers.0`` and not ``layers.0.attn``. A pattern is tested on a parameter's own name and on every module above
it, so it claims all parameters below a module that it matches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from ...errors import nearest

ROOT = ""
"""The unit of the parameters that no pattern claims."""


def ancestors(name: str) -> list[str]:
    """Return a parameter's own name and the modules above it, innermost first, the root module left out.

    Example:
        >>> ancestors("layers.0.weight")
        ['layers.0.weight', 'layers.0', 'layers']
    """
    components = name.split(".")
    return [".".join(components[:count]) for count in range(len(components), 0, -1)]


@lru_cache(maxsize=1 << 16)
def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a whole name, component by component."""
    return _match(tuple(pattern.split(".")), tuple(name.split(".")))


def _match(pattern: tuple[str, ...], name: tuple[str, ...]) -> bool:
    # Greedy with one backtracking point, as globbing is done: a later `**` makes an earlier one's choice final.
    at = here = 0
    star: int | None = None
    resume = 0
    while here < len(name):
        if at < len(pattern) and pattern[at] == "**":
            star, resume = at, here
            at += 1
        elif at < len(pattern) and fnmatchcase(name[here], pattern[at]):
            at += 1
            here += 1
        elif star is not None:
            resume += 1
            at, here = star + 1, resume
        else:
            return False
    return all(component == "**" for component in pattern[at:])


def innermost_match(names: Iterable[str], patterns: Sequence[str]) -> str | None:
    """Return the innermost module (or the parameter itself) that a pattern matches, or None.

    Args:
        names: all names of one parameter: several where it is tied.
        patterns: module patterns.

    Returns:
        The matched name with the most components; of equally long ones, that of the earlier parameter name.
    """
    best: str | None = None
    for name in names:
        for candidate in ancestors(name):
            if best is not None and candidate.count(".") <= best.count("."):
                break
            if any(matches(pattern, candidate) for pattern in patterns):
                best = candidate
                break
    return best


def matches_any(names: Iterable[str], patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches a parameter, under any of its names, or a module above it."""
    return innermost_match(names, patterns) is not None


def assign_units(parameters: Sequence[Sequence[str]], units: Sequence[str]) -> list[str]:
    """Return the unit of each parameter (given by its names): the innermost matched module, else `ROOT`."""
    found = (innermost_match(names, units) for names in parameters)
    return [ROOT if unit is None else unit for unit in found]


def unmatched_patterns(parameters: Iterable[Sequence[str]], patterns: Sequence[str]) -> list[tuple[str, str]]:
    """Return each pattern that matches no module and no parameter, with a hint: the nearest names, or an empty text."""
    candidates: dict[str, None] = {}
    for names in parameters:
        for name in names:
            candidates.update(dict.fromkeys(ancestors(name)))
    failed = [pattern for pattern in patterns if not any(matches(pattern, name) for name in candidates)]
    return [(pattern, nearest(pattern, candidates)) for pattern in failed]
