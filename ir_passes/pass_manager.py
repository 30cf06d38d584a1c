"""Runs hpir's and MLIR's passes in MLIR's own pass manager, so that timing and IR printing see them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from ..dialect.diagnostics import IRError, error_at, mlir_errors
from ..errors import HpirError
from .base import ModulePass, PipelinePass
from .options import build_pass, spell_pass
from .pipeline_text import PipelineItem, parse_pipeline
from .registry import is_registered, load_pass, suggest

PipelineLike: TypeAlias = "str | Sequence[str | ModulePass | PipelinePass | PipelineItem]"
"""A textual pipeline, or a list of textual pipelines and passes."""

_ModuleT = TypeVar("_ModuleT", ir.Module, ir.Operation)

_RESTRICTED = re.compile(r"restricted to '([^']+)'")
_NO_PASS = re.compile(r"'([^']*)' does not refer to a registered pass")
_NO_OPTION = re.compile(r"no such option (\S+)")


class _ExternalPass(Protocol):
    """What MLIR hands to a pass written in Python."""

    def signal_pass_failure(self) -> None: ...


@dataclass(frozen=True)
class Instrumentation:
    """What a run prints on stderr besides its result, as mlir-opt's flags of the same names do."""

    print_before_all: bool = False
    print_after_all: bool = False
    debug_info: bool = False
    timing: bool = False


def run_passes(module: _ModuleT, pipeline: PipelineLike, *, instrumentation: Instrumentation | None = None) -> _ModuleT:
    """Run passes over a module, in place.

    Passes of hpir and of MLIR mix freely. MLIR's verifier runs after each pass that changed something.

    Args:
        module: an `ir.Module`, or the `builtin.module` operation of one.
        pipeline: ``"hp-set-mesh{axes=dp:2},cse,hp-fsdp{axes=dp}"``, or a list of such texts and pass objects.
        instrumentation: what to print on the way.

    Returns:
        `module`.

    Raises:
        PassError: a pass is unknown or refuses the module, an option is wrong, or the verifier finds what a pass left
            malformed; the text is the located diagnostic. The module may then be half transformed.
        PlanError: a plan that the pipeline names is wrong.

    Example:
        >>> run_passes(exported.module, "hp-simplify,hp-set-mesh{axes=dp:2},hp-fsdp{axes=dp}")
    """
    runner = PassRunner(module.operation.context, expand_pipeline(pipeline), instrumentation)
    runner.run(module.operation)
    return module


def expand_pipeline(pipeline: PipelineLike) -> list[ModulePass | PipelineItem]:
    """Return the passes a pipeline asks for: hpir's as objects, MLIR's as items; passes such as hp-plan expanded.

    Raises:
        PassError: the text, a pass name or an option is wrong.
        PlanError: a plan that the pipeline names is wrong.
    """
    expanded: list[ModulePass | PipelineItem] = []
    for part in [pipeline] if isinstance(pipeline, str) else pipeline:
        steps: Sequence[ModulePass | PipelinePass | PipelineItem]
        steps = parse_pipeline(part) if isinstance(part, str) else [part]
        for step in steps:
            if isinstance(step, PipelineItem) and is_registered(step.name):
                if step.nested is not None:
                    raise step.place.error(f"'{step.name}' is a pass, expected an op name before '('")
                step = build_pass(load_pass(step.name), step)
            if isinstance(step, PipelinePass):
                expanded.extend(expand_pipeline(step.expand()))
                continue
            if isinstance(step, PipelineItem) and step.nested is not None:
                _check_nested(step)
            expanded.append(step)
    return expanded


def _check_nested(item: PipelineItem) -> None:
    pending = list(item.nested or ())
    while pending:
        inner = pending.pop()
        if is_registered(inner.name):
            raise inner.place.error(f"{inner.name} runs on builtin.module, it cannot stand inside '{item.name}'")
        pending.extend(inner.nested or ())


class PassRunner:
    """One pass manager for a list of expanded passes; usable for several modules of its context."""

    def __init__(
        self,
        context: ir.Context,
        passes: Sequence[ModulePass | PipelineItem],
        instrumentation: Instrumentation | None = None,
    ):
        """Set up the pass manager.

        Raises:
            PassError: MLIR knows no such pass or refuses its options.
        """
        self._failures: list[IRError] = []
        self._context = context
        self._manager = PassManager("builtin.module", context)
        for pass_ in passes:
            if isinstance(pass_, PipelineItem):
                _add_mlir_pass(self._manager, pass_)
            else:
                self._manager.add(_guarded(pass_, self._failures), pass_.name, argument=spell_pass(pass_))
        if instrumentation is None:
            return
        if instrumentation.print_before_all or instrumentation.print_after_all:
            self._manager.enable_ir_printing(
                print_before_all=instrumentation.print_before_all,
                print_after_all=instrumentation.print_after_all,
                enable_debug_info=instrumentation.debug_info,
            )
        if instrumentation.timing:
            self._manager.enable_timing()

    def __str__(self) -> str:
        return str(self._manager)

    def run(self, module: ir.Operation) -> None:
        """Run the passes over a `builtin.module`, in place.

        Raises:
            PassError: a pass refuses the module or leaves it malformed.
        """
        if module.name != "builtin.module":
            raise error_at(module, f"passes run on a builtin.module, got: '{module.name}'", named=False)
        self._failures.clear()
        with mlir_errors(self._context):
            try:
                self._manager.run(module)
            except ir.MLIRError:
                if not self._failures:
                    raise
        if self._failures:
            raise self._failures.pop()


def _guarded(pass_: ModulePass, failures: list[IRError]) -> Callable[[ir.Operation, _ExternalPass], None]:
    """Wrap a pass for MLIR: its error is kept and raised outside, since it must not unwind through C++.

    The wrapper holds no reference to the pass manager, which would never be freed then: freed, it prints its timing.
    """

    def run(op: ir.Operation, handle: _ExternalPass) -> None:
        try:
            with op.context:
                pass_.run(op)
        except IRError as error:
            failures.append(error)
        except HpirError as error:
            located = error_at(op, f"{pass_.name}: {error}", named=False)
            located.__cause__ = error
            failures.append(located)
        else:
            return
        handle.signal_pass_failure()

    return run


def _add_mlir_pass(manager: PassManager, item: PipelineItem) -> None:
    text = str(item)
    try:
        try:
            manager.add(text)
        except ValueError as error:
            # A pass on functions, such as torch-mlir's decompositions, written without the nesting MLIR asks for.
            restricted = _RESTRICTED.search(str(error))
            if restricted is None or item.nested is not None:
                raise
            manager.add(f"{restricted[1]}({text})")
    except ValueError as error:
        raise _pass_refused(item, str(error)) from error


def _pass_refused(item: PipelineItem, text: str) -> IRError:
    """Say in our words why MLIR does not take a pass."""
    unknown = _NO_PASS.search(text)
    if unknown:
        name = unknown[1]
        return _find(item, name).place.error(f"unknown pass '{name}'{suggest(name)}")
    option = _NO_OPTION.search(text)
    if option:
        return (item.options_place or item.place).error(f"unknown option '{option[1]}' of {item.name}")
    lines = [line for line in text.splitlines() if line.strip()]
    return item.place.error(f"MLIR refuses '{item}': {lines[0] if lines else 'no reason given'}")


def _find(item: PipelineItem, name: str) -> PipelineItem:
    pending = [item]
    while pending:
        inner = pending.pop()
        if inner.name == name and inner.nested is None:
            return inner
        pending.extend(inner.nested or ())
    return item
