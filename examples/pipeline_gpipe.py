"""All forwards, then all backwards.

Simple, and a rank holds the activations of every microbatch at once (Huang et al., GPipe, 2019).
"""

from __future__ import annotations

import sys

from local_pipeline import main

PLAN = {
    "mesh": {"pp": 2},
    "data": {"axes": [], "microbatches": 4},
    "pipeline": {"axis": "pp", "schedule": "gpipe", "stages": "auto"},
}

if __name__ == "__main__":
    sys.exit(main(PLAN))
