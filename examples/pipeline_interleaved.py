"""Several stages per rank, round robin.

Less bubble for more messages (Narayanan et al., Megatron-LM, 2021).
"""

from __future__ import annotations

import sys

from local_pipeline import main

PLAN = {
    "mesh": {"pp": 2},
    "data": {"axes": [], "microbatches": 4},
    "pipeline": {"axis": "pp", "schedule": "interleaved", "stages": "auto"},
}

if __name__ == "__main__":
    sys.exit(main(PLAN))
