"""What torch says of a step it cannot trace, as a `CaptureError` at the user's line with advice that fits here."""

from __future__ import annotations

import ast
import contextlib
import logging
import re
import traceback
import warnings
from collections.abc import Iterator

from torch._dynamo.exc import TorchDynamoException
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from ..errors import CaptureError
from .source_places import is_user_file


@contextlib.contextmanager
def capture_errors(source: str) -> Iterator[None]:
    """Turn whatever torch says of a step it cannot trace into a `CaptureError` at the user's line."""
    try:
        yield
    except CaptureError:
        raise
    except (
        TorchDynamoException,
        RuntimeError,
        ValueError,
        TypeError,
        AssertionError,
        NotImplementedError,
        LookupError,
        AttributeError,
    ) as error:
        frames = list(getattr(error, "real_stack", None) or []) + list(traceback.extract_tb(error.__traceback__))
        places = [f"{frame.filename}:{frame.lineno}" for frame in frames if is_user_file(frame.filename)]
        raise CaptureError(f"{places[-1] if places else source}: cannot capture: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    """Return what went wrong in one line: torch's headline, its explanation and the advice that fits here."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    if lines and not isinstance(error, (TorchDynamoException, RuntimeError)):
        text = f"{type(error).__name__}: {text}"
    found = [line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:")]
    hints = [line.removeprefix("Hint:").strip() for line in lines if line.startswith("Hint:")]
    hints = [hint for hint in hints if not any(word in hint for word in _NOT_ADVICE)]
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)) or _NO_DATA in text:
        what = f"'{error.func}'" if hasattr(error, "func") else "this"
        text = f"{what} needs the values of a tensor, which are not known before the step runs"
        hints = ["keep such values in tensors, with torch.where or a mask"]
    if found:
        text = f"{text}: {found[0]}"
    return f"{text} ({hints[0].rstrip('.')})" if hints else text


# What torch says when Python asks a fake tensor for its values: float(x), x.tolist(), x.numpy().
_NO_DATA = "data is not allocated yet"

# Advice about torch.compile's own switches, which have no say in an export.
_NOT_ADVICE = ("torch.compile", "torch._dynamo", "set_stance", "file an issue", "fullgraph")

_SIDE_EFFECTS = "While compiling, we found certain side effects"

_LOGGERS = ("torch._subclasses.fake_tensor", "torch._dynamo", "torch.fx.experimental.symbolic_shapes")


@contextlib.contextmanager
def quiet(source: str) -> Iterator[None]:
    """Keep torch from logging tracebacks of what becomes a `CaptureError`; hear what it says of side effects.

    Raises:
        CaptureError: the forward assigns to an attribute of the model, which a compiled step would not do.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(record=True) as heard:
            warnings.filterwarnings("always", message=_SIDE_EFFECTS)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    for warning in heard:
        if str(warning.message).startswith(_SIDE_EFFECTS):
            _refuse_assignments(str(warning.message), source)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _refuse_assignments(message: str, source: str) -> None:
    """Refuse what dynamo heard the forward assign to the model; of a library's globals a step is better off without."""
    names = ast.literal_eval(message.partition("check: ")[2])
    changed = [name for name in names if name.startswith("L['self']")]
    if not changed:
        return
    path = ".".join(re.findall(r"_modules\['([^']+)'\]", changed[0])[1:])
    what = "a buffer" if "_buffers" in changed[0] else "an attribute"
    owner = f"module '{path}'" if path else "the model"
    raise CaptureError(
        f"{source}: the forward assigns to {what} of {owner}, which a compiled step would not do: "
        "keep state in a buffer and change it in place (copy_, add_)"
    )
