"""The exceptions a user of hpir may meet: one type per kind of mistake, each text saying where and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HpirError(Exception):
    """Base of every error that hpir raises on purpose. The text is complete; a traceback adds nothing for a user."""


class CaptureError(HpirError):
    """The model or its step function cannot be captured; the text names the user's file and line.

    Attributes:
        may_settle: the reason may be gone once the model has taken its first step, as where it notes something on
            itself.
    """

    may_settle = False


class PlanError(HpirError):
    """A plan is wrong; the text names the plan key and, for an unknown name, the nearest valid one."""


class PassError(HpirError):
    """A pass, the parser or a verifier refused a module; the text is the located diagnostic."""


class RuntimeFault(HpirError):  # noqa: N818 - the public name is fixed
    """A Program cannot be loaded or a step cannot run; the text names rank, function and op where there is one."""


_MARGIN = 0.35
"""How much less alike than the nearest name another one may be."""


def nearest(name: str, valid: Iterable[str], *, count: int = 3) -> str:
    """Return ``", did you mean 'x'?"`` for the valid names nearest to `name`, or an empty string when none is near."""
    close = difflib.get_close_matches(name, list(dict.fromkeys(valid)), n=count, cutoff=0.5)
    if not close:
        return ""
    # Beside a name that is nearly right, one that merely shares some letters is no help.
    likeness = {candidate: difflib.SequenceMatcher(None, candidate, name).ratio() for candidate in close}
    close = [candidate for candidate in close if likeness[candidate] >= likeness[close[0]] - _MARGIN]
    return ", did you mean " + " or ".join(f"'{candidate}'" for candidate in close) + "?"
