"""What torch says of a step it cannot trace, as a `CaptureError` at the user's line; silence while it is traced."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import sys
import traceback
import warnings
from collections.abc import Iterator
from traceback import FrameSummary

import torch
from torch._dynamo.exc import TorchDynamoException, Unsupported
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ...errors import CaptureError, HpirError
from .advice import reason
from .source_places import place_in

TRACE_ERRORS: tuple[type[BaseException], ...] = (
    TorchDynamoException,
    RuntimeError,
    ValueError,
    TypeError,
    AssertionError,
    NotImplementedError,
    LookupError,
    AttributeError,
    ArithmeticError,
    ImportError,
    NameError,
    OSError,
    SyntaxError,
    StopIteration,
    MemoryError,
)
"""What torch, or the user's code as torch runs it, raises."""

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
"""What a step on fake tensors raises where it asks for values."""


@contextlib.contextmanager
def capture_errors(source: str) -> Iterator[None]:
    """Turn whatever torch says of a step it cannot trace into a `CaptureError` at the user's line."""
    try:
        yield
    except CaptureError:
        raise
    except HpirError as error:
        raise CaptureError(f"{source}: {error}") from None
    except TRACE_ERRORS as error:
        frames = frames_of(error)
        place = place_in(frames)
        called = f"; called at {place.caller}" if place.caller else ""
        refusal = CaptureError(f"{place.where or source}: cannot capture: {reason(error, frames)}{called}")
        # A lock, say, held while something is set up once.
        refusal.may_settle = isinstance(error, Unsupported) and "context manager" in str(error)
        raise refusal from None


def frames_of(error: BaseException) -> list[FrameSummary]:
    """Return the stack of an error, outermost frame first: dynamo's of the user's code where it has one."""
    traced: list[FrameSummary] = list(getattr(error, "real_stack", None) or [])
    if traced:
        return traced
    return list(traceback.extract_tb(error.__traceback__))


_LOGGERS = ("torch._subclasses.fake_tensor", "torch._dynamo", "torch.fx.experimental.symbolic_shapes")

_SIDE_EFFECTS = "While compiling, we found certain side effects"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from logging or warning of what becomes a `CaptureError` or a remark."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.ExitStack() as stack:
            warnings.filterwarnings("ignore", message=f"{_SIDE_EFFECTS}|Error detected in ")
            stack.enter_context(_settings_kept())
            warnings.filterwarnings("ignore", module=r"torch\._(?:dynamo|functorch|subclasses)\b")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _settings_kept() -> Iterator[None]:
    """Put torch's global settings back, which dynamo sets as the step does."""
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Run the user's Python without a trace: nothing printed, logged or warned, random generators as before."""
    states = random.getstate(), torch.get_rng_state()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    disabled, handlers = logging.root.manager.disable, list(logging.root.handlers)
    try:
        logging.disable(logging.CRITICAL)
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        logging.root.handlers[:] = handlers  # logging.info() and its like add one where there is none
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if numpy is not None:
            numpy.random.set_state(numpy_state)
