"""Factors that make uneven channels even, and what was found when they were chosen.

INT8 rounds all channels of an activation with one step, so a loud channel costs the quiet ones their precision.  A channel
x may be divided by f where its reader multiplies by f.  With the step in proportion to the p-norm of x / f, the rounding
error in the reader's output is least for

    f = a^power / w^(1 - power)      power = p / (p + 2)

    a   p-norm of the channel's values over the tokens (1/n sum |x|^p)^(1/p)
    w   Euclidean length of the weights that read it

Power 0.5 takes the root mean square, higher powers look at the loudest tokens more.  A model whose channels were made
uneven by any such factors gives the same folded model again: a grows as f does, and w shrinks by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_llm.kernels.floats import channel_powers, column_squares, exp64, log64, power64

POWERS = (0.5, 0.75)
"""Powers that are tried, beside leaving the channels as they are; p is even for each."""
_WIDEST = 27.725887222397812  # 40 ln 2
"""Bound on a factor's logarithm, so that folded weights stay far from float32's ends."""
_ROWS = 1024
"""Rows of a weight that are squared at a time."""


def channel_level(x: np.ndarray, power: float) -> np.ndarray:
    """The level a of every channel of x [tokens, channels] for ``power``, float64 [channels]."""
    p = 2.0 * power / (1.0 - power)
    largest, raised = channel_powers(x, round(p / 2.0))
    return np.asarray(largest.astype(np.float64) * power64(raised / len(x), 1.0 / p))


def column_length(weight: np.ndarray) -> np.ndarray:
    """Euclidean length of every column of ``weight`` [N, K], float64 [K]."""
    largest = max(float(weight.max(initial=0.0)), -float(weight.min(initial=0.0))) or 1.0
    return np.asarray(largest * np.sqrt(column_energy(weight, largest)))  # a square of a float32 may overflow


def column_energy(weight: np.ndarray, unit: float = 1.0) -> np.ndarray:
    """Squared length in ``unit`` of every column of ``weight`` [N, K], float64 [K], added row by row."""
    energy = np.zeros(weight.shape[1])
    for start in range(0, len(weight), _ROWS):
        energy += column_squares(weight[start : start + _ROWS], unit)
    return energy


def even_factors(level: np.ndarray, length: np.ndarray, power: float) -> np.ndarray:
    """f of every channel, float32; 1 where a channel or its reader is silent.

    With the power 0.5 a channel ends as loud as its reader is long: sqrt(a w) both.
    """
    heard = (level > 0.0) & (length > 0.0)
    logs = np.zeros(level.shape)
    logs[heard] = power * log64(level[heard]) - (1.0 - power) * log64(length[heard])
    return exp64(np.clip(logs, -_WIDEST, _WIDEST)).astype(np.float32)


@dataclass(frozen=True)
class Fold:
    """What was folded in one place, for one or several heads, and what it was worth."""

    powers: tuple[float, ...]
    """Power of every head, or of the whole linear; 0 where the channels stay as they are."""
    spread: float
    """Geometric standard deviation of the factors: 1 where nothing was folded."""
    error: float | None = None
    """Relative squared error of the result in INT8, outliers treated; None where the fold was not searched for."""
    error_unfolded: float | None = None
    """The same without the fold."""

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> Fold:
        """Back from a manifest; raises `KeyError` or `TypeError` when it is not a fold."""
        return Fold(**{**fields, "powers": tuple(fields["powers"])})


def spread(factors: np.ndarray) -> float:
    """Geometric standard deviation of ``factors``."""
    return float(exp64(log64(factors).std()))
