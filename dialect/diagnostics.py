"""Located errors, notes and remarks, as data. Only the tools turn them into text on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch_mlir import ir

from ..errors import PassError

_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')


@dataclass(frozen=True)
class Diagnostic:
    """One message at one place. `severity` is error, warning, remark or note; `place` is ``file:line:col`` or empty."""

    severity: str
    place: str
    message: str
    notes: tuple[Diagnostic, ...] = ()

    def __str__(self) -> str:
        head = f"{self.place}: " if self.place else ""
        return "\n".join([f"{head}{self.severity}: {self.message}", *map(str, self.notes)])


class IRError(PassError):
    """A pass or verifier refuses a module. Carries its diagnostics as data; its text is theirs."""

    def __init__(self, diagnostics: Sequence[Diagnostic]):
        super().__init__("\n".join(map(str, diagnostics)))
        self.diagnostics = tuple(diagnostics)


def place_of(location: ir.Location) -> str:
    """Return ``file:line:col`` of the first file location in `location`, or an empty string."""
    match = _FILE.search(str(location))
    if match is None:
        return ""
    # MLIR counts from 1; it says 0:0 of a file as a whole: bytecode, or a module that is not written out in its text.
    place = "1:1" if match[2] == "0" else f"{match[2]}:{match[3]}"
    return f"{match[1]}:{place}"


def error_at(
    op: ir.Operation, message: str, *, notes: Sequence[tuple[ir.Operation, str]] = (), named: bool = True
) -> IRError:
    """Build the error ``file:line:col: error: 'op.name' op <message>``, with a note at each other op involved.

    Args:
        op: where it went wrong.
        message: lower case, no full stop; ops, modules and parameters by name, the nearest valid spelling where one is.
        notes: other ops and what to say of each.
        named: False leaves out the ``'op.name' op`` prefix (for a message about the whole module).
    """
    op = op.operation
    text = f"'{op.name}' op {message}" if named else message
    return IRError(
        [
            Diagnostic(
                "error",
                place_of(op.location),
                text,
                tuple(Diagnostic("note", place_of(other.operation.location), said) for other, said in notes),
            )
        ]
    )


_sink: ContextVar[list[Diagnostic] | None] = ContextVar("hpir_diagnostics", default=None)


@contextmanager
def collect() -> Iterator[list[Diagnostic]]:
    """Gather the remarks and warnings that passes make within the block."""
    gathered: list[Diagnostic] = []
    token = _sink.set(gathered)
    try:
        yield gathered
    finally:
        _sink.reset(token)


def collecting() -> bool:
    """Return whether anybody gathers remarks: those that are costly to make need not be made otherwise."""
    return _sink.get() is not None


def remark(op: ir.Operation, message: str, *, severity: str = "remark") -> None:
    """Say something about an op that is no error; it is dropped where nobody collects."""
    sink = _sink.get()
    if sink is not None:
        op = op.operation
        sink.append(Diagnostic(severity, place_of(op.location), f"'{op.name}' op {message}"))


_SEVERITIES = {
    ir.DiagnosticSeverity.ERROR: "error",
    ir.DiagnosticSeverity.WARNING: "warning",
    ir.DiagnosticSeverity.REMARK: "remark",
    ir.DiagnosticSeverity.NOTE: "note",
}
# MLIR appends the whole op to some errors; a function is megabytes of it, and the place says which op it is.
_CURRENT_OP = "see current operation:"
_CURRENT_OP_NAME = re.compile(_CURRENT_OP + r'\s*(?:%[^"\n]* = )?"([\w.]+)"')


def from_mlir(info: ir.Diagnostic | ir.DiagnosticInfo) -> Diagnostic:
    """Turn a diagnostic of MLIR into data; notes that only print the op are dropped."""
    message, notes = info.message, []
    for note in info.notes:
        if not note.message.startswith(_CURRENT_OP):
            notes.append(from_mlir(note))
        elif not message.startswith("'"):
            # Checks of an op's declaration leave out its name, which the printed op has.
            op = _CURRENT_OP_NAME.match(note.message)
            message = f"'{op[1]}' {message if message.startswith('op ') else f'op {message}'}" if op else message
    return Diagnostic(_SEVERITIES[info.severity], place_of(info.location), message, tuple(notes))


@contextmanager
def mlir_errors(context: ir.Context) -> Iterator[None]:
    """Turn what MLIR reports within the block into ours: errors into an `IRError`, the rest into what `collect` has.

    Raises:
        IRError: the block raised an `MLIRError`.
    """
    said: list[Diagnostic] = []

    def listen(diagnostic: ir.Diagnostic) -> bool:
        said.append(from_mlir(diagnostic))
        return True

    handler = context.attach_diagnostic_handler(listen)
    try:
        yield
    except ir.MLIRError as error:
        errors = [from_mlir(info) for info in error.error_diagnostics]
        errors += [diagnostic for diagnostic in said if diagnostic.severity == "error"]
        raise IRError(errors or [Diagnostic("error", "", error.message)]) from None
    finally:
        handler.detach()
        sink = _sink.get()
        if sink is not None:
            sink.extend(diagnostic for diagnostic in said if diagnostic.severity != "error")
