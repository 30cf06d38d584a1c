"""HTML and SVG as text. Whatever comes from a Program is escaped here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

Attribute = str | int | float | bool


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: Attribute) -> Markup:
    """Return an element.

    Args:
        name: its tag.
        children: text, which is escaped, or markup.
        attributes: values by name; a trailing underscore is left off, other ones are hyphens. True stands for an
            attribute without a value, False leaves it out.
    """
    spelled = []
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            spelled.append(f" {key}")
        elif value is not False:
            shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
            spelled.append(f' {key}="{escape(shown)}"')
    inside = "".join(child if isinstance(child, Markup) else escape(child) for child in children)
    if name in _VOID:
        return Markup(f"<{name}{''.join(spelled)}>")
    if not inside and name in _EMPTY:
        return Markup(f"<{name}{''.join(spelled)}/>")
    return Markup(f"<{name}{''.join(spelled)}>{inside}</{name}>")


_VOID = frozenset({"input", "link", "meta"})
_EMPTY = frozenset({"rect", "line", "path", "circle"})


def joined(parts: Iterable[str]) -> Markup:
    """Return parts one after the other, text among them escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def table(caption: str, heads: Sequence[tuple[str, bool]], body: Iterable[Sequence[str]]) -> Markup:
    """Return a table.

    Args:
        caption: what it shows.
        heads: per column its head, and whether it holds numbers.
        body: per row, the cells.
    """
    head = joined(
        element("th", text, scope="col", **({"class_": "number"} if number else {})) for text, number in heads
    )
    lines = []
    for row in body:
        cells = [element("th", row[0], scope="row")]
        cells += [
            element("td", cell, **({"class_": "number"} if number else {}))
            for cell, (_, number) in zip(row[1:], heads[1:], strict=True)
        ]
        lines.append(element("tr", *cells))
    whole = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", head)),
        element("tbody", *lines),
    )
    return element("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)
