"""The project's commands, run in this process: a process of its own spends most of its time on importing torch."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def call(command: str, *arguments: str | Path, cwd: Path, stdin: str = "") -> Done:
    """Run a command, such as ``hp-run``, in a directory; what it imports from there is forgotten afterwards."""
    main = importlib.import_module(f"hpir.tools.{command.replace('-', '_')}").main
    before = set(sys.modules)
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(cwd)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(sys, "argv", [command, *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        try:
            status = main()
        except SystemExit as exit_:
            status = exit_.code
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(cwd)):
            del sys.modules[name]
    return Done(status or 0, _printed(out), _printed(err))


def _printed(stream: io.TextIOWrapper[io.BytesIO]) -> str:
    return stream.buffer.getvalue().decode()
