"""The embedding and the output matrix, of which rows are taken apart: in tiles, in codes or in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np

from edge_llm.kernels import ThreadPool, w4
from edge_llm.kernels.blocks import rows_of
from edge_llm.kernels.layout import gather_rows, pack_tiles
from edge_llm.kernels.types import TILE_CHANNELS
from edge_llm.quant.turning import turned
from edge_llm.schemes.blocks import BlocksWeight, panels_of_rows, row_bytes, rows_in_panels
from edge_llm.schemes.int8_weight import Int8Weight, no_channels
from edge_llm.schemes.w4 import W4Weight

Table = Int8Weight | W4Weight | BlocksWeight
AnyTable = TypeVar("AnyTable", Int8Weight, W4Weight)
RUN_ROWS = 8192
"""Rows that are expanded at a time."""


def integers_of(table: Table) -> np.ndarray:
    """The tiles or codes of ``table``."""
    (found,) = table.integers.values()
    return found


def part(table: Table, integers: np.ndarray, rows: slice) -> Table:
    """The ``rows`` of ``table``, whose tiles, codes or panels are ``integers``."""
    if isinstance(table, BlocksWeight):
        return _of_panels(table, integers, rows.stop - rows.start)
    if isinstance(table, W4Weight):
        return _rows_of(replace(table, codes=integers), rows)
    return _rows_of(replace(table, tiles=integers), rows)


def empty_rows(table: Table, count: int) -> np.ndarray:
    """Room for ``count`` rows of what `gather` gives of ``table``."""
    if isinstance(table, BlocksWeight):
        return np.empty((count, row_bytes(table.kind, table.columns)), np.uint8)
    return np.empty((count, table.columns), np.int8)


def gather(table: Table, integers: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The rows ``numbers`` (int64 [M]) of the tiles, codes or panels ``integers`` of some panels of ``table``.

    int8 [M, K]; of blocks their bytes.
    """
    if isinstance(table, BlocksWeight):
        return rows_in_panels(integers, table.kind, table.columns, numbers)
    if not isinstance(table, W4Weight):
        return gather_rows(integers, numbers, table.columns)
    panels, places = np.unique(numbers // TILE_CHANNELS, return_inverse=True)
    tiles = w4.expand(integers[panels], TILE_CHANNELS * len(panels), table.columns, ThreadPool(1))
    return gather_rows(tiles, TILE_CHANNELS * places + numbers % TILE_CHANNELS, table.columns)


def gathered(table: Table, values: np.ndarray, numbers: np.ndarray) -> Int8Weight | BlocksWeight:
    """A weight whose row i is row ``numbers[i]`` of ``table``, of which ``values`` are what `gather` gave."""
    if isinstance(table, BlocksWeight):
        return _of_panels(table, panels_of_rows(values, table.kind, table.columns), len(values))
    whole = table.with_tiles(no_channels(table.rows)) if isinstance(table, W4Weight) else table
    return _rows_of(replace(whole, tiles=pack_tiles(values)), numbers)


def float_rows(table: Table, numbers: np.ndarray, factor: float) -> np.ndarray:
    """The rows ``numbers`` (int64 [M]) of ``table`` as float32 [M, K], times the ``factor`` of the embedding."""
    if isinstance(table, BlocksWeight):
        found = rows_of(integers_of(table), table.kind, table.columns, numbers, ThreadPool(1))
        return found * np.float32(factor) if factor != 1 else found
    x = np.asarray(gather(table, integers_of(table), numbers) * table.weight_scale[numbers, None], np.float32)
    x[:, table.hot_index] = table.hot_weight[:, numbers].T
    return turned(x, table.turn)


def expanded_runs(runs: Iterator[tuple[slice, Table]]) -> Iterator[tuple[slice, Int8Weight]]:
    """``runs`` of rows as a card takes them, which multiplies tiles alone."""
    for rows, table in runs:
        if isinstance(table, Int8Weight):
            yield rows, table
            continue
        for first in range(0, table.rows, RUN_ROWS):
            some = slice(first, min(first + RUN_ROWS, table.rows))
            assert isinstance(table, W4Weight), "a card refuses blocks"
            codes = table.codes[first // TILE_CHANNELS : -(-some.stop // TILE_CHANNELS)]
            found = part(table, codes, some)
            assert isinstance(found, W4Weight)
            yield slice(rows.start + some.start, rows.start + some.stop), found.expanded(ThreadPool(1))


def _of_panels(table: BlocksWeight, panels: np.ndarray, rows: int) -> BlocksWeight:
    """``table`` with other ``panels``, of so many ``rows``."""
    (name,) = table.integers
    return replace(table, integers={name: panels}, channels=(rows,))


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
