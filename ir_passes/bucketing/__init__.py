"""Fusing collectives into buckets: fewer launches of the same values."""
