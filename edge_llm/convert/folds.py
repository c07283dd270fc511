"""Which folds a layer gets: the factors from calibration, the power of each by the least error that INT8 then makes.

A place may also stay as it is: where INT8 does clearly better without a fold, there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.convert.calibrate import key_offset
from edge_llm.convert.layer_folds import LayerFolds, for_query_heads, no_folds
from edge_llm.models.reference import attend, project_heads
from edge_llm.models.weights import LayerWeights
from edge_llm.quant.folding import POWERS, Fold, channel_level, column_length, even_factors, spread
from edge_llm.quant.kv import rounded
from edge_llm.quant.profile import ChannelStatistics, error_with_shadow

_ATTENDED_SEQUENCES = 4
"""Sequences on which the error of keys and values is measured."""
_ROWS = 512
"""Tokens on which the error of a linear is measured."""
_OUTPUTS = 2048
"""Outputs of a linear on which it is measured."""

_CLEARLY = 1.1
"""Another power than the first must do better by this factor, or equal models would be folded differently by chance."""

Seen = Mapping[str, ChannelStatistics]
"""The inputs of a layer's linears, by the linears' names."""


@dataclass(frozen=True)
class FoldedLayer:
    """The folds of one layer, and what was found when they were chosen."""

    factors: LayerFolds
    found: Mapping[str, Fold]
    """By place: qkv, keys, values, gate_up, products."""

    def inputs(self, seen: Seen, config: ModelConfig) -> dict[str, ChannelStatistics]:
        """What the linears read after folding, from what they read before."""
        factors = self.factors
        divisors = {
            "qkv": factors.qkv,
            "o": for_query_heads(factors.values, config),
            "gate_up": factors.gate_up,
            "down": factors.products,
        }
        return {part: one.divided(divisors[part]) for part, one in seen.items()}


def unfolded(config: ModelConfig) -> FoldedLayer:
    """A layer that stays as it is."""
    return FoldedLayer(no_folds(config), {})


def choose_folds(
    layer: LayerWeights,
    seen: Seen,
    lengths: Sequence[int],
    config: ModelConfig,
    rope: tuple[np.ndarray, np.ndarray],
    pool: Executor,
) -> FoldedLayer:
    """The folds of ``layer``, whose linears read ``seen`` on sequences of ``lengths`` tokens; ``rope``: cos and sin."""
    heads = _attended(layer, seen, lengths, config, rope, pool)
    chosen = {
        "qkv": pool.submit(fold_linear, seen["qkv"], judged(layer, "qkv", seen["qkv"])),
        "keys": pool.submit(_fold_keys, heads, config),
        "values": pool.submit(_fold_values, heads, layer, config),
        "gate_up": pool.submit(fold_linear, seen["gate_up"], judged(layer, "gate_up", seen["gate_up"])),
        "products": pool.submit(fold_linear, seen["down"], layer.down),
    }
    made = {place: choice.result() for place, choice in chosen.items()}
    factors = LayerFolds(**{place: factors for place, (factors, _) in made.items()})
    return FoldedLayer(factors, {place: found for place, (_, found) in made.items()})


def judged(layer: LayerWeights, part: str, seen: ChannelStatistics) -> np.ndarray:
    """The weight of linear ``part`` [N, K], its rows as long as they are important.

    The rows of o and down write into the same hidden state, where a large one matters more.  Those of qkv and gate_up end
    in channels that are folded themselves: their size says nothing, so each is divided by the level of what it gives.
    """
    weight: np.ndarray = getattr(layer, part)
    if part in ("o", "down"):
        return weight
    level = channel_level(seen.thinned(_ROWS).rows() @ weight.T, 0.5).astype(np.float32)
    return np.asarray(weight / np.where(level > 0, level, 1)[:, None])


def fold_linear(seen: ChannelStatistics, weight: np.ndarray) -> tuple[np.ndarray, Fold]:
    """Factors of the channels that ``weight`` float32 [N, K] reads, and what they are worth."""
    few, some, length = seen.thinned(_ROWS), weight[:: max(1, len(weight) // _OUTPUTS)], column_length(weight)

    def error(factors: np.ndarray) -> np.ndarray:
        return np.array([error_with_shadow(few.divided(factors[0]), some * factors[0])])

    factors, fold = _best(lambda power: _linear_factors(seen, length, power)[None], error)
    return factors[0], fold


def _linear_factors(seen: ChannelStatistics, length: np.ndarray, power: float) -> np.ndarray:
    """Factors from all rows tell which rows are sinks; the factors are those of the others."""
    first = even_factors(channel_level(seen.rows(), power), length, power)
    regular = seen.rows()[~seen.divided(first).sinks()]
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


def _attended(
    layer: LayerWeights,
    seen: Seen,
    lengths: Sequence[int],
    config: ModelConfig,
    rope: tuple[np.ndarray, np.ndarray],
    pool: Executor,
) -> list[_Heads]:
    offset = key_offset(layer, seen["qkv"], config)
    ends = np.cumsum(lengths)
    inputs = np.split(seen["qkv"].rows(), ends[:-1])
    chosen = np.unique(np.linspace(0, len(inputs) - 1, _ATTENDED_SEQUENCES).astype(int))

    def run(x: np.ndarray) -> _Heads:
        cos, sin = (table[: len(x)] for table in rope)
        q, k, v = project_heads(x, layer, config, cos, sin)
        k = k - offset
        return _Heads(q, k, v, _attend(q, k, v))

    return list(pool.map(run, [inputs[index] for index in chosen]))


def _fold_keys(heads: Sequence[_Heads], config: ModelConfig) -> tuple[np.ndarray, Fold]:
    """Factors [kv heads, head_dim / 2], each head's power by the least error of what attention gives."""
    group = config.num_heads // config.num_kv_heads
    keys = _pairs(np.concatenate([one.keys for one in heads]))  # [tokens, kv heads, D/2]
    queries = _pairs(np.concatenate([one.queries for one in heads]))
    read = np.sqrt(np.square(queries).mean(axis=0, dtype=np.float64))  # [heads, D/2]
    read = np.sqrt(np.square(read).reshape(config.num_kv_heads, group, -1).sum(axis=1))
    if config.qk_norm:  # the gains are shared by all heads, so the factors are
        keys, read = keys.reshape(-1, 1, keys.shape[-1]), np.sqrt(np.square(read).mean(axis=0, keepdims=True))

    def factors_for(power: float) -> np.ndarray:
        one = [even_factors(channel_level(keys[:, head], power), read[head], power) for head in range(keys.shape[1])]
        return np.broadcast_to(np.stack(one), (config.num_kv_heads, config.head_dim // 2))

    def error(factors: np.ndarray) -> np.ndarray:
        """Squared error of attention by key head, relative."""
        whole = np.concatenate([factors, factors], axis=1)
        lost = np.zeros(config.num_kv_heads)
        length = np.zeros(config.num_kv_heads)
        for one in heads:
            found = _attend(one.queries, rounded(one.keys / whole) * whole, one.values)
            lost += _energy_by_kv_head(found - one.attended, config)
            length += _energy_by_kv_head(one.attended, config)
        share = lost / np.where(length > 0, length, 1.0)
        return np.full_like(share, share.mean()) if config.qk_norm else share

    return _best(factors_for, error)


def _fold_values(heads: Sequence[_Heads], layer: LayerWeights, config: ModelConfig) -> tuple[np.ndarray, Fold]:
    """Factors [kv heads, head_dim], of one power: all heads meet in the input of the output matrix."""
    group = config.num_heads // config.num_kv_heads
    values = np.concatenate([one.values for one in heads])
    values = values.reshape(len(values), -1)  # [tokens, kv heads * D]
    exact = np.concatenate([one.attended for one in heads]).reshape(len(values), -1)
    by_head = column_length(layer.o).reshape(config.num_kv_heads, group, config.head_dim)
    length = np.sqrt(np.square(by_head).sum(axis=1)).ravel()

    def factors_for(power: float) -> np.ndarray:
        return even_factors(channel_level(values, power), length, power)[None]

    def error(factors: np.ndarray) -> np.ndarray:
        shaped = factors.reshape(config.num_kv_heads, config.head_dim)
        wide = for_query_heads(shaped, config)
        found = [_attend(one.queries, one.keys, rounded(one.values / shaped)) for one in heads]
        given = ChannelStatistics(config.q_size, "o")
        given.add(np.concatenate(found).reshape(exact.shape))
        return np.array([error_with_shadow(given, layer.o * wide, exact / wide)])

    factors, fold = _best(factors_for, error)
    return factors.reshape(config.num_kv_heads, config.head_dim), fold


def _attend(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attention of a whole sequence, everything float32 [T, heads, head_dim]."""
    return attend(queries, keys.swapaxes(0, 1), values.swapaxes(0, 1), 0)


def _pairs(x: np.ndarray) -> np.ndarray:
    """Lengths of the rotation pairs of x [..., head_dim], [..., head_dim / 2]."""
    half = x.shape[-1] // 2
    return np.hypot(x[..., :half], x[..., half:])


def _energy_by_kv_head(x: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Squared length of x [T, heads, head_dim] by key head, float64 [kv heads]."""
    by_head = np.square(x, dtype=np.float64).sum(axis=(0, 2))
    return np.asarray(by_head.reshape(config.num_kv_heads, -1).sum(axis=1))
