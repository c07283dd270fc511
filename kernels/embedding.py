"""The look-up of embeddings in an INT8 table.

The table is W[N, K] as `kernels.layout.pack_tiles` lays it out, of at least N rows and K columns, with a scale for each row,
scale f32[N]; the columns hot i32[H], ascending, are kept apart in hot_weight f16[H, N]. `kernels.reference` defines it.
"""

from __future__ import annotations

from kernels import _native
from kernels.types import F16, F32, I8, I32, I64


def embedding(
    tokens: I64,
    tiles: I8,
    columns: int,
    scale: F32,
    hot: I32,
    hot_weight: F16,
    pool: _native.ThreadPool,
    out: F32 | None = None,
) -> F32:
    """tokens[M] in 0..N-1 -> f32[M, K]: W[token] * scale[token], and in the hot columns hot_weight[:, token].

    `out` is C-contiguous. Raises ValueError, naming the argument, for a wrong type, shape or value.
    """
    return _native.embedding(tokens, tiles, columns, scale, hot, hot_weight, pool, out)
