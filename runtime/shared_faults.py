"""Faults that one rank finds and all ranks raise, so that none waits for one that has given up."""

from __future__ import annotations

import torch

from ..errors import RuntimeFault
from . import torch_compat
from .device import RankMesh


def raise_together(fault: RuntimeFault | None, ranks: RankMesh) -> None:
    """Meet the other ranks: go on only where all do. All ranks call it together.

    Args:
        fault: of this rank; None where it could go on.
        ranks: the mesh.

    Raises:
        RuntimeFault: this rank's fault, or else that of the first rank that has one, which the text names.
    """
    if ranks.distributed and ranks.mesh.size > 1:
        texts = _everyone("" if fault is None else str(fault), ranks.device)
        first = next((rank for rank, text in enumerate(texts) if text), None)
        if fault is None and first is not None:
            raise RuntimeFault(f"rank {first}: {texts[first]}")
    if fault is not None:
        raise fault


def _everyone(text: str, device: torch.device) -> list[str]:
    """Return every rank's text."""
    content = text.encode()
    length = torch.tensor([len(content)], dtype=torch.int64, device=device)
    lengths = torch_compat.gather_rows(length).view(-1).tolist()
    longest = max(lengths)
    if not longest:
        return [""] * len(lengths)
    row = torch.tensor(list(content.ljust(longest)), dtype=torch.uint8, device=device)
    rows = torch_compat.gather_rows(row).cpu().tolist()
    return [bytes(row[:length]).decode() for row, length in zip(rows, lengths, strict=True)]
