"""The `hp` dialect and everything that knows how MLIR spells a training step."""
