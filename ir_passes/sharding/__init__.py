"""Passes that split a training step over a mesh."""
