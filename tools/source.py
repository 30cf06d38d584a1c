"""Input of the command-line tools: reading it, telling what it is, and splitting it into the modules it holds."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from ..dialect.diagnostics import Diagnostic, IRError

_BYTECODE = b"ML\xefR"
SEPARATOR = "// -----"
STDIN = "<stdin>"

# MLIR's parser recurses: so many brackets in a row are no module, and would overflow its stack.
_DEEP = re.compile(rb"[\[({<]{1000}")


@dataclass(frozen=True)
class Source:
    """An input: what messages call it, its bytes, and the file MLIR can read it from (None for a pipe)."""

    name: str
    data: bytes
    path: Path | None = None

    @property
    def is_bytecode(self) -> bool:
        """Whether this is MLIR bytecode, not text."""
        return self.data.startswith(_BYTECODE)

    def error(self, message: str, line: int = 1, column: int = 1) -> IRError:
        """Build an error at a place of this input."""
        return IRError([Diagnostic("error", f"{self.name}:{line}:{column}", message)])

    def text(self) -> str:
        """Return the text.

        Raises:
            IRError: it is not text; the error has the place of the first byte that is not.
        """
        try:
            text = self.data.decode()
            bad = self.data.find(b"\0")
            problem = "input is binary, neither MLIR text nor bytecode"
        except UnicodeDecodeError as error:
            text, bad = "", error.start
            problem = f"input is not UTF-8 text (byte 0x{self.data[bad]:02x})"
        if bad >= 0:
            line_begin = self.data.rfind(b"\n", 0, bad) + 1
            raise self.error(problem, self.data.count(b"\n", 0, bad) + 1, bad - line_begin + 1)
        return text


@dataclass(frozen=True)
class Chunk:
    """One module's text and the line of the input before it, counted from 0."""

    text: str
    line: int

    @property
    def padded(self) -> str:
        """The text with as many lines before it as in the input, so that places are the input's."""
        return "\n" * self.line + self.text


def read_source(argument: str) -> Source:
    """Read a file, or stdin for ``-``.

    Raises:
        IRError: it cannot be read, or is empty.
    """
    if argument == "-":
        # Python sets stdin to None where the caller closed it.
        source = Source(STDIN, sys.stdin.buffer.read() if sys.stdin else b"")
    else:
        try:
            path = Path(argument)
            # Only a regular file can be read a second time, by MLIR; what a pipe gave is gone.
            source = Source(argument, path.read_bytes(), path if path.is_file() else None)
        except (OSError, ValueError) as error:  # ValueError: no file can have that name
            reason = str(getattr(error, "strerror", None) or error).lower()
            raise IRError([Diagnostic("error", argument, f"cannot read input: {reason}")]) from error
    if not source.data.strip():
        raise source.error("input is empty")
    deep = _DEEP.search(source.data)
    if deep is not None:
        line_begin = source.data.rfind(b"\n", 0, deep.start()) + 1
        line = source.data.count(b"\n", 0, deep.start()) + 1
        raise source.error("input nests too deeply", line, deep.start() - line_begin + 1)
    return source


def split_source(text: str) -> list[Chunk]:
    """Split text at lines that hold nothing but ``// -----``."""
    chunks: list[Chunk] = []
    lines: list[str] = []
    begin = 0
    for number, line in enumerate(text.split("\n")):
        if line.rstrip() == SEPARATOR:
            chunks.append(Chunk("\n".join([*lines, ""]), begin))
            lines, begin = [], number + 1
        else:
            lines.append(line)
    chunks.append(Chunk("\n".join(lines), begin))
    return chunks
