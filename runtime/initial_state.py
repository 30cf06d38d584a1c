"""Whether all ranks start from one model: compared by checksum, each parameter among those that own it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..errors import RuntimeFault
from . import torch_compat
from .device import RankMesh

_FOREIGN, _META, _VALUES = range(3)


def compare_models(
    names: Sequence[str], owned: Mapping[str, Tensor], buffers: Sequence[Tensor], ranks: RankMesh
) -> bool:
    """Check that all ranks start from equal parameters.

    Args:
        names: of all parameters of the Program, in an order that all ranks have.
        owned: the live values of those that this rank has, by name.
        buffers: that this rank has.
        ranks: the mesh.

    Returns:
        Whether any rank has any of them on the meta device.

    Raises:
        RuntimeFault: they are not equal; the text names the first parameter that differs, and ranks.
    """
    on_meta = any(tensor.is_meta for tensor in (*owned.values(), *buffers))
    if not ranks.distributed or ranks.mesh.size == 1:
        return on_meta
    rows = [(int(on_meta), 0)]
    for name in names:
        value = owned.get(name)
        if value is None:
            rows.append((_FOREIGN, 0))
        else:
            rows.append((_META, 0) if value.is_meta else (_VALUES, checksum(value.detach())))
    everyone = torch_compat.gather_rows(torch.tensor(rows, dtype=torch.int64, device=ranks.device)).cpu()
    for number, name in enumerate(names, start=1):
        kinds, sums = everyone[:, number].unbind(1)
        holders = kinds.ne(_FOREIGN).nonzero().flatten().tolist()
        _report_difference(kinds, holders, f"whether parameter '{name}' is on the meta device")
        _report_difference(sums, holders, f"parameter '{name}'")
    return bool(everyone[:, 0, 0].any())


def _report_difference(column: Tensor, holders: Sequence[int], what: str) -> None:
    values = column.tolist()
    others = [rank for rank in holders if values[rank] != values[holders[0]]]
    if others:
        shown = ", ".join(map(str, others[:8])) + (", ..." if len(others) > 8 else "")
        raise RuntimeFault(
            f"{what} differs between rank {holders[0]} and rank {shown}: build the model from the same seed on every "
            "rank"
        )


_CHUNK = 1 << 20


def checksum(tensor: Tensor) -> int:
    """Return a number that depends on every bit of `tensor` and its place; equal tensors have equal ones."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.resolve_conj())
    bits = tensor.contiguous().reshape(-1).view(width[tensor.dtype.itemsize])
    # Odd multipliers, so that no bit of an element is lost; sums wrap around.
    factors = torch.arange(1, 2 * min(_CHUNK, max(bits.numel(), 1)), 2, dtype=torch.int64, device=tensor.device)
    total = 0
    for begin in range(0, bits.numel(), _CHUNK):
        part = bits[begin : begin + _CHUNK].to(torch.int64)
        total = (total * 31 + int((part * factors[: part.numel()]).sum())) % (1 << 62)
    return total
