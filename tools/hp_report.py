"""The `hp-report` command: a page about a Program, simulated or measured. See `hp-report --help`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import HpirError, PlanError, nearest


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
        description="Write a page about a Program: what its ranks do when, what memory they hold, what they send.",
        allow_abbrev=False,
    )
    parser.add_argument("program", help="a Program's directory")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page: one HTML file that needs nothing else")
    parser.add_argument("--json", metavar="FILE", help="the same as data; '-' for standard output")
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
    if not (options.output or options.json or options.trace):
        raise PlanError("nothing to write; name the page with -o, or use --json or --trace")
    from ..costs import DEFAULT_DEVICE, DEVICES, Costs

    if options.costs and options.device:
        raise PlanError("--device: the costs file says which device it is for")
    if options.costs:
        costs, costs_name = Costs.load(options.costs), options.costs
    else:
        device = options.device or DEFAULT_DEVICE
        if device not in DEVICES:
            raise PlanError(f"--device: no built-in rates for '{device}'{nearest(device, DEVICES)}")
        costs = Costs.built_in(device)
        costs_name = f"built in for {costs.device}"
    from ..reporting.measured import read_profile
    from ..reporting.output import write_files
    from ..reporting.page import write_page
    from ..reporting.report import make_report, program_name
    from ..reporting.trace import trace_events
    from ..runtime.program import Program

    program = Program.load(options.program, allow=options.allow)
    measured = read_profile(options.run, program) if options.run else None
    report = make_report(
        program, name=program_name(options.program), costs=costs, costs_name=costs_name, measured=measured
    )
    texts: dict[Path, str] = {}
    if options.trace:
        texts[Path(options.trace)] = json.dumps(trace_events(report), separators=(",", ":"))
    if options.output:
        texts[Path(options.output)] = write_page(report)
    data = json.dumps(report.to_json(), separators=(",", ":")) + "\n" if options.json else ""
    if options.json and options.json != "-":
        texts[Path(options.json)] = data
    write_files(texts)
    if options.json == "-":
        print(data, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
