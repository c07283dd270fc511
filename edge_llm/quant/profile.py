"""Which activations stand out: per linear, the static INT8 scale and the hot channels that the shadow keeps exact.

Input of a linear is x [tokens, channels], seen while calibration text runs through the float model.

    hot channels J   the calibration maximum stands > 4x above the median channel's; at most 3 % (at least 1 allowed),
                     the strongest first.  They leave the INT8 product altogether.
    input scale s    99.9th percentile of |x| outside J, over 127.  What is above is the cold residual: exact, but paid
                     for per value, so s trades speed (fewer overflows) against accuracy (finer steps).

A few tokens (the first of a sequence above all) can carry activations hundreds of times larger than the rest in every
channel ("attention sinks": Xiao et al., 2023, arXiv 2309.17453).  Rows that stand out as a whole are left to the
residual: they move neither the scale nor the median channel, but a channel in which they peak may still become hot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from edge_llm.errors import NumericError
from edge_llm.quant.scheme import LIMIT

HOT_FACTOR = 4.0
"""A channel is hot when its maximum is this many times the median channel's."""
HOT_SHARE = 0.03
"""At most this share of a linear's input channels is hot."""
PERCENTILE = 99.9
"""Of |x| outside the hot channels; the scale maps it to 127."""
SINK_FACTOR = 8.0
"""A row is a sink when its level (97th percentile of |x| in the row) is this many times the median row's."""
_WIDEST = 1e6
"""Bound on max |x| / (127 s) in calibration, so that a residual stays far from float32's end."""


class ChannelStatistics:
    """|x| of one linear's input, collected over calibration sequences."""

    def __init__(self, columns: int, name: str = "linear") -> None:
        self.columns = columns
        self._name = name
        self._rows: list[np.ndarray] = []

    def add(self, x: np.ndarray) -> None:
        """Take in x float32 [tokens, channels]; raises `NumericError` if it is not finite."""
        values = np.abs(x.reshape(-1, self.columns))
        if not np.isfinite(values).all():
            raise NumericError(
                f"the input of `{self._name}` became infinite or not-a-number on the calibration text; "
                "the source's weights are damaged"
            )
        self._rows.append(values)

    @property
    def tokens(self) -> int:
        return sum(len(rows) for rows in self._rows)

    def absolute(self) -> np.ndarray:
        """|x|, float32 [tokens, channels]."""
        if len(self._rows) != 1:
            self._rows = [np.concatenate([np.zeros((0, self.columns), np.float32), *self._rows])]
        return self._rows[0]

    def sinks(self) -> np.ndarray:
        """Bool [tokens]: rows whose activations stand out as a whole."""
        values = self.absolute()
        if not len(values):
            return np.zeros(0, bool)
        index = int(0.97 * (self.columns - 1))
        level = np.partition(values, index, axis=1)[:, index]
        return np.asarray(level > SINK_FACTOR * np.median(level))


def choose_hot(statistics: ChannelStatistics, factor: float = HOT_FACTOR, share: float = HOT_SHARE) -> np.ndarray:
    """Hot channels, int32 [H] ascending."""
    values = statistics.absolute()
    limit = max(2, int(np.ceil(share * statistics.columns)))
    regular = values[~statistics.sinks()]
    if not len(regular) or statistics.columns < 2:
        return np.empty(0, np.int32)
    largest = regular.max(axis=0)
    typical = float(np.median(largest))
    if typical <= 0.0:  # most channels are silent: the few that are not need no shadow to be told apart
        return np.empty(0, np.int32)
    # channels that are hot on ordinary tokens come first, those that only peak on sinks after them
    for_all = values.max(axis=0)
    order = sorted(
        np.flatnonzero(for_all > factor * typical), key=lambda c: (largest[c] <= factor * typical, -for_all[c])
    )
    return np.sort(np.array(order[:limit], np.int32))


def choose_scale(statistics: ChannelStatistics, hot: np.ndarray, percentile: float = PERCENTILE) -> float:
    """Static input scale, exactly representable in float32."""
    values = np.delete(statistics.absolute(), hot, axis=1)
    regular = values[~statistics.sinks()]
    if not regular.size or not (largest := float(values.max())):
        return 1.0
    high = float(np.percentile(regular, percentile)) or float(regular.max()) or largest
    return float(np.float32(max(high, largest / _WIDEST, 1e-20) / LIMIT))


@dataclass(frozen=True)
class LinearProfile:
    """What calibration found about one linear's input."""

    hot: int
    """Number of hot channels."""
    largest: float
    """Maximum |x|."""
    largest_cold: float
    """Maximum |x| outside the hot channels."""
    overflow: float
    """Share of the values outside the hot channels that is above 127 steps of the scale: the cold residual."""
    error: float
    """|| y_int8 - y_float ||^2 / || y_float ||^2 of the linear's output with its shadow."""
    error_without_shadow: float
    """The same without its shadow: what the shadow is worth here."""


@dataclass(frozen=True)
class OutlierProfile:
    """The whole model's outliers and how they were found."""

    percentile: float
    hot_factor: float
    hot_share: float
    calibration: str
    """Digest of the calibration text."""
    tokens: int
    """Tokens of it that were run."""
    linears: Mapping[str, LinearProfile]

    def to_fields(self) -> dict[str, Any]:
        """As a manifest holds it."""
        fields = {key: value for key, value in vars(self).items() if key != "linears"}
        return fields | {"linears": {name: asdict(linear) for name, linear in self.linears.items()}}

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> OutlierProfile:
        """Back from a manifest; raises `KeyError` or `TypeError` when it is not a profile."""
        values = dict(fields)
        linears = {name: LinearProfile(**linear) for name, linear in values.pop("linears").items()}
        return OutlierProfile(linears=linears, **values)
