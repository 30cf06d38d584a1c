"""The `hp-report` command: a page about a Program, simulated or measured. See `hp-report --help`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..errors import HpirError, PlanError


def main() -> int:
    """Run `hp-report` on the process's arguments and return its exit status."""
    try:
        return run(sys.argv[1:])
    except BrokenPipeError:
        return 1
    except HpirError as error:
        text = str(error)
        print(text if "error: " in text else f"hp-report: error: {text}", file=sys.stderr)
        return 1


def make_parser() -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    parser = argparse.ArgumentParser(
        prog="hp-report",
        description="Write a page about a Program: what its ranks do when, what memory they hold, what they send. "
        "One of the files to write may be '-', for standard output.",
        allow_abbrev=False,
    )
    parser.add_argument("program", help="a Program's directory")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page: one HTML file that needs nothing else")
    parser.add_argument("--json", metavar="FILE", help="the same as data")
    parser.add_argument("--trace", metavar="FILE", help="the timeline in the trace-event format of Chrome and Perfetto")
    parser.add_argument("--run", metavar="DIR", help="a profile of a run: what 'hp-run --profile' wrote")
    parser.add_argument("--costs", metavar="FILE", help="rates of the machine, TOML (default: built in)")
    parser.add_argument(
        "--device", metavar="TYPE", help="without --costs: whose built-in rates, such as cpu or cuda (default: cuda)"
    )
    parser.add_argument(
        "--allow", action="append", default=[], metavar="NAMESPACE", help="a custom-op namespace to allow"
    )
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status.

    Raises:
        HpirError: a user's mistake, or a file that cannot be read or written.
    """
    options = make_parser().parse_args(arguments)
    places = _places({"-o": options.output, "--json": options.json, "--trace": options.trace})
    for option, value in (("--costs", options.costs), ("--run", options.run)):
        if value is not None and not value.strip():
            raise PlanError(f"{option}: expected a path, got: '{value}'")
    from ..costs import DEFAULT_DEVICE, Costs, device_problem

    if options.costs is not None and options.device is not None:
        raise PlanError("--device: the costs file says which device it is for")
    if options.costs is not None:
        costs, costs_name = Costs.load(options.costs), options.costs
    else:
        device = DEFAULT_DEVICE if options.device is None else options.device
        if problem := device_problem(device):
            raise PlanError(f"--device: {problem}")
        costs = Costs.built_in(device)
        costs_name = f"built in for {costs.device}"
    from ..reporting.measured import read_profile
    from ..reporting.output import write_files
    from ..reporting.page import write_page
    from ..reporting.report import make_report, program_name
    from ..reporting.trace import trace_events
    from ..runtime.program import Program

    program = Program.load(options.program, allow=options.allow)
    measured = read_profile(options.run, program) if options.run is not None else None
    report = make_report(
        program, name=program_name(options.program), costs=costs, costs_name=costs_name, measured=measured
    )
    make_texts: dict[str, Callable[[], str]] = {
        "--trace": lambda: json.dumps(trace_events(report), separators=(",", ":")) + "\n",
        "-o": lambda: write_page(report),
        "--json": lambda: json.dumps(report.to_json(), separators=(",", ":")) + "\n",
    }
    texts = {place: make_texts[option]() for option, place in places.items()}
    write_files({Path(place): text for place, text in texts.items() if place != "-"})
    print(texts.get("-", ""), end="")
    return 0


def _places(asked: Mapping[str, str | None]) -> dict[str, str]:
    """Return where to write what is asked for, by option.

    Raises:
        PlanError: nothing is, or two options name one place.
    """
    places = {option: place for option, place in asked.items() if place is not None}
    if not places:
        raise PlanError("nothing to write; name the page with -o, or use --json or --trace")
    taken: dict[str, str] = {}
    for option, place in places.items():
        if not place.strip():
            raise PlanError(f"{option}: expected a path, got: '{place}'")
        other = taken.setdefault(place if place == "-" else os.path.realpath(place), option)
        if other != option:
            where = "standard output" if place == "-" else f"'{place}'"
            raise PlanError(f"{other} and {option}: both would be written to {where}")
    return places


if __name__ == "__main__":
    sys.exit(main())
