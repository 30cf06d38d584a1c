"""1f1b with the backward split in two.

What the stage before waits for comes first; gradients of weights fill the bubble (Qi et al., Zero Bubble Pipeline
Parallelism, 2023).
"""

from __future__ import annotations

import sys

from local_pipeline import main

PLAN = {
    "mesh": {"pp": 2},
    "data": {"axes": [], "microbatches": 4},
    "pipeline": {"axis": "pp", "schedule": "zb-h1", "stages": "auto"},
}

if __name__ == "__main__":
    sys.exit(main(PLAN))
