"""The folds in front of a turn, in closed form.

A turn spreads each side's energy evenly over a block.  Rounding an input x / f and a weight W diag(f) with steps that follow
their rows' largest values then costs, in the output, in proportion to

    sum_j (rms(x_j) / f_j)^2 * sum_j (f_j |W_j|)^2

which is least at f_j = sqrt(rms(x_j) / |W_j|) (Cauchy-Schwarz): there is nothing to search.  The same holds of keys and the
queries that they meet.  Rows that stand out as a whole do not count: few of them would choose for all.
"""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np

from edge_llm.convert.calibrate import key_offset
from edge_llm.convert.folds import Calibration, FoldedLayer
from edge_llm.convert.layer_folds import places
from edge_llm.operations.attention import KEYS, VALUES, Attention
from edge_llm.operations.base import LayerWeights, Place
from edge_llm.operations.layer import Layer
from edge_llm.quant.channels import ChannelStatistics
from edge_llm.quant.folding import Fold, channel_level, column_length, even_factors, spread

POWER = 0.5


def even_folds(layer: Layer, weights: LayerWeights, calibration: Calibration, pool: Executor) -> FoldedLayer:
    """The folds of every place of ``layer``."""

    def choose(place: Place) -> np.ndarray:
        if place.name == KEYS:
            return _key_factors(layer, weights, calibration)
        length = np.sqrt(sum(np.square(column_length(weights.linears[one.name].weight)) for one in place.readers))
        level = _level(calibration.seen[place.readers[0].name])
        if place.name == VALUES:
            level, length = (_by_key_head(one, layer.attention) for one in (level, length))
        return even_factors(level, length, POWER)

    chosen = dict(zip(places(layer), pool.map(choose, places(layer).values()), strict=True))
    return FoldedLayer(chosen, {name: Fold((POWER,), spread(factors)) for name, factors in chosen.items()})


def even_linear(seen: ChannelStatistics, weight: np.ndarray) -> tuple[np.ndarray, Fold]:
    """Factors of the channels that ``weight`` float32 [N, K] reads."""
    factors = even_factors(_level(seen), column_length(weight), POWER)
    return factors, Fold((POWER,), spread(factors))


def _level(seen: ChannelStatistics) -> np.ndarray:
    """Root mean square of every channel over ordinary rows, float64 [K]."""
    regular = seen.rows()[~seen.sinks()]
    return channel_level(regular if len(regular) else seen.rows(), POWER)


def _by_key_head(values: np.ndarray, attention: Attention) -> np.ndarray:
    """Lengths [heads * head_dim] -> [kv heads, head_dim]: those of the query heads of a key head together."""
    grouped = values.reshape(attention.kv_heads, -1, attention.head_dim)
    return np.asarray(np.sqrt(np.square(grouped).sum(axis=1)))


def _key_factors(layer: Layer, weights: LayerWeights, calibration: Calibration) -> np.ndarray:
    """Factors [kv heads, head_dim / 2] of rotation pairs, whose lengths a rotation keeps."""
    attention, linear = layer.attention, weights.linears[layer.projection.name]
    product = calibration.products[layer.projection.name]
    heads = (product if linear.bias is None else product + linear.bias).reshape(len(product), -1, attention.head_dim)
    queries, keys = heads[:, : attention.heads], heads[:, attention.heads : attention.heads + attention.kv_heads]
    queries, keys = attention.normed(queries, keys, weights.gains)
    offset = key_offset(layer, weights, calibration.seen[layer.projection.name], calibration.context)
    energies = (attention.pair_energy(one).mean(axis=0) for one in (queries, keys, offset[None]))
    of_queries, of_keys, of_offset = energies
    read = of_queries.reshape(attention.kv_heads, -1, attention.head_dim // 2).sum(axis=1)
    written = of_keys - of_offset  # the mean key is taken off before keys are rounded
    if attention.k_norm is not None and not attention.norms_all:  # the gains are shared by all heads, so the factors are
        read, written = (np.broadcast_to(one.mean(axis=0), one.shape) for one in (read, written))
    return even_factors(np.sqrt(np.maximum(written, 0)), np.sqrt(read), POWER)
