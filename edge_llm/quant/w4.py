"""Quantizing to W4: an INT8 weight whose values are 4-bit codes in integer steps, hot input channels kept in float16.

    w[n, k] ~ weight_scale[n] * m[n, g] * (CODEBOOK[code[n, k]] - z[n, g])     g = k // 32; hot channels are not counted
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_llm.errors import InvalidModel
from edge_llm.quant.gptq import descend, gptq
from edge_llm.quant.scheme import MAX_FLOAT16
from kernels import ThreadPool, w4
from kernels.gptq import Steps
from kernels.layout import row_sums, unpack_tiles
from kernels.types import TILE_DEPTH

PASSES, FEW_PASSES = 3, 1
"""Passes of coordinate descent; the first gains some 4 % of the error, the next two 2 %, and a pass takes twice GPTQ's time."""
MANY_COLUMNS = 2048
"""Above so many there are `FEW_PASSES`."""


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
        return {
            "codes": self.codes,
            "scale": self.weight_scale,
            "row_sum": self.row_sum,
            "hot_index": self.hot_index,
            "hot_weight": self.hot_weight,
        }


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
    """``weight`` [N, K] fitted to inputs of ``energy`` [K, K]: GPTQ, coordinate descent, the best scales.

    The steps are those of the rounded weight, which is ``near`` where there is one already; weighted by the inputs' energy
    they were no better.  Raises `InvalidModel` as `round_weight`.
    """
    near = near or round_weight(weight, hot, name)
    scale, (multiplier, shift) = near.weight_scale, w4.steps_of(near.codes, *weight.shape)
    steps = _steps(scale, multiplier, shift)
    fitted = gptq(weight, energy, hot, steps)
    descend(weight, fitted, energy, hot, steps, FEW_PASSES if weight.shape[1] > MANY_COLUMNS else PASSES)
    cold, hot_weight = _apart(fitted, hot, name)
    codes = w4.encode(cold, scale, multiplier, shift, ThreadPool(1))
    return coded(codes, multiplier, shift, scale * _best_factors(weight, fitted, cold, energy), hot, hot_weight)


def _search(cold: np.ndarray, hot: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes, steps and scales of least error outside of the ``hot`` columns, which are 0 in ``cold``."""
    counted = np.ones(cold.shape[1], np.float32)
    counted[hot] = 0
    return w4.search(cold, counted, ThreadPool(1))


def _best_factors(weight: np.ndarray, fitted: np.ndarray, cold: np.ndarray, energy: np.ndarray) -> np.ndarray:
    """What the scale of every row is best multiplied with: float32 [N]; the hot columns of ``fitted`` stay."""
    seen = cold @ energy
    wanted, there = np.einsum("nk,nk->n", weight - (fitted - cold), seen), np.einsum("nk,nk->n", cold, seen)
    sound = (there > 0) & np.isfinite(there) & np.isfinite(wanted)  # products of enormous weights may leave float32
    factors = np.divide(wanted, there, out=np.ones_like(there), where=sound)
    return np.asarray(np.clip(factors, 0.5, 2.0), np.float32)


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
