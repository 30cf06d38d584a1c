"""Captured acceptance models, kept for all tests of a process: capture is the slow part."""

from __future__ import annotations

import functools

import torch
from models import BY_NAME

import hpir
from hpir.lowering.exported import Exported


@functools.cache
def _captured(name: str, rows: int, dtype: torch.dtype) -> Exported:
    case = BY_NAME[name]
    return hpir.export(case.model(dtype), case.train, case.data(rows, dtype), batch_dims=case.batch_dims)


def captured(name: str, rows: int, dtype: torch.dtype = torch.float64) -> Exported:
    """Return the acceptance model `name` captured with `rows` rows; its module is a copy, for passes to change."""
    exported = _captured(name, rows, dtype)
    return Exported(exported.module.operation.clone(), exported.state, exported.graph_module)
