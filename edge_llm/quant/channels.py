"""The input of a linear, collected over calibration sequences.

A few tokens (the first of a sequence above all) can carry activations hundreds of times larger than the rest in every
channel ("attention sinks": Xiao et al., 2023, arXiv 2309.17453); such rows are found here.
"""

from __future__ import annotations

import numpy as np

from edge_llm.errors import NumericError
from edge_llm.kernels.floats import row_levels
from edge_llm.quant.turning import turned

NO_CHANNELS = np.empty(0, np.int32)
SINK_FACTOR = 8.0
"""A row is a sink when its level (97th percentile of |x| in the row) is this many times the median row's."""


class ChannelStatistics:
    """One linear's input, collected over calibration sequences."""

    def __init__(self, columns: int, name: str = "linear") -> None:
        self.columns = columns
        self.name = name
        self._parts: list[np.ndarray] = []
        self._sinks: np.ndarray | None = None
        self._peaks: np.ndarray | None = None

    def add(self, x: np.ndarray) -> None:
        """Add x float32 [tokens, channels] (kept, not copied); raises `NumericError` if it is not finite."""
        if x.ndim != 2 or x.shape[1] != self.columns:
            raise ValueError(f"x must be [tokens, {self.columns}], got {list(x.shape)}")
        if not np.isfinite(x).all():
            raise NumericError(
                f"the input of `{self.name}` became infinite or not-a-number on the calibration text; "
                "the source's weights are damaged, or do not belong to its config.json"
            )
        self._parts.append(x)
        self._sinks = self._peaks = None

    def rows(self) -> np.ndarray:
        """All of x, float32 [tokens, channels]."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.zeros((0, self.columns), np.float32), *self._parts])]
        return self._parts[0]

    def divided(self, factors: np.ndarray) -> ChannelStatistics:
        """The same input with its channels divided by ``factors`` [channels]."""
        divided = ChannelStatistics(self.columns, self.name)
        divided.add(self.rows() / factors)
        return divided

    def turned(self, block: int) -> ChannelStatistics:
        """The same input with its channels turned in blocks of ``block``; 0: as it is."""
        if not block:
            return self
        found = ChannelStatistics(self.columns, self.name)
        found.add(turned(self.rows(), block))
        return found

    def thinned(self, rows: int) -> ChannelStatistics:
        """About ``rows`` of the rows, evenly spread."""
        thinned = ChannelStatistics(self.columns, self.name)
        thinned.add(np.ascontiguousarray(self.rows()[:: spacing(len(self.rows()), rows)]))
        return thinned

    def sinks(self) -> np.ndarray:
        """Bool [tokens]: rows whose activations stand out as a whole."""
        if self._sinks is None:
            self._sinks = self._find_sinks()
        return self._sinks

    def _find_sinks(self) -> np.ndarray:
        values = self.rows()
        if not values.size:
            return np.zeros(len(values), bool)
        level = row_levels(values, int(0.97 * (self.columns - 1)))
        return np.asarray(level > SINK_FACTOR * np.median(level))

    def peaks(self) -> np.ndarray:
        """The largest magnitude of every channel, float32 [channels]; 0 without rows."""
        if self._peaks is None:
            self._peaks = peaks_of(self.rows())
        return self._peaks


def spacing(rows: int, few: int) -> int:
    """How far about ``few`` rows lie apart that are spread evenly over ``rows``."""
    return max(1, rows // few)


def peaks_of(x: np.ndarray) -> np.ndarray:
    """Largest magnitudes of the channels of x [tokens, channels]."""
    return np.asarray(np.maximum(x.max(axis=0, initial=0.0), np.abs(x.min(axis=0, initial=0.0))))
