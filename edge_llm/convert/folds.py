"""Which folds a layer gets: the factors from calibration, the power of each by the least error that INT8 then makes.

A place stays as it is where INT8 does clearly better without a fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np

from edge_llm.convert.calibrate import key_offset
from edge_llm.convert.layer_folds import column_factors, no_folds, places
from edge_llm.models.rope import RopeTables
from edge_llm.operations.arithmetic import SAME_BITS, apply_float
from edge_llm.operations.attention import KEYS, VALUES, Attention, for_query_heads
from edge_llm.operations.base import Factors, LayerWeights, Place
from edge_llm.operations.layer import Layer
from edge_llm.operations.questions import AnyLinear
from edge_llm.quant.channels import ChannelStatistics
from edge_llm.quant.folding import POWERS, Fold, channel_level, column_length, even_factors, spread
from edge_llm.quant.profile import error_with_shadow
from edge_llm.quant.scheme import rounded_kv

_ATTENDED_SEQUENCES = 4
"""Sequences on which the error of keys and values is measured."""
FEW_ROWS = 512
"""Tokens on which the error of a linear is measured."""
_OUTPUTS = 2048
"""Outputs of a linear on which it is measured."""

_CLEARLY = 1.1
"""Another power than the first must do better by this factor, or equal models would be folded differently by chance."""

_Attend = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""What attention makes of a whole sequence's queries, keys and values, each float32 [T, heads, head_dim]."""
Seen = Mapping[str, ChannelStatistics]
"""The inputs of a layer's linears, by the linears' names."""


@dataclass(frozen=True)
class Calibration:
    """What a layer did with the calibration sequences."""

    seen: Seen
    products: Mapping[str, np.ndarray]
    """Of each linear, its weight times the rows of ``seen`` `thinned` to `FEW_ROWS`, float32 [rows, N]."""
    lengths: Sequence[int]
    """Tokens of each sequence."""
    tables: RopeTables
    context: int
    """Positions that the model was made for."""


@dataclass(frozen=True)
class FoldedLayer:
    """The folds of one layer, and what was found when they were chosen."""

    factors: Factors
    found: Mapping[str, Fold]
    """By place."""

    def inputs(self, seen: Seen, layer: Layer) -> dict[str, ChannelStatistics]:
        """What the linears read after folding, from what they read before."""
        divisors = column_factors(layer, self.factors)
        return {name: one.divided(divisors[name]) if name in divisors else one for name, one in seen.items()}


def unfolded(layer: Layer) -> FoldedLayer:
    """A layer that stays as it is."""
    return FoldedLayer(no_folds(layer), {})


def choose_folds(layer: Layer, weights: LayerWeights, calibration: Calibration, pool: Executor) -> FoldedLayer:
    """The folds of ``layer`` with ``weights``, each place for itself."""
    heads = _attended(layer, weights, calibration, pool) if layer.attentions else []

    def choose(place: Place) -> tuple[np.ndarray, Fold]:
        if place.name == KEYS:
            return _fold_keys(heads, layer.attention, partial(_attend, layer.attention, weights.gains))
        if place.name == VALUES:
            weight = _stacked(weights.linears[linear.name].weight for linear in place.readers)
            return _fold_values(heads, weight, layer.attention, partial(_attend, layer.attention, weights.gains))
        seen = calibration.seen[place.readers[0].name]
        products = calibration.products.__getitem__
        return fold_linear(seen, _stacked(judged(layer, weights, linear, products) for linear in place.readers))

    chosen = {name: pool.submit(choose, place) for name, place in places(layer).items()}
    made = {name: choice.result() for name, choice in chosen.items()}
    return FoldedLayer({name: factors for name, (factors, _) in made.items()}, {name: fold for name, (_, fold) in made.items()})


def _stacked(matrices: Iterable[np.ndarray]) -> np.ndarray:
    found = list(matrices)
    return found[0] if len(found) == 1 else np.concatenate(found)


def judged(layer: Layer, weights: LayerWeights, linear: AnyLinear, products: Callable[[str], np.ndarray]) -> np.ndarray:
    """The weight of ``linear`` [N, K] by which errors are judged: the more a row matters, the longer it is.

    The rows of o and down write into the same hidden state, where a large one matters more.  Those of qkv and gate_up end
    in channels that are folded themselves: their size says nothing, so each is divided by the level of what it gives.
    ``products`` gives a linear's weight, by its name, times the inputs of about `FEW_ROWS` tokens: float32 [rows, N].
    """
    weight = weights.linears[linear.name].weight
    if not any(reader.evens_its_input for reader in layer.readers(linear)):
        return weight
    level = channel_level(products(linear.name), 0.5).astype(np.float32)
    return np.asarray(weight / np.where(level > 0, level, 1)[:, None])


def fold_linear(seen: ChannelStatistics, weight: np.ndarray) -> tuple[np.ndarray, Fold]:
    """Factors of the channels that ``weight`` float32 [N, K] reads, and what they are worth."""
    few, some, length = seen.thinned(FEW_ROWS), weight[:: max(1, len(weight) // _OUTPUTS)], column_length(weight)

    def error(factors: np.ndarray) -> np.ndarray:
        return np.array([error_with_shadow(few.divided(factors[0]), some * factors[0])])

    factors, fold = _best(lambda power: _linear_factors(seen, length, power)[None], error)
    return factors[0], fold


def _linear_factors(seen: ChannelStatistics, length: np.ndarray, power: float) -> np.ndarray:
    """The factors of all rows that are not sinks; factors from all rows show which rows are sinks."""
    first = even_factors(channel_level(seen.rows(), power), length, power)
    sinks = seen.divided(first).sinks()
    if not sinks.any():
        return first
    regular = seen.rows()[~sinks]
    return even_factors(channel_level(regular, power), length, power) if len(regular) else first


def _best(
    factors_for: Callable[[float], np.ndarray], error: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, Fold]:
    """The factors [heads, channels] of the power whose error [heads] is least, for each head by itself."""
    folded = [factors_for(power) for power in POWERS]
    powers, candidates = (0.0, *POWERS), [np.ones_like(folded[0]), *folded]
    errors = np.stack([error(factors) for factors in candidates])  # [powers, heads]
    handicap = np.array([1.0 if power == POWERS[0] else _CLEARLY for power in powers])
    best = (errors * handicap[:, None]).argmin(axis=0)
    each = np.arange(len(best))
    factors = np.ascontiguousarray(np.stack(candidates)[best, each])
    found, unfolded = float(errors[best, each].mean()), float(errors[0].mean())
    return factors, Fold(tuple(powers[index] for index in best), spread(factors), found, unfolded)


@dataclass(frozen=True)
class _Heads:
    """Queries, keys less their mean and values of one sequence, float32 [T, heads, head_dim], and what attention makes of
    them [T, heads, head_dim]."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    attended: np.ndarray


def _attended(layer: Layer, weights: LayerWeights, calibration: Calibration, pool: Executor) -> list[_Heads]:
    attention, projection = layer.attention, layer.projection
    seen = calibration.seen[projection.name]
    offset = key_offset(layer, weights, seen, calibration.context)
    ends = np.cumsum(calibration.lengths)
    inputs = np.split(seen.rows(), ends[:-1])
    chosen = np.unique(np.linspace(0, len(inputs) - 1, _ATTENDED_SEQUENCES).astype(int))

    def run(x: np.ndarray) -> _Heads:
        qkv = apply_float(weights.linears[projection.name], x, SAME_BITS)
        q, k, v = attention.split(weights.gains, qkv, calibration.tables, np.arange(len(x)))
        k = k - offset
        return _Heads(q, k, v, _attend(attention, weights.gains, q, k, v))

    return list(pool.map(run, [inputs[index] for index in chosen]))


def _fold_keys(heads: Sequence[_Heads], attention: Attention, attend: _Attend) -> tuple[np.ndarray, Fold]:
    """Factors [kv heads, head_dim / 2], each head's power by the least error of what attention gives."""
    group = attention.heads // attention.kv_heads
    keys = _pairs(attention, np.concatenate([one.keys for one in heads]))  # [tokens, kv heads, D/2]
    queries = _pairs(attention, np.concatenate([one.queries for one in heads]))
    read = np.sqrt(np.square(queries).mean(axis=0, dtype=np.float64))  # [heads, D/2]
    read = np.sqrt(np.square(read).reshape(attention.kv_heads, group, -1).sum(axis=1))
    shared = attention.k_norm is not None and not attention.norms_all
    if shared:  # the gains are shared by all heads, so the factors are
        keys, read = keys.reshape(-1, 1, keys.shape[-1]), np.sqrt(np.square(read).mean(axis=0, keepdims=True))

    def factors_for(power: float) -> np.ndarray:
        one = [even_factors(channel_level(keys[:, head], power), read[head], power) for head in range(keys.shape[1])]
        return np.broadcast_to(np.stack(one), (attention.kv_heads, attention.head_dim // 2))

    def error(factors: np.ndarray) -> np.ndarray:
        """Squared error of attention by key head, relative."""
        whole = attention.channels_of(factors)
        lost = np.zeros(attention.kv_heads)
        length = np.zeros(attention.kv_heads)
        for one in heads:
            found = attend(one.queries, rounded_kv(one.keys / whole) * whole, one.values)
            lost += _energy_by_kv_head(found - one.attended, attention.kv_heads)
            length += _energy_by_kv_head(one.attended, attention.kv_heads)
        share = lost / np.where(length > 0, length, 1.0)
        return np.full_like(share, share.mean()) if shared else share

    return _best(factors_for, error)


def _fold_values(
    heads: Sequence[_Heads], weight: np.ndarray, attention: Attention, attend: _Attend
) -> tuple[np.ndarray, Fold]:
    """Factors [kv heads, head_dim], of one power: all heads meet in the input of ``weight`` [N, heads * head_dim]."""
    group = attention.heads // attention.kv_heads
    values = np.concatenate([one.values for one in heads])
    values = values.reshape(len(values), -1)  # [tokens, kv heads * D]
    exact = np.concatenate([one.attended for one in heads]).reshape(len(values), -1)
    by_head = column_length(weight).reshape(attention.kv_heads, group, attention.head_dim)
    length = np.sqrt(np.square(by_head).sum(axis=1)).ravel()

    def factors_for(power: float) -> np.ndarray:
        return even_factors(channel_level(values, power), length, power)[None]

    def error(factors: np.ndarray) -> np.ndarray:
        shaped = factors.reshape(attention.kv_heads, attention.head_dim)
        wide = for_query_heads(shaped, attention)
        found = [attend(one.queries, one.keys, rounded_kv(one.values / shaped)) for one in heads]
        given = ChannelStatistics(attention.q_size, "o")
        given.add(np.concatenate(found).reshape(exact.shape))
        return np.array([error_with_shadow(given, weight * wide, exact / wide)])

    factors, fold = _best(factors_for, error)
    return factors.reshape(attention.kv_heads, attention.head_dim), fold


def _attend(
    attention: Attention, gains: Mapping[str, np.ndarray], queries: np.ndarray, keys: np.ndarray, values: np.ndarray
) -> np.ndarray:
    """Attention of a whole sequence, everything float32 [T, heads, head_dim]."""
    return attention.attend(gains, queries, keys.swapaxes(0, 1), values.swapaxes(0, 1), 0, SAME_BITS)


def _pairs(attention: Attention, x: np.ndarray) -> np.ndarray:
    """Lengths of the rotation pairs of x [..., head_dim], [..., head_dim / 2]."""
    return np.sqrt(attention.pair_energy(x)).astype(np.float32)


def _energy_by_kv_head(x: np.ndarray, kv_heads: int) -> np.ndarray:
    """Squared length of x [T, heads, head_dim] by key head, float64 [kv heads]."""
    by_head = np.square(x, dtype=np.float64).sum(axis=(0, 2))
    return np.asarray(by_head.reshape(kv_heads, -1).sum(axis=1))
