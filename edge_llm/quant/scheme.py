"""The weight scheme: symmetric INT8 per output channel, hot input channels taken out and kept in float16.

    weight_scale[n] = max |w[n, k]| / 127 over the channels k that are not hot
    q[n, k] = rint(w[n, k] / weight_scale[n])    0 where k is hot
    |w[n, k] - weight_scale[n] * q[n, k]| <= weight_scale[n] / 2 (and a few ulp) where k is not hot

Hot columns are zero in INT8, so they widen no row's scale; their float16 copies are ``hot_weight``.  `rounded_kv` is the
scheme of keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edge_llm.errors import InvalidModel
from edge_llm.kernels.floats import quantize_rows
from edge_llm.kernels.types import TILE_CHANNELS, TILE_DEPTH

LIMIT = 127
MAX_FLOAT16 = 65504.0
SMALLEST_SCALE = 1e-30
"""Scale of a row that is all (or almost) zero; its reciprocal is still a finite float32."""
_ROWS = 1024  # rows that are in float64/float32 scratch at once


@dataclass(frozen=True)
class QuantizedWeight:
    """One INT8 matrix W[N, K] in tile order.

    tiles: int8 [ceil(N/16), ceil(K/4), 16, 4]; weight_scale: float32 [N]; row_sum: int32 [N]; hot_index: int32 [H]
    ascending; hot_weight: float16 [H, N].
    """

    tiles: np.ndarray
    weight_scale: np.ndarray
    row_sum: np.ndarray
    hot_index: np.ndarray
    hot_weight: np.ndarray
    columns: int

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by their names in a bundle, in file order."""
        return {"tiles": self.tiles, **beside_integers(self)}


class Shadowed(Protocol):
    """What INT8 products need beside the integers of a matrix."""

    @property
    def weight_scale(self) -> np.ndarray: ...
    @property
    def row_sum(self) -> np.ndarray: ...
    @property
    def hot_index(self) -> np.ndarray: ...
    @property
    def hot_weight(self) -> np.ndarray: ...


def beside_integers(weight: Shadowed) -> dict[str, np.ndarray]:
    """The arrays of ``weight`` by their names in a bundle, in file order, behind its integers."""
    return {
        "scale": weight.weight_scale,
        "row_sum": weight.row_sum,
        "hot_index": weight.hot_index,
        "hot_weight": weight.hot_weight,
    }


def quantize_weight(weight: np.ndarray, hot: np.ndarray, name: str = "weight") -> QuantizedWeight:
    """Quantize ``weight`` float32 [N, K] with the hot input channels ``hot`` int32 [H] (ascending).

    ``name`` is for messages.  Raises `InvalidModel` if a value is not finite, or if a hot column is too large for
    float16.
    """
    rows, columns = weight.shape
    quantizer = WeightQuantizer(rows, columns, hot, name)
    for start in range(0, rows, _ROWS):
        quantizer.add(weight[start : start + _ROWS])
    return quantizer.finish()


class WeightQuantizer:
    """`quantize_weight` for a matrix that comes in blocks of rows (each but the last a multiple of 16)."""

    def __init__(self, rows: int, columns: int, hot: np.ndarray, name: str = "weight") -> None:
        self._hot = np.ascontiguousarray(hot, np.int32)
        if len(self._hot) and (self._hot[0] < 0 or self._hot[-1] >= columns or (np.diff(self._hot) <= 0).any()):
            raise ValueError(f"hot must list ascending channels below {columns}")
        self._name = name
        self._columns = columns
        self._done = 0
        self._tiles = np.zeros((-(-rows // TILE_CHANNELS), -(-columns // TILE_DEPTH), TILE_CHANNELS, TILE_DEPTH), np.int8)
        self._weight_scale = np.empty(rows, np.float32)
        self._row_sum = np.empty(rows, np.int32)
        self._hot_weight = np.empty((len(self._hot), rows), np.float16)

    def add(self, weight: np.ndarray) -> None:
        """Quantize the next rows, float32 [n, K]."""
        start, end = self._done, self._done + len(weight)
        if start % TILE_CHANNELS:
            raise ValueError("every block of rows but the last must be a multiple of 16")
        values = np.asarray(weight, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            self._hot_weight[:, start:end] = values[:, self._hot].T
        tiles, weight_scale, row_sum = quantize_rows(values, self._hot)
        if not np.isfinite(weight_scale).all():
            raise InvalidModel(f"`{self._name}` holds a value that is not finite, so it cannot be quantized")
        if not np.isfinite(self._hot_weight[:, start:end]).all():
            raise InvalidModel(f"`{self._name}` holds a value above {MAX_FLOAT16:g} that must be kept in float16")
        panel = start // TILE_CHANNELS
        self._tiles[panel : panel + len(tiles)] = tiles
        self._weight_scale[start:end] = weight_scale
        self._row_sum[start:end] = row_sum
        self._done = end

    def finish(self) -> QuantizedWeight:
        """The matrix, once all rows are there."""
        if self._done != len(self._weight_scale):
            raise ValueError(f"{self._done} of {len(self._weight_scale)} rows were added")
        return QuantizedWeight(self._tiles, self._weight_scale, self._row_sum, self._hot, self._hot_weight, self._columns)


def rounded_kv(x: np.ndarray) -> np.ndarray:
    """Keys or values float32 [..., head_dim] after INT8 with one float16 scale per token and head.

    The same numbers as `kernels.reference.append_kv` stores and `paged_attention` reads.
    """
    step = np.minimum(np.abs(x).max(axis=-1, keepdims=True) / LIMIT, MAX_FLOAT16).astype(np.float16).astype(np.float32)
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    return np.asarray(np.rint(np.clip(x * inverse, -LIMIT, LIMIT)) * step)
