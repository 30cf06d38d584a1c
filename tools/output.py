"""Output of the command-line tools: all of it or nothing."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from ..errors import PassError


def write_output(argument: str, data: bytes, *, is_binary: bool = False) -> None:
    """Write to a file, or to stdout for ``-``. A file is replaced as a whole, never left half-written.

    Args:
        argument: a path or ``-``.
        data: what to write.
        is_binary: refuse to write it to a terminal.

    Raises:
        PassError: it cannot be written.
        BrokenPipeError: whoever read stdout has gone.
    """
    try:
        if argument == "-":
            _write_stdout(data, is_binary)
        else:
            _replace_file(Path(argument), data)
    except BrokenPipeError:
        raise
    except OSError as error:
        where = "stdout" if argument == "-" else argument
        reason = (error.strerror or "unknown reason").lower()
        raise PassError(f"{where}: error: cannot write output: {reason}") from error


def _write_stdout(data: bytes, is_binary: bool) -> None:
    if sys.stdout is None:  # closed by the caller
        raise PassError("stdout: error: cannot write output: it is closed")
    if is_binary and sys.stdout.isatty():
        raise PassError("stdout: error: bytecode is not written to a terminal, use -o or a pipe")
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except OSError:
        # What could not be written is still buffered; without this the interpreter tries again at exit, and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _replace_file(path: Path, data: bytes) -> None:
    path = path.resolve()  # through symbolic links: they stay
    mode = None
    if path.exists():
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # a device or a pipe: there is nothing to replace
            path.write_bytes(data)
            return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
