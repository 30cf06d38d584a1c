"""The `hp-opt` command: runs passes over modules. See `hp-opt --help`."""

from __future__ import annotations

import sys

from .opt_driver import OptDriver


def main() -> int:
    """Run `hp-opt` on the process's arguments and return its exit status."""
    return OptDriver().main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
