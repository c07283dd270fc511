"""The static scale of an input whose channels are turned: one for all rows, for devices that have no scale per row.

Every row's error is divided by that row's output energy.  Else a few loud rows, such as the first of a text, choose a scale
that is too coarse for all others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_llm.quant.scheme import LIMIT

PERCENTILES = (98.0, 99.0, 99.5, 99.7, 99.8, 99.9, 99.95, 99.97, 99.99, 100.0)
"""Of the magnitudes: those that are tried as the largest that INT8 holds."""
_ROWS = 192
"""Rows that are looked at."""
_LEAST = 1e-20


@dataclass(frozen=True)
class StaticScales:
    """The scales of an input, by how what is above them is treated."""

    kept: float
    """What overflows is added back, at a price."""
    clipped: float
    """What overflows is cut off."""


def static_scales(rows: np.ndarray, energy: np.ndarray, price: float) -> StaticScales:
    """The scales for ``rows`` float32 [T, K] that meet weights of ``energy`` [K], squared lengths of their columns.

    ``price`` is the relative output error that one unit of overflow share costs.
    """
    some = np.abs(rows[:: max(1, len(rows) // _ROWS)])
    output = np.square(some, dtype=np.float64) @ energy
    some, output = some[output > 0], output[output > 0]
    if not len(some):
        return StaticScales(1.0, 1.0)
    scales = np.maximum(np.percentile(some, PERCENTILES) / LIMIT, _LEAST)
    found = np.array([_errors(some, output, energy, scale) for scale in scales])
    rounding, clipping, overflow = found.T
    kept, clipped = (int(np.argmin(costs)) for costs in (rounding + price * overflow, rounding + clipping))
    return StaticScales(*(float(np.float32(scales[index])) for index in (kept, clipped)))


def _errors(some: np.ndarray, output: np.ndarray, energy: np.ndarray, scale: float) -> tuple[float, float, float]:
    """The relative output error of rounding and of clipping, and the share of the values that overflow."""
    steps = some / np.float32(scale)
    lost = np.square(steps - np.rint(np.minimum(steps, np.float32(LIMIT))), dtype=np.float64) * scale**2
    over = steps > LIMIT + 0.5
    both = (lost @ energy) / output
    clipped = (np.where(over, lost, 0) @ energy) / output
    return float((both - clipped).mean()), float(clipped.mean()), float(over.mean())
