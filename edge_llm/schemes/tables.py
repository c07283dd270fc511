"""The embedding and the output matrix, of which rows are taken apart: in tiles or in codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np

from edge_llm.schemes.int8_weight import Int8Weight, no_channels
from edge_llm.schemes.w4 import W4Weight
from kernels import ThreadPool, w4
from kernels.layout import gather_rows, pack_tiles
from kernels.types import TILE_CHANNELS

Table = Int8Weight | W4Weight
AnyTable = TypeVar("AnyTable", Int8Weight, W4Weight)
RUN_ROWS = 8192
"""Rows that are expanded at a time."""


def integers_of(table: Table) -> np.ndarray:
    """The tiles or codes of ``table``."""
    (found,) = table.integers.values()
    return found


def part(table: Table, integers: np.ndarray, rows: slice) -> Table:
    """The ``rows`` of ``table``, whose tiles or codes are ``integers``."""
    if isinstance(table, W4Weight):
        return _rows_of(replace(table, codes=integers), rows)
    return _rows_of(replace(table, tiles=integers), rows)


def gather(table: Table, integers: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The rows ``numbers`` (int64 [M]) of the tiles or codes ``integers`` of some panels of ``table``: int8 [M, K]."""
    if not isinstance(table, W4Weight):
        return gather_rows(integers, numbers, table.columns)
    panels, places = np.unique(numbers // TILE_CHANNELS, return_inverse=True)
    tiles = w4.expand(integers[panels], TILE_CHANNELS * len(panels), table.columns, ThreadPool(1))
    return gather_rows(tiles, TILE_CHANNELS * places + numbers % TILE_CHANNELS, table.columns)


def gathered(table: Table, values: np.ndarray, numbers: np.ndarray) -> Int8Weight:
    """A weight whose row i is row ``numbers[i]`` of ``table``, the integers of which are ``values`` int8 [M, K]."""
    whole = table.with_tiles(no_channels(table.rows)) if isinstance(table, W4Weight) else table
    return _rows_of(replace(whole, tiles=pack_tiles(values)), numbers)


def expanded_runs(runs: Iterator[tuple[slice, Table]]) -> Iterator[tuple[slice, Int8Weight]]:
    """``runs`` of rows as a card takes them, which multiplies tiles alone."""
    for rows, table in runs:
        if isinstance(table, Int8Weight):
            yield rows, table
            continue
        for first in range(0, table.rows, RUN_ROWS):
            some = slice(first, min(first + RUN_ROWS, table.rows))
            codes = table.codes[first // TILE_CHANNELS : -(-some.stop // TILE_CHANNELS)]
            found = part(table, codes, some)
            assert isinstance(found, W4Weight)
            yield slice(rows.start + some.start, rows.start + some.stop), found.expanded(ThreadPool(1))


def _rows_of(table: AnyTable, rows: slice | np.ndarray) -> AnyTable:
    """``table`` with the vectors of some ``rows`` of it."""
    scale = table.weight_scale[rows]
    return replace(
        table,
        rows=len(scale),
        weight_scale=scale,
        row_sum=table.row_sum[rows],
        hot_weight=np.ascontiguousarray(table.hot_weight[:, rows]),
        bias=None if table.bias is None else table.bias[rows],
    )
