"""Reading the TOML files that users write, with errors that name file, line and column."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from .errors import PlanError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SYNTAX_PLACE = re.compile(r" \((?:at line (\d+), column (\d+)|at end of document)\)$")


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: the file.
        what: what it holds, for messages, such as "plan".

    Raises:
        PlanError: it cannot be read or is no TOML; the text begins with the path.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: cannot read {what}: {(error.strerror or 'unknown reason').lower()}") from None
    except UnicodeDecodeError:
        raise PlanError(f"{path}: expected TOML, got bytes that are no UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise PlanError(_syntax_error(path, str(error))) from None
    except ValueError:  # of Python's `int`, which bounds the digits it takes
        raise PlanError(f"{path}: an integer has too many digits") from None


def _syntax_error(path: str | Path, text: str) -> str:
    place = _SYNTAX_PLACE.search(text)
    if place is None:
        return f"{path}: {text.lower()}"
    where = f"{path}:{place[1]}:{place[2]}" if place[1] else str(path)
    message = text[: place.start()] + ("" if place[1] else " at the end of the file")
    return f"{where}: {message[0].lower()}{message[1:]}"
