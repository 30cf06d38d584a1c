"""What the sweep found, kept as data: ``python tests/sweep/results.py [names]`` runs it and writes the file.

The test of the sweep holds the file to be true; `docs/models.md` is made from it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

FILE = Path(__file__).with_name("results.json")


@dataclasses.dataclass(frozen=True)
class Result:
    """What was found of one architecture.

    Attributes:
        parameters: elements of all parameters, shared ones once.
        ops: in the captured module; 0 where it is refused.
        one_rank: loss, gradients and buffers of the captured step equal eager's.
        two_ranks: those of two ranks with sharded parameters equal the plain loop's.
    """

    parameters: int
    ops: int = 0
    one_rank: bool = False
    two_ranks: bool = False


def read_results() -> dict[str, Result]:
    """Return what is recorded, by name of the architecture."""
    recorded = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return {name: Result(**fields) for name, fields in recorded.items()}


def write_results(results: dict[str, Result]) -> None:
    """Write the file, one line per architecture."""
    lines = [f'  "{name}": {json.dumps(dataclasses.asdict(result))}' for name, result in results.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Run the architectures of these names, or all, and record what is found."""
    from sweep.architectures import ARCHITECTURES
    from sweep.checks import check

    results = read_results()
    for architecture in ARCHITECTURES:
        if not names or architecture.name in names or architecture.name not in results:
            results[architecture.name] = check(architecture).result
            print(architecture.name, results[architecture.name], flush=True)
            write_results({item.name: results[item.name] for item in ARCHITECTURES if item.name in results})


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main(sys.argv[1:])
