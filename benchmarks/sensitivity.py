"""Signs by which one may guess which linears suffer most from fewer bits, for `quantization.py`; nothing here runs a model.

A sign is a number per linear; all of them are larger where more harm is expected.  They need no trial of the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from quantizers import Linear, StandIn

from edge_llm.quant.quality import log_softmax

_ROWS = 256
"""Calibration rows on which a linear's output is looked at."""

Sign = Callable[[Linear, StandIn], float]


def range_over_quartiles(x: np.ndarray) -> float:
    """(max - min) / (third quartile - first) of all values."""
    low, high = np.percentile(x, [25, 75])
    return float((x.max() - x.min()) / max(high - low, 1e-30))


def energy_in_one_direction(weight: np.ndarray) -> float:
    """The largest singular value over the sum of all."""
    values = np.linalg.svd(weight, compute_uv=False)
    return float(values[0] / values.sum())


def output_error(linear: Linear, stand_in: StandIn) -> float:
    """The squared error of the linear's output, relative."""
    wanted, found = _outputs(linear, stand_in)
    return float(np.square(found - wanted).sum() / np.square(wanted).sum())


def output_divergence(linear: Linear, stand_in: StandIn) -> float:
    """KL of the linear's outputs, each row taken as logits."""
    wanted, found = map(log_softmax, _outputs(linear, stand_in))
    return float((np.exp(wanted) * (wanted - found)).sum(axis=1).mean())


def _outputs(linear: Linear, stand_in: StandIn) -> tuple[np.ndarray, np.ndarray]:
    x = linear.seen.thinned(_ROWS).rows()
    return x @ linear.weight.T, stand_in(x)


SIGNS: Mapping[str, Sign] = {
    "range over quartiles of the weights": lambda linear, _: range_over_quartiles(linear.weight),
    "range over quartiles of the inputs": lambda linear, _: range_over_quartiles(linear.seen.rows()),
    "energy in one direction of the weights": lambda linear, _: energy_in_one_direction(linear.weight),
    "relative error of the output": output_error,
    "KL of the output, taken as logits": output_divergence,
}


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's: 1 where both have the same order, -1 where it is turned round; equal values share their rank."""
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    found = np.asarray(values)
    return np.array([(found < value).sum() + ((found == value).sum() - 1) / 2 for value in found])


def by_layer_and_kind(measure: Callable[[Sequence[str]], float], names: Sequence[str]) -> dict[str, float]:
    """What a linear's whole layer costs times what its kind costs.

    ``measure`` gives the cost where only these linears have fewer bits.
    """
    layers, kinds = ({name.rpartition(".")[part]: 0.0 for name in names} for part in (0, 2))
    cost = {layer: measure([name for name in names if name.rpartition(".")[0] == layer]) for layer in layers}
    cost |= {kind: measure([name for name in names if name.rpartition(".")[2] == kind]) for kind in kinds}
    return {name: cost[name.rpartition(".")[0]] * cost[name.rpartition(".")[2]] for name in names}
