"""What people call the things that a report shows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..runtime.program import Op


def transfer_name(op: Op) -> str:
    """Return what people call the communication that an op starts: its label, bucket, what it moves, or its module."""
    if op.kwargs.get("label"):
        return str(op.kwargs["label"])
    if op.bucket:
        return op.bucket
    if len(op.members) > 1:
        common = common_module(op.members)
        count = len(op.members)
        return f"{common} ({count} tensors)" if common else f"{op.members[0]} and {count - 1} more"
    if op.members:
        return op.members[0]
    return op.module


def microbatch_of(call: Op) -> int:
    """Return the microbatch that a call is for; the first, where it does not say."""
    microbatch = call.kwargs.get("microbatch")
    return microbatch if isinstance(microbatch, int) else 0


def lane_name(op: Op) -> str:
    """Return the communication lane of an op that starts communication: a group's, or that of one rank to another."""
    if "peer" in op.kwargs:
        return f"{op.kwargs['axis']} {'to' if op.target == 'hp.send' else 'from'} {op.kwargs['peer']}"
    listed, coordinates = op.kwargs["axes"], op.kwargs.get("coordinates")
    axes = ", ".join(map(str, listed)) if isinstance(listed, tuple) else ""
    return f"{axes} {list(coordinates)}" if isinstance(coordinates, tuple) else axes


def common_module(names: Sequence[str]) -> str:
    """Return the innermost module that several are within: ``layers.0`` of ``layers.0.up`` and ``layers.0.down``."""
    if not names:
        return ""
    paths = [name.split(".") for name in names]
    common = 0
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common += 1
    return ".".join(paths[0][:common])


def numbers_left_out(name: str) -> str:
    """Return a module's name with stars for numbers: ``layers.*.up`` for ``layers.7.up``."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
