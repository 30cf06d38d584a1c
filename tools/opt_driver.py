"""The driver behind `hp-opt`: reads modules, runs a pipeline over them, prints them; with mlir-opt's spellings.

`OptDriver` is a class with hooks, so that a project with dialects or options of its own derives its tool from it.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from torch_mlir import ir

from ..dialect.context import make_context
from ..dialect.diagnostics import Diagnostic, IRError, collect
from ..dialect.parsing import parse_module, parse_module_file
from ..errors import HpirError, PassError
from ..ir_passes.pass_manager import Instrumentation, PassRunner, expand_pipeline
from ..ir_passes.pipeline_text import PipelineItem, parse_flag, parse_pipeline
from .expected_diagnostics import check_expectations, read_expectations
from .output import write_output
from .source import SEPARATOR, Chunk, Source, read_source, split_source

# `-cse`, as mlir-opt also takes it: one dash and a long name.
_ONE_DASH = re.compile(r"-[A-Za-z][A-Za-z0-9-]")


class UsageError(PassError):
    """The command line is wrong."""


class _ArgumentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: error: {message}")


class OptDriver:
    """Runs one invocation of the tool. Override the hooks to extend it.

    Hooks, in the order of their calls: `register_arguments`, `make_context`, `parse`, `run`, `print`.
    """

    program = "hp-opt"
    summary = "Run passes over MLIR modules of training steps."

    def __init__(self) -> None:
        self.options = argparse.Namespace()
        self._parser = _ArgumentParser(
            prog=self.program,
            usage=f"{self.program} [options] [passes] [input file, default: -]",
            description=self.summary,
            add_help=False,
            allow_abbrev=False,
        )

    def register_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options; whatever else begins with dashes on the command line is a pass."""
        parser.add_argument("-h", "--help", action="store_true", help="show this and every pass, and exit")
        parser.add_argument("--version", action="store_true", help="show the versions, and exit")
        parser.add_argument("--list-passes", action="store_true", help="list the passes with their options, and exit")
        parser.add_argument("-o", dest="output", metavar="FILE", default="-", help="output file (default: stdout)")
        parser.add_argument("--pass-pipeline", metavar="TEXT", help="passes to run, such as 'cse,hp-fsdp{axes=dp}'")
        parser.add_argument("--dump-pass-pipeline", action="store_true", help="print the expanded pipeline on stderr")
        parser.add_argument("--split-input-file", action="store_true", help=f"process parts between '{SEPARATOR}'")
        parser.add_argument(
            "--verify-diagnostics", action="store_true", help="check what is reported against expected-error marks"
        )
        parser.add_argument("--emit-bytecode", action="store_true", help="write bytecode instead of text")
        parser.add_argument("--mlir-print-debuginfo", action="store_true", help="print locations")
        parser.add_argument("--mlir-print-ir-before-all", action="store_true", help="print IR before each pass")
        parser.add_argument("--mlir-print-ir-after-all", action="store_true", help="print IR after each pass")
        parser.add_argument("--mlir-timing", action="store_true", help="print the time of each pass on stderr")

    def make_context(self) -> ir.Context:
        """Return the context that modules live in."""
        return make_context()

    def parse(self, source: Source, chunk: Chunk | None, context: ir.Context) -> ir.Module:
        """Parse and verify one module: the whole of `source`, or one chunk of it.

        Raises:
            IRError: it is malformed.
        """
        if chunk is not None:
            return parse_module(chunk.padded, context)
        if source.path is not None:  # MLIR reads the file itself, so that locations have its name
            return parse_module_file(source.path, context)
        return parse_module(source.data, context)

    def run(self, module: ir.Module, runner: PassRunner) -> None:
        """Run the passes over a module.

        Raises:
            PassError: a pass refuses it.
        """
        runner.run(module.operation)

    def print(self, module: ir.Module) -> bytes:
        """Return what is written for a module."""
        if self.options.emit_bytecode:
            buffer = io.BytesIO()
            module.operation.write_bytecode(buffer)
            return buffer.getvalue()
        # The module was verified after parsing and after each pass; printing would do it once more.
        text: bytes = module.operation.get_asm(
            binary=True, enable_debug_info=self.options.mlir_print_debuginfo, assume_verified=True
        )
        return text if text.endswith(b"\n") else text + b"\n"

    def main(self, arguments: Sequence[str]) -> int:
        """Run the tool and return its exit status; a user's mistake is one message on stderr."""
        try:
            return self._main(arguments)
        except BrokenPipeError:
            return 1  # whoever read our output has gone; there is nobody to tell
        except KeyboardInterrupt:
            return 130
        except HpirError as error:
            text = str(error)
            print(text if "error: " in text else f"{self.program}: error: {text}", file=sys.stderr)
            return 1

    def _main(self, arguments: Sequence[str]) -> int:
        inputs, flags = self._parse_arguments(arguments)
        information = self._information()
        if information:
            write_output("-", information.encode())
            return 0
        context = self.make_context()
        instrumentation = Instrumentation(
            print_before_all=self.options.mlir_print_ir_before_all,
            print_after_all=self.options.mlir_print_ir_after_all,
            debug_info=self.options.mlir_print_debuginfo,
            timing=self.options.mlir_timing,
        )
        runner = PassRunner(context, expand_pipeline(self._pipeline(flags)), instrumentation)
        if self.options.dump_pass_pipeline:
            print(runner, file=sys.stderr)
        return self._process(read_source(inputs), context, runner)

    def _information(self) -> str:
        """Return the text that `--help` and the like ask for; empty where none is asked for."""
        if not (self.options.help or self.options.list_passes or self.options.version):
            return ""
        # Imports every pass, so only where it is needed.
        from .opt_information import PASSES_HELP, list_passes, versions

        if self.options.version:
            return versions()
        if self.options.list_passes:
            return list_passes()
        return f"{self._parser.format_help()}\n{PASSES_HELP}\n\n{list_passes()}"

    def _parse_arguments(self, arguments: Sequence[str]) -> tuple[str, list[PipelineItem]]:
        """Fill `options`; return the input and the passes given as flags, in order."""
        self.register_arguments(self._parser)
        doubled = ["-" + argument if _ONE_DASH.match(argument) else argument for argument in arguments]
        self.options, rest = self._parser.parse_known_args(doubled)
        inputs = [argument for argument in rest if argument == "-" or not argument.startswith("-")]
        if len(inputs) > 1:
            raise UsageError(f"{self.program}: error: expected one input, got: {' '.join(inputs)}")
        flags = [parse_flag(argument) for argument in rest if argument not in inputs and argument != "--"]
        if flags and self.options.pass_pipeline is not None:
            raise flags[0].place.error("passes as flags and --pass-pipeline exclude each other")
        return (inputs or ["-"])[0], flags

    def _pipeline(self, flags: list[PipelineItem]) -> Sequence[PipelineItem]:
        if self.options.pass_pipeline is not None:
            return parse_pipeline(self.options.pass_pipeline, source="--pass-pipeline")
        return flags

    def _process(self, source: Source, context: ir.Context, runner: PassRunner) -> int:
        chunks: list[Chunk | None] = [None]
        if not source.is_bytecode:
            text = source.text()
            if self.options.split_input_file:
                chunks = [chunk for chunk in split_source(text) if chunk.text.strip()]
            elif self.options.verify_diagnostics:
                chunks = [Chunk(text, 0)]
        outputs: list[bytes] = []
        failed = False
        for chunk in chunks:
            output, diagnostics = self._process_one(source, chunk, context, runner)
            if self.options.verify_diagnostics and chunk is not None:
                expectations, malformed = read_expectations(chunk.text, source.name, chunk.line)
                diagnostics = malformed + check_expectations(expectations, diagnostics, source.name)
            for diagnostic in diagnostics:
                print(diagnostic, file=sys.stderr)
                failed = failed or diagnostic.severity == "error"
            outputs.append(output)
        if failed and (len(chunks) == 1 or self.options.output != "-"):
            return 1  # a file is written whole or not at all; on stdout, the parts that passed are shown
        separator = f"{SEPARATOR}\n".encode()
        write_output(self.options.output, separator.join(outputs), is_binary=self.options.emit_bytecode)
        return 1 if failed else 0

    def _process_one(
        self, source: Source, chunk: Chunk | None, context: ir.Context, runner: PassRunner
    ) -> tuple[bytes, list[Diagnostic]]:
        """Return what to write, nothing after an error, and everything reported, at places of the input."""
        output = b""
        with collect() as diagnostics:
            try:
                module = self.parse(source, chunk, context)
                self.run(module, runner)
                output = self.print(module)
            except IRError as error:
                diagnostics.extend(error.diagnostics)
        return output, [_at_source(diagnostic, source) for diagnostic in diagnostics]


def _at_source(diagnostic: Diagnostic, source: Source) -> Diagnostic:
    """Give the input's name to places in text that MLIR got from memory, and to what has no place at all."""
    place = diagnostic.place
    if place.startswith("-:") and source.name != "-":
        place = source.name + place[1:]
    notes = tuple(_at_source(note, source) for note in diagnostic.notes)
    return replace(diagnostic, place=place, notes=notes)
