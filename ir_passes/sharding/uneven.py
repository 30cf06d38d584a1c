"""Rows of uneven shards: dropping the padding after a gather, putting it back before a reduce-scatter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir

from ...mesh import padded_shard_size, shard_spans
from ..build import Builder, Site


@dataclass(frozen=True)
class Run:
    """`rows` consecutive rows: from `padded` on in the concatenation of padded shards, from `start` on without."""

    padded: int
    start: int
    rows: int


def padded_rows(rows: int, counts: Sequence[int]) -> int:
    """Return the rows of all padded shards together."""
    size = padded_shard_size(rows, counts)
    for count in counts:
        size *= count
    return size


def row_runs(rows: int, counts: Sequence[int]) -> list[Run]:
    """Return where the rows stand among the padded shards, with neighbouring shards that have no gap joined.

    One axis leaves padding at the end only. Several can leave it in between: 10 rows over 2x2 are 3, 2, 3, 2.

    Example:
        >>> row_runs(5, (3,))
        [Run(padded=0, start=0, rows=5)]
        >>> row_runs(10, (2, 2))
        [Run(padded=0, start=0, rows=5), Run(padded=6, start=5, rows=5)]
    """
    size = padded_shard_size(rows, counts)
    runs: list[Run] = []
    for position, (start, held) in enumerate(shard_spans(rows, counts)):
        if held == 0:
            continue
        padded = position * size
        last = runs[-1] if runs else None
        if last is not None and last.padded + last.rows == padded:
            runs[-1] = Run(last.padded, last.start, last.rows + held)
        else:
            runs.append(Run(padded, start, held))
    return runs


def trim(builder: Builder, site: Site, value: ir.Value, rows: int, counts: Sequence[int]) -> ir.Value:
    """Return the `rows` rows of a tensor from its gathered shards; the value itself where none is padded."""
    if padded_rows(rows, counts) == rows:
        return value
    return builder.cat_rows(
        site,
        [builder.slice_rows(site, value, run.padded, run.padded + run.rows) for run in row_runs(rows, counts)],
    )


def pad(builder: Builder, site: Site, value: ir.Value, rows: int, counts: Sequence[int]) -> ir.Value:
    """Return a tensor of `rows` rows as its padded shards side by side, zeros for padding: the inverse of `trim`."""
    total = padded_rows(rows, counts)
    if total == rows:
        return value
    runs = row_runs(rows, counts)
    ends = [run.padded for run in runs[1:]] + [total]
    pieces = []
    for run, end in zip(runs, ends, strict=True):
        piece = value if run.rows == rows else builder.slice_rows(site, value, run.start, run.start + run.rows)
        pieces.append(builder.pad_rows(site, piece, end - run.padded - run.rows))
    return builder.cat_rows(site, pieces)
