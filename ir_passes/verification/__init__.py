"""The rules that make up each level's contract, and the proof that every gradient is reduced exactly once."""
