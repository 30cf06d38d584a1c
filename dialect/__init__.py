"""The `hp` dialect and everything that knows how MLIR spells a training step."""

# The ops of the dialect are spread over two modules, both of which must be there before it is loaded.
from . import packing as packing
