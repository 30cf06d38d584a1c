"""Passes from IR to IR, one folder per stretch of the road; `registry` names them all."""
