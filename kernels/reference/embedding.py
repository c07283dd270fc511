"""The look-up of embeddings."""

from __future__ import annotations

import numpy as np

from edge_llm.kernels.reference.layout import gather_rows
from edge_llm.kernels.reference.numeric import into
from edge_llm.kernels.reference.turn import turn as turned
from edge_llm.kernels.reference.w4 import expand
from edge_llm.kernels.types import F16, F32, I8, I32, I64, TILE_DEPTH, U8


def embedding(
    tokens: I64,
    integers: I8 | U8,
    columns: int,
    scale: F32,
    hot: I32,
    hot_weight: F16,
    *,
    turn: int = 0,
    out: F32 | None = None,
) -> F32:
    """tokens[M] -> f32[M, K]: the rows of W[N, K] times their scale[N]; hot columns are those of hot_weight[H, N].

    W is in tiles, or in codes (uint8), which are expanded first. With `turn` the rows are turned last.
    """
    coded = integers.dtype == np.uint8
    tiles = expand(integers.view(np.uint8), len(scale), columns) if coded else integers.view(np.int8)
    values = gather_rows(tiles, tokens, TILE_DEPTH * tiles.shape[1])[:, :columns].astype(np.float32)
    values *= scale[tokens, None]
    values[:, hot] = hot_weight[:, tokens].T
    return into(out, turned(values, turn))
