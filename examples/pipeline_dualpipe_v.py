"""A V, with forwards and backwards of different microbatches side by side.

DeepSeek's DualPipe (2024), cut in half so that a rank holds one copy of its parameters.
"""

from __future__ import annotations

import sys

from local_pipeline import main

PLAN = {
    "mesh": {"pp": 2},
    "data": {"axes": [], "microbatches": 4},
    "pipeline": {"axis": "pp", "schedule": "dualpipe-v", "stages": "auto"},
}

if __name__ == "__main__":
    sys.exit(main(PLAN))
