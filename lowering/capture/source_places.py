"""Where things are in the user's own code: what errors and IR locations name."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary
from types import CodeType
from typing import Any

import torch

_PACKAGE = Path(__file__).parent.parent.parent
_STANDARD_LIBRARY = str(Path(os.__file__).parent)
_OWN = (
    str(Path(torch.__file__).parent),
    *(str(_PACKAGE / name) for name in ("compiler.py", "dialect", "ir_passes", "lowering", "runtime", "tools")),
)


def is_user_file(file: str) -> bool:
    """Return whether a source file is the user's or a model library's, not torch's, Python's or this package's."""
    if file.startswith(("<", *_OWN)):
        return False
    return not file.startswith(_STANDARD_LIBRARY) or "site-packages" in file


def is_library_file(file: str) -> bool:
    """Return whether a source file is an installed package's."""
    return any(part in ("site-packages", "dist-packages") for part in Path(file).parts)


@dataclass(frozen=True)
class Place:
    """Where something is in the user's code.

    Attributes:
        where: ``file:line`` of the innermost frame of the user or of a model library; empty for none.
        caller: where the user's own code called the library, for one that lies in a library; else empty.
    """

    where: str = ""
    caller: str = ""

    def __str__(self) -> str:
        return self.where

    @property
    def is_own(self) -> bool:
        """Whether it is in the user's own code."""
        return bool(self.where) and not self.caller


def place_in(frames: Iterable[FrameSummary]) -> Place:
    """Return where a stack is in the user's code, from its outermost frame to its innermost."""
    users = [frame for frame in frames if is_user_file(frame.filename)]
    if not users:
        return Place()
    own = next((frame for frame in reversed(users) if not is_library_file(frame.filename)), None)
    caller = "" if own is None or own is users[-1] or not is_library_file(users[-1].filename) else _spelled(own)
    return Place(_spelled(users[-1]), caller)


def _spelled(frame: FrameSummary) -> str:
    return f"{frame.filename}:{frame.lineno}"


def last_user_place(stack_trace: str) -> str:
    """Return ``file:line`` of the innermost user frame of a formatted stack, or an empty string."""
    place = ""
    for line in stack_trace.splitlines():
        head, separator, rest = line.strip().partition('", line ')
        if separator and head.startswith('File "') and is_user_file(head[6:]):
            place = f"{head[6:]}:{rest.split(',')[0]}"
    return place


def definition_place(function: Any) -> str:
    """Return ``file:line`` of a function's definition, whatever is wrapped around it."""
    while hasattr(function, "func") or hasattr(function, "__wrapped__"):
        function = function.func if hasattr(function, "func") else function.__wrapped__
    if isinstance(function, torch.nn.Module):
        function = function.forward
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return f"{code.co_filename}:{_first_line(code)}" if code is not None else "<unknown>:0"


def _first_line(code: CodeType) -> int:
    """Return the line of a function's ``def``, which comes after its decorators."""
    for line in range(code.co_firstlineno, code.co_firstlineno + _MOST_DECORATOR_LINES):
        text = linecache.getline(code.co_filename, line)
        if re.match(rf"\s*(?:async\s+)?def\s+{re.escape(code.co_name)}\b", text):
            return line
    return code.co_firstlineno


_MOST_DECORATOR_LINES = 20
