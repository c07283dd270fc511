"""Fitting INT8 weights to what a linear reads, by GPTQ; `edge_llm.quant.scheme` rounds them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge_llm.kernels.gptq import Steps
from edge_llm.kernels.layout import pack_tiles, row_sums, unpack_tiles
from edge_llm.quant.gptq import gptq
from edge_llm.quant.scheme import QuantizedWeight, quantize_weight


def fit_weight(
    weight: np.ndarray, hot: np.ndarray, energy: np.ndarray, name: str, near: QuantizedWeight | None = None
) -> QuantizedWeight:
    """``weight`` [N, K] fitted to inputs of ``energy`` [K, K] by GPTQ; coordinate descent after it gains nothing.

    Scales are those of the rounded weight, which is ``near`` where there is one already; ``hot`` channels take up errors.
    Raises `InvalidModel` as `quantize_weight`.
    """
    scale = (near or quantize_weight(weight, hot, name)).weight_scale
    found = gptq(weight, energy, hot, Steps(scale[None]))
    rest = quantize_weight(found, hot, name)
    found /= scale[:, None]
    whole = np.rint(found, out=found).astype(np.int8)
    whole[:, hot] = 0
    tiles = pack_tiles(whole)
    return replace(rest, tiles=tiles, weight_scale=scale, row_sum=row_sums(tiles, len(weight)))


def dense(weight: QuantizedWeight) -> np.ndarray:
    """What ``weight`` multiplies with: float32 [N, K], hot channels as they are kept."""
    rows = len(weight.weight_scale)
    found = unpack_tiles(weight.tiles, rows, weight.columns) * weight.weight_scale[:, None]
    found[:, weight.hot_index] = weight.hot_weight.T
    return found
