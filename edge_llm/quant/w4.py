"""Quantizing to W4: an INT8 weight whose values are 4-bit codes in integer steps, hot input channels kept in float16.

    w[n, k] ~ weight_scale[n] * m[n, g] * (CODEBOOK[code[n, k]] - z[n, g])     g = k // 32; hot channels are not counted
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_llm.errors import InvalidModel
from edge_llm.kernels import ThreadPool, w4
from edge_llm.kernels.gptq import Steps
from edge_llm.kernels.layout import row_sums, unpack_tiles
from edge_llm.kernels.types import TILE_DEPTH
from edge_llm.quant.gptq import descend, gptq
from edge_llm.quant.scheme import MAX_FLOAT16, beside_integers

DESCENT_COLUMNS = 4096
"""Columns up to which a pass of coordinate descent follows GPTQ: it takes twice GPTQ's time, and more passes gain nothing."""


@dataclass(frozen=True)
class CodedWeight:
    """One matrix W[N, K] in panels of codes, uint8 [ceil(N/16), bytes of a panel]; the rest as of a `QuantizedWeight`."""

    codes: np.ndarray
    weight_scale: np.ndarray
    row_sum: np.ndarray
    hot_index: np.ndarray
    hot_weight: np.ndarray
    columns: int

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by their names in a bundle, in file order."""
        return {"codes": self.codes, **beside_integers(self)}


def stacked(parts: Sequence[CodedWeight]) -> CodedWeight:
    """The weight whose rows are those of ``parts``, one under the other; all but the last have whole panels."""
    return replace(
        parts[0],
        codes=np.concatenate([part.codes for part in parts]),
        weight_scale=np.concatenate([part.weight_scale for part in parts]),
        row_sum=np.concatenate([part.row_sum for part in parts]),
        hot_weight=np.ascontiguousarray(np.concatenate([part.hot_weight for part in parts], axis=1)),
    )


def fits(columns: int) -> bool:
    """Whether a matrix of so many columns can be coded: tiles must be whole."""
    return columns % TILE_DEPTH == 0


def round_weight(weight: np.ndarray, hot: np.ndarray, name: str) -> CodedWeight:
    """Round ``weight`` float32 [N, K] to the nearest codes, in steps of least error.

    Raises `InvalidModel`, with ``name``, for values that are not finite, or too large for float16 in a hot column.
    """
    cold, hot_weight = _apart(weight, hot, name)
    codes, multiplier, shift, scale = _search(cold, hot)
    return coded(codes, multiplier, shift, scale, hot, hot_weight)


def fit_weight(
    weight: np.ndarray, hot: np.ndarray, energy: np.ndarray, name: str, near: CodedWeight | None = None
) -> CodedWeight:
    """``weight`` [N, K] fitted to inputs of ``energy`` [K, K]: GPTQ, and coordinate descent where it is worth its time.

    Steps and scales are those of the rounded weight, which is ``near`` where there is one already; weighted by the inputs'
    energy steps were no better, nor were scales of least error behind it.  Raises `InvalidModel` as `round_weight`.
    """
    near = near or round_weight(weight, hot, name)
    scale, (multiplier, shift) = near.weight_scale, w4.steps_of(near.codes, *weight.shape)
    steps = _steps(scale, multiplier, shift)
    fitted = gptq(weight, energy, hot, steps)
    if weight.shape[1] <= DESCENT_COLUMNS:
        descend(weight, fitted, energy, hot, steps, passes=1)
    cold, hot_weight = _apart(fitted, hot, name)
    return coded(w4.encode(cold, scale, multiplier, shift, ThreadPool(1)), multiplier, shift, scale, hot, hot_weight)


def _search(cold: np.ndarray, hot: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes, steps and scales of least error outside of the ``hot`` columns, which are 0 in ``cold``."""
    counted = np.ones(cold.shape[1], np.float32)
    counted[hot] = 0
    return w4.search(cold, counted, ThreadPool(1))


def dense(weight: CodedWeight) -> np.ndarray:
    """What ``weight`` multiplies with: float32 [N, K], hot channels as they are kept."""
    rows, columns = len(weight.weight_scale), weight.columns
    tiles = w4.expand(weight.codes, rows, columns, ThreadPool(1))
    found = unpack_tiles(tiles, rows, columns) * weight.weight_scale[:, None]
    found[:, weight.hot_index] = weight.hot_weight.T
    return found


def _steps(scale: np.ndarray, multiplier: np.ndarray, shift: np.ndarray) -> Steps:
    """The codes that a row may have in each of its groups."""
    step = np.ascontiguousarray((scale[:, None] * multiplier).T)
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    return Steps(step, inverse, np.ascontiguousarray(shift.T, np.float32))


def coded(
    codes: np.ndarray, multiplier: np.ndarray, shift: np.ndarray, scale: np.ndarray, hot: np.ndarray, hot_weight: np.ndarray
) -> CodedWeight:
    """The weight of uint8 ``codes`` [N, K] with the steps uint8 [N, ceil(K/32)] and ``scale`` float32 [N]."""
    rows, columns = codes.shape
    panels = w4.pack_codes(codes, multiplier, shift)
    row_sum = row_sums(w4.expand(panels, rows, columns, ThreadPool(1)), rows)
    return CodedWeight(panels, scale, row_sum, np.ascontiguousarray(hot, np.int32), hot_weight, columns)


def _apart(weight: np.ndarray, hot: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """``weight`` with zeros for its ``hot`` columns, and these as float16 [H, N]."""
    if not np.isfinite(weight).all():
        raise InvalidModel(f"`{name}` holds a value that is not finite, so it cannot be quantized")
    with np.errstate(over="ignore"):
        hot_weight = np.ascontiguousarray(weight[:, hot].T, np.float16)
    if not np.isfinite(hot_weight).all():
        raise InvalidModel(f"`{name}` holds a value above {MAX_FLOAT16:g} that must be kept in float16")
    cold = np.array(weight, np.float32)
    cold[:, hot] = 0
    return cold, hot_weight
