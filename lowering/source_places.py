"""Where things are in the user's own code: what errors and IR locations name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

_PACKAGE = Path(__file__).parent.parent
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


def last_user_place(stack_trace: str) -> str:
    """Return ``file:line`` of the innermost user frame of a formatted stack, or an empty string."""
    place = ""
    for line in stack_trace.splitlines():
        head, separator, rest = line.strip().partition('", line ')
        if separator and head.startswith('File "') and is_user_file(head[6:]):
            place = f"{head[6:]}:{rest.split(',')[0]}"
    return place


def definition_place(function: Any) -> str:
    """Return ``file:line`` of a function's definition."""
    while hasattr(function, "func"):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "<unknown>:0"
