"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..errors import RuntimeFault


def write_files(texts: Mapping[Path, str]) -> None:
    """Write text files: each is complete beside its place before any takes it.

    Raises:
        RuntimeFault: one cannot be written; the others are then as they were, where nothing but that one is at fault.
    """
    ready: list[tuple[Path, Path]] = []
    try:
        for path, text in texts.items():
            ready.append((_beside(path, text), path))
        for scratch, path in ready:
            try:
                scratch.replace(path)
            except OSError as error:
                raise _fault(path, error) from None
    finally:
        for scratch, _ in ready:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)


def _beside(path: Path, text: str) -> Path:
    if path.is_dir():
        raise RuntimeFault(f"{path}: error: cannot write: is a directory")
    scratch: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        scratch = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # A scratch file is the user's alone; the page is like any other new file.
        mask = os.umask(0)
        os.umask(mask)
        scratch.chmod(0o666 & ~mask)
    except OSError as error:
        if scratch is not None:
            scratch.unlink(missing_ok=True)
        raise _fault(path, error) from None
    return scratch


def _fault(path: Path, error: OSError) -> RuntimeFault:
    return RuntimeFault(f"{path}: error: cannot write: {(error.strerror or str(error)).lower()}")
