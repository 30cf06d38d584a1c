"""The `hp-translate` command: between representations of a training step. See `hp-translate --help`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import HpirError, PlanError, nearest
from .output import write_output
from .source import read_source


def main() -> int:
    """Run `hp-translate` on the process's arguments and return its exit status."""
    try:
        return translate(sys.argv[1:])
    except BrokenPipeError:
        return 1
    except HpirError as error:
        text = str(error)
        print(text if "error: " in text else f"hp-translate: error: {text}", file=sys.stderr)
        return 1


def make_parser() -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    parser = argparse.ArgumentParser(
        prog="hp-translate", description="Translate between representations of a training step.", allow_abbrev=False
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--export",
        metavar="PKG.MOD:BUILD",
        help="capture what the function BUILD returns: model, train_fn and batch; prints MLIR",
    )
    what.add_argument(
        "--to-program", action="store_true", help="lower a module to a Program, the directory given by -o"
    )
    what.add_argument("--to-python", action="store_true", help="print the torch code that a rank runs, for reading")
    parser.add_argument(
        "input", nargs="?", default="-", help="a module (or, for --to-python, a Program's directory); default: stdin"
    )
    parser.add_argument("-o", dest="output", metavar="PATH", default="-", help="output (default: stdout)")
    parser.add_argument("--mlir-print-debuginfo", action="store_true", help="with --export: print source locations")
    parser.add_argument(
        "--microbatches",
        type=int,
        metavar="N",
        help="parts of a data rank's batch (default: 1, or what the module is scheduled for)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random streams")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="with --to-python: whose code")
    parser.add_argument(
        "--joint", metavar="FILE", help="with --to-program: the unpartitioned module, kept for hp-run --check"
    )
    parser.add_argument(
        "--allow", action="append", default=[], metavar="NAMESPACE", help="a custom-op namespace the model may use"
    )
    return parser


def translate(arguments: Sequence[str]) -> int:
    """Run one translation and return the exit status.

    Raises:
        HpirError: a user's mistake; the text is the located message.
    """
    options = make_parser().parse_args(arguments)
    if options.export:
        _export(options)
    elif options.to_program:
        if options.output == "-":
            raise PlanError("--to-program writes a directory: name it with -o")
        _lowered(options).save(options.output)
    else:
        from ..runtime.program import Program
        from ..runtime.python_text import to_python

        directory = options.input != "-" and Path(options.input).is_dir()
        program = Program.load(options.input, allow=options.allow) if directory else _lowered(options)
        if not 0 <= options.rank < program.mesh.size:
            raise PlanError(f"--rank: the Program has ranks 0 to {program.mesh.size - 1}, got: {options.rank}")
        write_output(options.output, to_python(program, options.rank).encode())
    return 0


def _lowered(options: argparse.Namespace) -> Any:
    from ..lowering.to_program import to_program

    module = _read_module(options.input)
    reference = _read_module(options.joint) if options.joint else None
    return to_program(
        module, microbatches=options.microbatches, seed=options.seed, reference=reference, allow=options.allow
    )


def _read_module(argument: str) -> Any:
    from ..dialect.parsing import parse_module, parse_module_file

    source = read_source(argument)
    if source.path is not None:
        return parse_module_file(source.path)
    return parse_module(source.data if source.is_bytecode else source.text())


def _export(options: argparse.Namespace) -> None:
    from ..lowering.exported import export

    built = load_function(options.export)()
    if not isinstance(built, tuple) or len(built) != 3:
        raise PlanError(f"--export: {options.export} must return (model, train_fn, batch), got: {type(built).__name__}")
    exported = export(*built)
    write_output(options.output, exported.text(debug_info=options.mlir_print_debuginfo).encode())


def load_function(spec: str) -> Callable[[], Any]:
    """Import the function that ``pkg.mod:name`` names; the current directory is searched first.

    Raises:
        PlanError: the spelling is wrong, or there is no such module or function.
    """
    module_name, separator, name = spec.partition(":")
    if not separator or not module_name or not name:
        raise PlanError(f"expected PKG.MOD:FUNCTION, got: {spec}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise PlanError(f"cannot import '{module_name}': {error}") from None
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value)]
        raise PlanError(f"module '{module_name}' has no function '{name}'{nearest(name, names)}")
    found: Callable[[], Any] = function
    return found


if __name__ == "__main__":
    sys.exit(main())
