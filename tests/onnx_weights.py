"""INT8 weights and rows for products in ONNX graphs: random, and extreme."""

from __future__ import annotations

import numpy as np

from edge_llm.kernels import ThreadPool
from edge_llm.kernels.layout import pack_tiles, row_sums
from edge_llm.schemes.int8_weight import Int8Weight

POOL = ThreadPool(1)


def some_rows(count: int, columns: int) -> np.ndarray:
    """Random INT8 rows; the first is extreme in every entry, and so is every second one behind it."""
    generator = np.random.default_rng([count, columns])
    rows = generator.integers(-127, 128, (count, columns)).astype(np.int8)
    rows[::2] = np.where(generator.random((len(rows[::2]), columns)) < 0.5, -127, 127)
    rows[0] = 127
    return rows


def random_weight(rows: int, columns: int, bias: bool, extreme: int = 0) -> Int8Weight:
    """A weight [rows, columns], ``extreme`` in every entry if that is not 0."""
    generator = np.random.default_rng([rows, columns, bias])
    matrix = generator.integers(-127, 128, (rows, columns)).astype(np.int8)
    tiles = pack_tiles(np.full_like(matrix, extreme) if extreme else matrix)
    return Int8Weight(
        tiles=tiles,
        rows=rows,
        columns=columns,
        input_scale=0.037,
        weight_scale=(generator.random(rows) * 1e-3).astype(np.float32),
        row_sum=row_sums(tiles, rows),
        hot_index=np.zeros(0, np.int32),
        hot_weight=np.zeros((0, rows), np.float16),
        bias=generator.standard_normal(rows).astype(np.float32) if bias else None,
    )
