"""Runs Programs. Imports torch, never MLIR."""
