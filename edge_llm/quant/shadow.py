"""What can be done about the outliers of a linear's input, and what that costs.

Every linear can do without a shadow, at its own best clipping scale (`none`), add its overflow back (`cold`), or compute
its hot channels in float as well (`full`).  (llm.npu, arXiv 2407.05858, §3.3.)  Behind turns no channel is hot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_llm.config import INT8, STATIC

NONE, COLD, FULL = SHADOWS = ("none", "cold", "full")

PRODUCT_PICOSECONDS = 2.2
"""One core's time for an INT8 multiply-add, measured (AVX512-VNNI, 256 rows); the ratios between the three are what matters.
Where products are slower (AVX2: 9), shadows weigh less."""
HOT_PICOSECONDS = 20.0
"""For one output of one hot channel."""
OVERFLOW_PICOSECONDS = 50.0
"""For one output of one overflowing value."""


@dataclass(frozen=True)
class Treatment:
    """One way to treat the input of a linear: the numbers it is quantized with, and what they do."""

    shadow: str
    """One of `SHADOWS`."""
    hot: np.ndarray
    """Hot channels, int32 [H] ascending."""
    input_scale: float
    error: float
    """|| y_int8 - y_float ||^2 / || y_float ||^2 of the output."""
    cost: float
    """Microseconds per row that the shadow takes one core."""
    overflow: float = 0.0
    """Share of the values outside the hot channels that lie above 127 steps: clipped when there is no shadow."""
    largest_cold: float = 0.0
    """Maximum |x| outside the hot channels."""
    scheme: str = INT8
    """The weight scheme."""
    activations: str = STATIC
    """The scales that it is made for; the input scale is that of devices which have no other."""
    input_offset: int = 0
    """Steps that are added to a rounded activation: of linears that somebody else quantized."""
    error_of_rows: float = 0.0
    """The error of the output where every row has a scale of its own."""
    active: float = 1.0
    """Share of the runs of neurons that a row activates, in a scheme that reads no others."""


def shadow_cost(rows: int, columns: int, hot: int, overflow: float) -> float:
    """Microseconds per row of a shadow of ``hot`` channels and ``overflow`` values per value, for a linear [rows, columns]."""
    return 1e-6 * rows * (HOT_PICOSECONDS * hot + OVERFLOW_PICOSECONDS * overflow * columns)


def product_cost(rows: int, columns: int) -> float:
    """Microseconds per row of the INT8 product of a linear [rows, columns]."""
    return 1e-6 * PRODUCT_PICOSECONDS * rows * columns
