"""From a model and its step function to one joint forward and backward FX graph: `capture.capture` is the road."""
