"""The `hp-run` command: runs a Program, simulated or on real processes, or checks it. See `hp-run --help`."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import HpirError, PlanError, RuntimeFault


def main() -> int:
    """Run `hp-run` on the process's arguments and return its exit status."""
    try:
        return run(sys.argv[1:])
    except BrokenPipeError:
        return 1
    except HpirError as error:
        text = str(error)
        print(text if "error: " in text else f"hp-run: error: {text}", file=sys.stderr)
        return 1


def make_parser() -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    parser = argparse.ArgumentParser(
        prog="hp-run",
        description="Run a Program: simulated in this process, on real local processes, or against its reference.",
        allow_abbrev=False,
    )
    parser.add_argument("program", nargs="?", help="a Program's directory; none with --calibrate")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--simulate", action="store_true", help="run all ranks in this process and print the results")
    what.add_argument("--nproc", type=int, metavar="N", help="run on N gloo processes of this machine")
    what.add_argument(
        "--check",
        nargs="?",
        const="",
        metavar="JOINT.mlir",
        help="compare with the unpartitioned step in float64, result by result; the module is needed where the Program "
        "holds none",
    )
    parser.add_argument(
        "--calibrate",
        metavar="FILE",
        help="with --nproc: measure what communication and computation cost here and write it to a TOML file, for the "
        "cost model; on the accelerator where there is one per process, and under torchrun on its processes",
    )
    parser.add_argument(
        "--axes",
        metavar="NAME:SIZE,...",
        help="with --calibrate: mesh axes to measure by themselves, such as pp:2,dp:2",
    )
    parser.add_argument("--state", metavar="FILE", help="tensors by name, saved by torch.save (default: random)")
    parser.add_argument("--batch", metavar="FILE", help="the global batch, saved by torch.save (default: random)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random state and batch")
    parser.add_argument("--steps", type=int, default=1, metavar="N", help="with --nproc: steps to run")
    parser.add_argument(
        "--profile", metavar="DIR", help="with --nproc: write what each rank did when in the last step, for hp-report"
    )
    parser.add_argument("--tolerance", type=float, default=1e-10, metavar="X", help="with --check: relative, float64")
    parser.add_argument("--backend", default="eager", choices=("eager", "inductor"), help="with --nproc")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="NAMESPACE", help="a custom-op namespace to allow"
    )
    return parser


def run(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status: 0, or 1 when a check found a difference.

    Raises:
        HpirError: a user's mistake, or a Program that cannot run.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.calibrate is not None:
        from .calibrate import calibrate_to

        return calibrate_to(options.calibrate, options.nproc, options.axes)
    if options.program is None:
        parser.error("the following arguments are required: program")
    from ..lowering.check import random_batch, random_state
    from ..runtime.program import Program

    if options.steps < 1:
        raise PlanError(f"--steps: expected at least 1, got: {options.steps}")
    if options.profile and options.nproc is None:
        raise PlanError("--profile: only a run with --nproc can be recorded")
    if options.profile and options.backend != "eager":
        raise PlanError(f"--profile: blocks of ops can be recorded with --backend eager only, got: {options.backend}")
    program = Program.load(options.program, allow=options.allow)
    state = _load(options.state, "--state") if options.state else random_state(program, options.seed)
    batch = _load(options.batch, "--batch") if options.batch else random_batch(program, options.seed)
    if options.simulate:
        return _simulate(program, state, batch)
    if options.nproc is not None:
        from ..runtime.local_ranks import train_local

        if options.nproc != program.mesh.size:
            raise PlanError(f"--nproc: the Program's mesh ({program.mesh}) has {program.mesh.size} ranks")
        losses = train_local(
            options.program,
            state,
            batch,
            steps=options.steps,
            backend=options.backend,
            allow=options.allow,
            profile=options.profile,
        )
        for number, (loss, seconds) in enumerate(losses):
            print(f"step {number}: loss {loss:.9g}  {1e3 * seconds:.1f} ms")
        return 0
    return _check(program, state, batch, options)


def _load(path: str, option: str) -> Mapping[str, Any]:
    import pickle
    import zipfile

    import torch

    try:
        if not zipfile.is_zipfile(path) and Path(path).stat():
            raise RuntimeFault(f"{path}: error: {option} was not written by torch.save")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise RuntimeFault(f"{path}: error: cannot read {option}: {(error.strerror or str(error)).lower()}") from None
    except (RuntimeError, ValueError, EOFError, pickle.UnpicklingError, KeyError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        if first.startswith("Weights only load failed"):
            first = "it holds objects of other types; save tensors and Python values in dicts, lists and tuples"
        raise RuntimeFault(f"{path}: error: {option} is no file of tensors: {first}") from None
    if not isinstance(loaded, Mapping):
        raise RuntimeFault(f"{path}: error: {option} holds a {type(loaded).__name__}, expected a dict of tensors")
    return loaded


def _simulate(program: Any, state: Mapping[str, Any], batch: Mapping[str, Any]) -> int:
    from ..runtime.simulate import simulate

    result = simulate(program, state, batch)
    print(f"loss {float(result.loss):.9g}")
    for kind, table in (("grad", result.grads), ("buffer", result.buffers)):
        for name, tensor in table.items():
            norm = float(tensor.double().norm())
            print(f"{kind} {name} {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} norm {norm:.9g}")
    return 0


def _check(program: Any, state: Mapping[str, Any], batch: Mapping[str, Any], options: argparse.Namespace) -> int:
    from dataclasses import replace

    from ..lowering.check import check_program

    if options.check:
        from ..dialect.parsing import parse_module_file
        from ..lowering.to_program import to_program

        if not Path(options.check).is_file():
            raise PlanError(f"--check: no file '{options.check}'")
        joint = to_program(parse_module_file(options.check), reference=parse_module_file(options.check))
        program = replace(
            program, functions={**program.functions, "joint": joint.functions["joint"]}, reference="joint"
        )
    differences = check_program(program, state, batch, tolerance=options.tolerance)
    for difference in differences:
        verdict = "differs" if difference.differs else "equal"
        print(f"{verdict:8} {difference.kind:7} {difference.name}  {difference.difference:.3g}")
    differing = [difference for difference in differences if difference.differs]
    if differing:
        first = differing[0]
        print(
            f"{options.program}: error: {first.kind} '{first.name}' differs by {first.difference:.3g} (relative); "
            f"{len(differing)} of {len(differences)} results differ",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
