"""One forward, one backward, as soon as the backward of a microbatch can run.

The bubble is that of GPipe, but stage k of p holds p - k microbatches at most (Narayanan et al., PipeDream, 2019, and
Megatron-LM, 2021).
"""

from __future__ import annotations

import sys

from local_pipeline import main

PLAN = {
    "mesh": {"pp": 2},
    "data": {"axes": [], "microbatches": 4},
    "pipeline": {"axis": "pp", "schedule": "1f1b", "stages": "auto"},
}

if __name__ == "__main__":
    sys.exit(main(PLAN))
