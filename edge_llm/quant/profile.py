"""Which activations stand out: per linear, the static INT8 scale and the hot channels that the shadow keeps exact.

The input of a linear is x [tokens, channels], seen while calibration text runs through the float model, its channels made
even by what can be folded into weights (`folding`).

    hot channels J   the calibration maximum stands > 4x above the median channel's; at most 3 % (2 are always allowed),
                     the strongest first.  They leave the INT8 product altogether.
    input scale s    maps a high percentile of |x| outside J to 127.  Values above it are the cold residual: exact, at a
                     cost per value.  The percentile (98 to 100) is the one with the least
                     rounding error + price * overflow: a heavy-tailed input (that of `down`) gets finer steps at the
                     price of more overflow, a bell-shaped one does not.

Rows that stand out as a whole (`channels`) do not count for the scale and the median channel; their overflow goes into the
residual, and a channel in which they peak may still become hot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from edge_llm.config import ROW, STATIC
from edge_llm.errors import NumericError
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.floats import column_squares, product, rounding_errors
from edge_llm.kernels.linear import Int8Linear, linear
from edge_llm.quant.channels import ChannelStatistics, peaks_of
from edge_llm.quant.folding import Fold, column_energy
from edge_llm.quant.scheme import LIMIT, MAX_FLOAT16, QuantizedWeight, quantize_weight
from edge_llm.quant.shadow import COLD, FULL, NONE, Treatment, product_cost, shadow_cost
from edge_llm.quant.static_scale import static_scales

HOT_FACTOR = 4.0
"""A channel is hot when its maximum is this many times the median channel's."""
HOT_SHARE = 0.03
"""At most this share of a linear's input channels is hot."""
FEWEST_HOT = 2
"""Hot channels that are allowed however few channels there are."""
PERCENTILES = (98.0, 98.5, 99.0, 99.25, 99.5, 99.7, 99.8, 99.9, 99.95, 99.97, 99.99, 100.0)
OVERFLOW_PRICE = 0.01
"""Relative output error that one unit of overflow share costs: 0.1 % of overflowing values ~ an error of 1e-5.

Measured on stories260k against 99.9 % everywhere: half the KL for 2.6x the overflows.
"""
TURNED_PRICE, TURNED_HEAD_PRICE = 0.012, 0.001
"""The same behind turns, for linears of the layers and for the output matrix, whose error the logits feel at once.

Measured on SmolLM2-135M with static scales everywhere, at about the same overflow: KL 2.6e-3 with one price, 2.4e-3 with two.
"""
EXACT_PRICE = 0.003
"""The same where channels are not turned and a shadow is kept: as exact as a static scale gets."""
_WIDEST = 1e6
"""Bound on max |x| / (127 s) in calibration, so that a residual stays far from float32's end."""
_SAMPLE = 2**22
"""Most values that the search for a scale uses."""
_FEW_VALUES = 2**16
"""The same where only an estimate is wanted."""
_ERROR_ROWS = 128
"""Rows on which a linear's error is measured; fewer where the output is very wide."""


def choose_hot(statistics: ChannelStatistics, factor: float = HOT_FACTOR, share: float = HOT_SHARE) -> np.ndarray:
    """Hot channels, int32 [H] ascending."""
    regular = statistics.rows()[~statistics.sinks()]
    limit = max(FEWEST_HOT, int(np.ceil(share * statistics.columns)))
    if not regular.size:
        return np.empty(0, np.int32)
    usual, largest = peaks_of(regular), statistics.peaks()
    bar = factor * float(np.median(usual))
    if bar <= 0.0:  # most channels are zero, so no channel is typical
        return np.empty(0, np.int32)
    # channels that are hot on ordinary tokens come first, after them those that only peak on sinks
    order = sorted(np.flatnonzero(largest > bar), key=lambda channel: (usual[channel] <= bar, -largest[channel]))
    return np.sort(np.array(order[:limit], np.int32))


class ScaleSearch:
    """The candidates for a linear's static input scale, and the errors that each causes outside the hot channels.

    ``weight_energy`` float [K] is the squared length of every weight column (default: all equal): how much of an input
    channel's rounding error reaches the output.  ``most_values`` limits how many values of the input are used.
    """

    def __init__(
        self,
        statistics: ChannelStatistics,
        hot: np.ndarray,
        weight_energy: np.ndarray | None = None,
        most_values: int = _SAMPLE,
    ) -> None:
        cold = np.ones(statistics.columns, bool)
        cold[hot] = False
        regular = np.flatnonzero(~statistics.sinks())
        values = len(regular) * statistics.columns
        largest = float(statistics.peaks()[cold].max(initial=0.0))
        self._scales = np.ones(1)
        self._rounding = self._clipping = self._overflow = np.zeros(1)
        if not largest or not values:
            return
        energy = np.ones(statistics.columns) if weight_energy is None else weight_energy.astype(np.float64)
        sample = np.abs(statistics.rows()[regular[:: -(-values // most_values)]])
        output = float((column_squares(sample) / len(sample) * energy).sum())
        sample, energy = np.ascontiguousarray(sample[:, cold].T), energy[cold]
        least = max(largest / _WIDEST, 1e-20) / LIMIT
        self._scales = np.maximum(percentiles(sample) / LIMIT, least)
        measured = [_errors(sample, input_scale, energy) for input_scale in self._scales]
        unit = self._scales**2 / output if output > 0.0 else np.zeros(len(measured))
        self._rounding = unit * [rounding for rounding, _, _ in measured]
        self._clipping = unit * [clipping for _, clipping, _ in measured]
        self._overflow = np.array([overflow for _, _, overflow in measured])

    def best(self, price: float) -> float:
        """The scale with the least rounding error + ``price`` * share of the values that overflow."""
        return self._least(self._rounding + price * self._overflow)

    def best_clipped(self) -> float:
        """The scale with the least error where values that overflow are clipped."""
        return self._least(self._rounding + self._clipping)

    def _least(self, costs: np.ndarray) -> float:
        return float(np.float32(self._scales[int(np.argmin(costs))]))


def percentiles(values: np.ndarray) -> np.ndarray:
    """The `PERCENTILES` of ``values``, float64, interpolated as NumPy does; only values above the lowest of them are sorted."""
    at = (values.size - 1) * (np.array(PERCENTILES) / 100.0)
    below = np.floor(at).astype(np.intp)
    above, first = np.minimum(below + 1, values.size - 1), below[0]
    last = np.sort(np.partition(values.reshape(-1), first)[first:])
    a, b, share = last[below - first], last[above - first], at - below
    step = b - a
    return np.where(share < 0.5, a + step * share, b - step * (1.0 - share))


def _errors(magnitudes: np.ndarray, input_scale: float, energy: np.ndarray) -> tuple[float, float, float]:
    """Squared error of rounding and of clipping in the output, and the share that overflows.

    ``magnitudes`` is |x| [K, tokens].
    """
    rounded, clipped, over = rounding_errors(magnitudes, float(np.float32(1.0 / input_scale)))
    tokens = magnitudes.shape[1]
    lost = float((clipped / tokens * energy).sum())
    return float((rounded / tokens * energy).sum()) - lost, lost, float(over.sum() / magnitudes.size)


def largest_scale(statistics: ChannelStatistics) -> float:
    """The scale that ignores outliers: it maps the maximum of all |x| to 127."""
    largest = float(statistics.peaks().max(initial=0.0))
    return float(np.float32(max(largest, 1e-20) / LIMIT)) if largest else 1.0


def treatments(
    statistics: ChannelStatistics, weight: np.ndarray, judged: np.ndarray | None = None
) -> tuple[Treatment, ...]:
    """The treatments of the outliers of a linear ``weight`` float32 [N, K]: none, and all that stands out kept exact.

    ``judged`` is the same weight with every row scaled by its importance (default: ``weight`` itself).
    """
    judged = weight if judged is None else judged
    energy = column_energy(judged)
    no_hot: np.ndarray = np.empty(0, np.int32)
    hot = _that_fit(_that_fit(choose_hot(statistics), weight), judged)
    sample = _Sample(statistics, judged)
    clipped = ScaleSearch(statistics, no_hot, energy).best_clipped()
    kept = ScaleSearch(statistics, hot, energy).best(EXACT_PRICE)
    return sample.treat(NONE, no_hot, clipped), sample.treat(FULL if len(hot) else COLD, hot, kept)


def turned_treatments(
    statistics: ChannelStatistics, weight: np.ndarray, price: float = TURNED_PRICE
) -> tuple[Treatment, ...]:
    """The treatments of a linear ``weight`` float32 [N, K] whose input is turned, both given as they meet.

    Rows have scales of their own; where a device has one scale for all, the first clips what overflows and the second keeps it
    exact, at this ``price``.  No channel is hot.
    """
    no_hot: np.ndarray = np.empty(0, np.int32)
    sample = _Sample(statistics, weight)
    scales = static_scales(statistics.rows(), column_energy(weight), price)
    error = sample.error_of_rows()
    found = sample.treat(NONE, no_hot, scales.clipped), sample.treat(COLD, no_hot, scales.kept)
    return tuple(replace(one, activations=ROW, error_of_rows=error) for one in found)


def error_with_shadow(statistics: ChannelStatistics, weight: np.ndarray, exact: np.ndarray | None = None) -> float:
    """The output error of a linear ``weight`` float32 [N, K] in INT8 with its best shadow, times that shadow's relative time.

    A tenth more time counts as much as a tenth more error.  ``exact`` [tokens, K] is the input that gives the wanted output,
    where it differs from the collected one.
    """
    energy = column_energy(weight)
    sample = _Sample(statistics, weight, exact)
    product = product_cost(*weight.shape)

    def price(shadow: str, hot: np.ndarray) -> float:
        input_scale = ScaleSearch(statistics, hot, energy, _FEW_VALUES).best(OVERFLOW_PRICE)
        treatment = sample.treat(shadow, hot, input_scale)
        return treatment.error * (1.0 + treatment.cost / product)

    hot = _that_fit(choose_hot(statistics), weight)
    found = [price(COLD, np.empty(0, np.int32))]
    if len(hot):
        found.append(price(FULL, hot))
    return min(found)


def _that_fit(hot: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The channels of ``hot`` whose weights are within the range of float16, the type of a shadow's weights."""
    return hot[np.abs(weight[:, hot]).max(axis=0, initial=0.0) <= MAX_FLOAT16]


def naive_treatment(statistics: ChannelStatistics, judged: np.ndarray) -> Treatment:
    """No shadow, and the scale from the maximum."""
    return _Sample(statistics, judged).treat(NONE, np.empty(0, np.int32), largest_scale(statistics))


def output_error(statistics: ChannelStatistics, weight: np.ndarray, product: Callable[[np.ndarray], np.ndarray]) -> float:
    """|| found - wanted ||^2 / || wanted ||^2 where ``product``, rows [M, K] -> [M, N], replaces ``weight`` [N, K]."""
    sample = _Sample(statistics, weight)
    return sample.relative(product(sample.rows))


class _Sample:
    """Some of a linear's calibration rows with its float outputs, with which INT8 is compared."""

    def __init__(self, statistics: ChannelStatistics, weight: np.ndarray, exact: np.ndarray | None = None) -> None:
        x = statistics.rows()
        count = max(1, min(_ERROR_ROWS, _SAMPLE // len(weight)))
        self._name = statistics.name
        self._statistics = statistics
        self._magnitudes = np.abs(x)
        step = max(1, len(x) // count)
        self.rows = np.ascontiguousarray(x[::step][:count])
        self._weight = weight
        self._wanted = product(self.rows if exact is None else exact[::step][:count], weight)
        self._quantized: QuantizedWeight | None = None

    def treat(self, shadow: str, hot: np.ndarray, input_scale: float) -> Treatment:
        """The treatment by ``shadow`` with these numbers: its error in the output, and its cost."""
        rows, columns = self._weight.shape
        cold = np.ones(columns, bool)
        cold[hot] = False
        over = self._over(self._magnitudes, input_scale) - self._over(self._magnitudes[:, hot], input_scale)
        overflow = float(over / max(1, self._magnitudes.size))
        return Treatment(
            shadow=shadow,
            hot=hot,
            input_scale=input_scale,
            error=self._error(hot, input_scale, residual=shadow != NONE),
            cost=0.0 if shadow == NONE else shadow_cost(rows, columns, len(hot), overflow),
            overflow=overflow,
            largest_cold=float(self._statistics.peaks()[cold].max(initial=0.0)),
        )

    @staticmethod
    def _over(magnitudes: np.ndarray, input_scale: float) -> int:
        return int(np.count_nonzero(magnitudes > (LIMIT + 0.5) * input_scale))

    def _error(self, hot: np.ndarray, input_scale: float, residual: bool) -> float:
        return self._checked(self._product(hot, input_scale, residual))

    def _product(self, hot: np.ndarray, input_scale: float | None, residual: bool) -> np.ndarray:
        q = self._quantize(hot)
        product_scale = q.weight_scale if input_scale is None else np.float32(input_scale) * q.weight_scale
        rows, columns = self._weight.shape
        weight = Int8Linear(q.tiles, rows, columns, input_scale, product_scale, q.row_sum, q.hot_index, q.hot_weight, None)
        return linear(self.rows, weight, ThreadPool(1), shadow=residual)

    def _checked(self, found: np.ndarray) -> float:
        error = self.relative(found)
        if not np.isfinite(error):
            raise NumericError(
                f"the output of `{self._name}` became infinite or not-a-number on the calibration text; "
                "the source's weights are damaged, or do not belong to its config.json"
            )
        return error

    def error_of_rows(self) -> float:
        """The error where every row has a scale of its own."""
        return self._checked(self._product(np.empty(0, np.int32), None, residual=False))

    def relative(self, found: np.ndarray) -> float:
        """|| found - wanted ||^2 / || wanted ||^2."""
        length = float(np.square(self._wanted, dtype=np.float64).sum()) or 1.0
        return float(np.square(found - self._wanted, dtype=np.float64).sum() / length)

    def _quantize(self, hot: np.ndarray) -> QuantizedWeight:
        if self._quantized is None or not np.array_equal(self._quantized.hot_index, hot):
            self._quantized = quantize_weight(self._weight, hot, self._name)
        return self._quantized


@dataclass(frozen=True)
class LinearProfile:
    """What calibration measured of one linear: outliers of its input, errors of its output in INT8."""

    hot: int
    """Number of hot channels."""
    largest: float
    """Maximum |x|."""
    largest_cold: float
    """Maximum |x| outside the hot channels."""
    overflow: float
    """Share of the values outside the hot channels and above 127 steps: they are in the cold residual, or clipped."""
    error: float
    """|| y_int8 - y_float ||^2 / || y_float ||^2 of the linear's output as the bundle is made for: with scales of rows where it
    has them, else with the shadow that it keeps."""
    error_without_shadow: float
    """The same error under a static scale, without any shadow."""
    outliers: int | None = None
    """Number of outlier channels, in the shadow or not; None in a bundle from before shadows were chosen."""
    error_full: float | None = None
    """The same error with the whole shadow; where rows have scales: under a static scale, what overflows kept."""


def linear_profile(chosen: Treatment, options: Sequence[Treatment]) -> LinearProfile:
    """The profile of a linear that is treated as ``chosen`` of the possible ``options``, the first of which has no shadow."""
    full = options[-1]
    error = chosen.error if chosen.activations == STATIC else chosen.error_of_rows
    return LinearProfile(
        hot=len(chosen.hot),
        largest=options[0].largest_cold,
        largest_cold=chosen.largest_cold,
        overflow=chosen.overflow,
        error=error,
        error_without_shadow=options[0].error,
        outliers=len(full.hot),
        error_full=full.error,
    )


@dataclass(frozen=True)
class OutlierProfile:
    """The whole model's outliers and how they were found."""

    calibration: str
    """Digest of the calibration text."""
    tokens: int
    """Tokens of it that were run."""
    hot_factor: float
    hot_share: float
    overflow_price: float
    linears: Mapping[str, LinearProfile]
    choice: Mapping[str, float] = field(default_factory=dict)
    """What older imports measured of the calibration text, in percent of perplexity: to choose shadows the budget, and the
    loss of none, kept and full; of 4 bits and fitted weights, `coded`."""
    held_out: Mapping[str, float] = field(default_factory=dict)
    """What the bundle costs on text that nothing was fitted to: the fields of a `quality.Quality`; empty where none was run."""
    folds: Mapping[str, Fold] = field(default_factory=dict)
    """The folds that were made before shadows were chosen, by linear and for ``layers.N.keys`` and ``.values``."""

    def to_fields(self) -> dict[str, Any]:
        """The fields of the profile in a manifest."""
        fields = {key: value for key, value in vars(self).items() if key not in ("linears", "folds")}
        return fields | {
            "linears": {name: asdict(linear) for name, linear in self.linears.items()},
            "folds": {name: asdict(fold) for name, fold in self.folds.items()},
        }

    @staticmethod
    def from_fields(fields: Mapping[str, Any]) -> OutlierProfile:
        """The profile in a manifest's ``fields``; raises `KeyError` or `TypeError` for any others."""
        values = dict(fields)
        linears = {name: LinearProfile(**linear) for name, linear in values.pop("linears").items()}
        folds = {name: Fold.from_fields(fold) for name, fold in values.pop("folds", {}).items()}
        return OutlierProfile(linears=linears, folds=folds, **values)
