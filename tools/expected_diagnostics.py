"""``--verify-diagnostics``: what a test says it expects, against what was reported.

The marks are MLIR's: ``expected-error@+1 {{part of the message}}`` in a comment, with ``error``, ``warning``,
``remark`` or ``note``, and ``@+N``, ``@-N``, ``@above``, ``@below`` (the nearest line without a mark) or ``@unknown``
(no place) where it is not about its own line. After ``-re``, ``{{...}}`` inside the text is a regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..dialect.diagnostics import Diagnostic

_MARK = re.compile(r"expected-(error|warning|remark|note)(-re)? *(?:@([+-]\d+|above|below|unknown))? *\{\{(.*)\}\}\s*$")
_INTENDED = re.compile(r"//.*\bexpected-(error|warning|remark|note)\b")
_PATTERN = re.compile(r"\{\{(.*?)\}\}")


@dataclass(frozen=True)
class Expectation:
    """One mark. `line` is what it speaks of, None for no place; `place` is where it stands."""

    severity: str
    line: int | None
    text: str
    place: str
    is_pattern: bool = False

    def matches(self, diagnostic: Diagnostic, line: int | None) -> bool:
        """Tell whether a diagnostic at `line` is the expected one."""
        if diagnostic.severity != self.severity or line != self.line:
            return False
        if not self.is_pattern:
            return self.text in diagnostic.message
        parts = _PATTERN.split(self.text)  # literal, pattern, literal, ...
        pattern = "".join(f"(?:{part})" if index % 2 else re.escape(part) for index, part in enumerate(parts))
        return re.search(pattern, diagnostic.message) is not None


def read_expectations(text: str, name: str, first_line: int = 0) -> tuple[list[Expectation], list[Diagnostic]]:
    """Return the marks in a text, and an error for each comment that tries to be one and is not.

    Args:
        text: a module's text.
        name: what places call the input.
        first_line: lines of the input before the text.
    """
    lines = text.split("\n")
    marks = [_MARK.search(line) for line in lines]
    expectations, errors = [], []
    for index, (line, mark) in enumerate(zip(lines, marks, strict=True)):
        if mark is None:
            intended = _INTENDED.search(line)
            if intended:
                place = f"{name}:{first_line + index + 1}:{intended.start(1) + 1}"
                errors.append(Diagnostic("error", place, "expected a mark such as expected-error@+1 {{message}}"))
            continue
        severity, pattern, where, message = mark.groups()
        place = f"{name}:{first_line + index + 1}:{mark.start() + 1}"
        target: int | None = index
        if where == "unknown":
            target = None
        elif where == "above":
            target = _unmarked(marks, range(index - 1, -1, -1), index)
        elif where == "below":
            target = _unmarked(marks, range(index + 1, len(marks)), index)
        elif where:
            target = index + int(where)
        line_number = None if target is None else first_line + target + 1
        expectations.append(Expectation(severity, line_number, message, place, bool(pattern)))
    return expectations, errors


def _unmarked(marks: Sequence[re.Match[str] | None], candidates: Iterable[int], otherwise: int) -> int:
    return next((index for index in candidates if marks[index] is None), otherwise)


def check_expectations(
    expectations: Sequence[Expectation], diagnostics: Iterable[Diagnostic], name: str
) -> list[Diagnostic]:
    """Return an error for every diagnostic that no mark expects, and for every mark that nothing met."""
    open_marks = list(expectations)
    errors = []
    for diagnostic in _with_notes(diagnostics):
        line = _line_in(diagnostic.place, name)
        met = next((mark for mark in open_marks if mark.matches(diagnostic, line)), None)
        if met is not None:
            open_marks.remove(met)
        else:
            errors.append(
                Diagnostic("error", diagnostic.place, f"unexpected {diagnostic.severity}: {diagnostic.message}")
            )
    for mark in open_marks:
        errors.append(Diagnostic("error", mark.place, f"expected {mark.severity} was not reported: {mark.text}"))
    return errors


def _with_notes(diagnostics: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    for diagnostic in diagnostics:
        yield diagnostic
        yield from _with_notes(diagnostic.notes)


def _line_in(place: str, name: str) -> int | None:
    """Return the line of a place in the input `name`; None for no place, -1 for a place in another file."""
    if not place:
        return None
    file, line, _ = place.rsplit(":", 2)
    return int(line) if file == name else -1
