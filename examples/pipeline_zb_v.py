"""A V: each rank has a stage of the way down and one of the way up, the backward split in two.

Almost no bubble at the memory of 1f1b (Qi et al., Pipeline Parallelism with Controllable Memory, 2024).
"""

from __future__ import annotations

import sys

from local_pipeline import main

PLAN = {
    "mesh": {"pp": 2},
    "data": {"axes": [], "microbatches": 4},
    "pipeline": {"axis": "pp", "schedule": "zb-v", "stages": "auto"},
}

if __name__ == "__main__":
    sys.exit(main(PLAN))
