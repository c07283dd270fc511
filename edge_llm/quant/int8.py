"""Quantizing to INT8 with what a linear reads in view, as `edge_llm.quant.w4` does it for codes: rounded, or fitted by GPTQ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge_llm.quant.gptq import descend, gptq
from edge_llm.quant.scheme import LIMIT, QuantizedWeight, quantize_weight
from kernels.layout import pack_tiles, row_sums, unpack_tiles


def round_weight(weight: np.ndarray, hot: np.ndarray, name: str) -> QuantizedWeight:
    """Round ``weight`` float32 [N, K], apart from its ``hot`` channels.  Raises `InvalidModel` as `quantize_weight`."""
    return quantize_weight(weight, hot, name)


def fit_weight(weight: np.ndarray, hot: np.ndarray, energy: np.ndarray, name: str) -> QuantizedWeight:
    """``weight`` [N, K] fitted to inputs of ``energy`` [K, K], positive definite: GPTQ and coordinate descent.

    Scales are those of the rounded weight; ``hot`` channels take up errors.  Raises `InvalidModel` as `round_weight`.
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
