"""Fitting INT8 weights to what a linear reads, by GPTQ; `edge_llm.quant.scheme` rounds them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge_llm.quant.gptq import descend, gptq
from edge_llm.quant.scheme import LIMIT, QuantizedWeight, quantize_weight
from kernels.layout import pack_tiles, row_sums, unpack_tiles


def fit_weight(weight: np.ndarray, hot: np.ndarray, energy: np.ndarray, name: str) -> QuantizedWeight:
    """``weight`` [N, K] fitted to inputs of ``energy`` [K, K]: GPTQ and coordinate descent.

    Scales are those of the rounded weight; ``hot`` channels take up errors.  Raises `InvalidModel` as `quantize_weight`.
    """
    scale = quantize_weight(weight, hot, name).weight_scale

    def steps(values: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(values / scale), -LIMIT, LIMIT)

    def rounded(column: int, values: np.ndarray) -> np.ndarray:
        return np.asarray(steps(values) * scale, np.float32)

    found = descend(weight, gptq(weight, energy, hot, rounded), energy, hot, rounded)
    cold = found.copy()
    cold[:, hot] = 0
    tiles = pack_tiles(np.ascontiguousarray(steps(cold.T).T, np.int8))
    rest = quantize_weight(found, hot, name)
    return replace(rest, tiles=tiles, weight_scale=scale, row_sum=row_sums(tiles, len(weight)))


def dense(weight: QuantizedWeight) -> np.ndarray:
    """What ``weight`` multiplies with: float32 [N, K], hot channels as they are kept."""
    rows = len(weight.weight_scale)
    found = unpack_tiles(weight.tiles, rows, weight.columns) * weight.weight_scale[:, None]
    found[:, weight.hot_index] = weight.hot_weight.T
    return found
