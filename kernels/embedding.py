"""The look-up of embeddings in a table of INT8 weights, or of the 4-bit codes that stand for them.

The table is W[N, K]: tiles as `kernels.layout.pack_tiles` lays them out, of at least N rows and K columns, or codes as
`kernels.w4.pack_codes` does. Each row has a scale, scale f32[N]; the columns hot i32[H], ascending, are kept apart in
hot_weight f16[H, N]. `kernels.reference` defines it.
"""

from __future__ import annotations

from edge_llm.kernels import _native
from edge_llm.kernels.types import F16, F32, I8, I32, I64, U8


def embedding(
    tokens: I64,
    integers: I8 | U8,
    columns: int,
    scale: F32,
    hot: I32,
    hot_weight: F16,
    pool: _native.ThreadPool,
    out: F32 | None = None,
    *,
    turn: int = 0,
) -> F32:
    """tokens[M] in 0..N-1 -> f32[M, K]: W[token] * scale[token], and in the hot columns hot_weight[:, token].

    With `turn` the rows are turned last (`kernels.pointwise.turn`). `out` is C-contiguous.
    Raises ValueError, naming the argument, for a wrong type, shape or value.
    """
    return _native.embedding(tokens, integers, columns, scale, hot, hot_weight, pool, out, turn)
