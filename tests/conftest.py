"""Fixtures and settings every test shares."""

from __future__ import annotations

import gc

# Captured steps are kept for all tests of a process: looking through them for garbage again and again takes longer than
# what is found is worth.
gc.set_threshold(20_000, 50, 100)
