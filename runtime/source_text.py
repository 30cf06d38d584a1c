"""Pieces of Python source: identifiers, and lines that are not too long."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence

from ..errors import RuntimeFault

WIDTH = 116
"""Longest line of the text for people."""


class Names:
    """Gives out Python identifiers, each once."""

    def __init__(self, taken: Iterable[str]):
        self.taken = set(taken)
        self._next: dict[str, int] = {}

    def fresh(self, wanted: str) -> str:
        """Return an identifier like `wanted` that was not given out before."""
        base = re.sub(r"[^0-9A-Za-z_]", "_", wanted).strip("_") or "value"
        if base[0].isdigit():
            base = f"v{base}"
        name, number = base, self._next.get(base, 1)
        while name in self.taken or keyword.iskeyword(name):
            name, number = f"{base}_{number}", number + 1
        self._next[base] = number
        self.taken.add(name)
        return name


def identifier(text: str) -> str:
    """Return `text`, which must be an identifier.

    Raises:
        RuntimeFault: it is not.
    """
    if not text.isidentifier() or keyword.iskeyword(text):
        raise RuntimeFault(f"malformed name '{text}', expected an identifier")
    return text


def one_line(text: str) -> str:
    """Return `text` on one line, fit for a comment."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def is_plain(name: str) -> bool:
    """Tell whether `name` may stand before ``=`` in a call."""
    return name.isidentifier() and not keyword.iskeyword(name)


def tuple_text(items: Sequence[str]) -> str:
    """Return the source of a tuple of these items."""
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def filled(items: Sequence[str]) -> list[str]:
    """Return items as lines of a parenthesis, as many on each as fit."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 2 <= WIDTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"        {item},")
    return lines
