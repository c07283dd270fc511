"""Folds: channels of one layer made even by factors that cancel, so that the float model stays what it is.

    norm's gain / f      columns of its linears * f   what these read becomes x / f
    key rows / f         query rows * f               keys, per (key head, rotation pair); rotation keeps a pair's length
    value rows / f       columns of o * f             values, per (key head, channel)
    up rows / f          columns of down * f          the product silu(gate) * up
    last norm's gain / f output columns * f           where the output matrix is not the embedding

Which places a layer has follows from its description.  Biases of divided or multiplied rows go with them.  Where queries and
keys are normed per head, their gains carry the factors, which all heads share.  All of it happens to the weights, before they
are quantized; nothing is left to do at run time.  (SmoothQuant: Xiao et al., 2022, arXiv 2211.10438, §4, folds the norms'
channels.)
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from edge_llm.models.layer import Attention, Layer, Linear, Norm, SwiGLU
from edge_llm.models.weights import FloatLinear, LayerWeights

KEYS = "keys"
VALUES = "values"
PRODUCTS = "products"

Factors = Mapping[str, np.ndarray]
"""The factors f of a layer by place, float32 above 0: keys [kv heads, head_dim / 2], values [kv heads, head_dim], else [K]."""


@dataclass(frozen=True)
class Place:
    """One place of a layer that can be folded: what makes its channels, and the linears that read them."""

    name: str
    maker: Norm | Attention | SwiGLU
    readers: tuple[Linear, ...]
    shape: tuple[int, ...]
    """Of its factors."""


def places(layer: Layer) -> dict[str, Place]:
    """Every place of ``layer`` by its name, in the order of its operations."""
    found: dict[str, Place] = {}
    for maker in layer.operations:
        if isinstance(maker, Linear):
            continue
        if isinstance(maker, Attention):
            pairs = (maker.kv_heads, maker.head_dim // 2)
            found[KEYS] = Place(KEYS, maker, (), pairs)
        readers = layer.multipliers(maker)
        if not readers:
            continue  # something else would see the factors
        if isinstance(maker, Norm):
            found[readers[0].name] = Place(readers[0].name, maker, readers, (maker.gain.size,))
        elif isinstance(maker, Attention):
            found[VALUES] = Place(VALUES, maker, readers, (maker.kv_heads, maker.head_dim))
        elif _gate_up(layer, maker) is not None:
            found[PRODUCTS] = Place(PRODUCTS, maker, readers, (maker.width,))
    return found


def _gate_up(layer: Layer, swiglu: SwiGLU) -> Linear | None:
    """The linear that ``swiglu`` reads; None if its rows may not be divided."""
    writer = layer.writer(swiglu.reads, swiglu)
    return writer if isinstance(writer, Linear) and layer.gives_only(writer, swiglu) else None


def no_folds(layer: Layer) -> Factors:
    """Factors that change nothing: all are 1."""
    return {name: np.ones(place.shape, np.float32) for name, place in places(layer).items()}


def fold_layer(weights: LayerWeights, layer: Layer, factors: Factors, pool: Executor | None = None) -> LayerWeights:
    """``weights`` of ``layer`` with its channels made even; ``weights`` themselves are not changed.

    The threads of ``pool`` share the linears.
    """
    gains, rows = dict(weights.gains), dict[str, np.ndarray]()
    columns = column_factors(layer, factors)
    for name, place in places(layer).items():
        if isinstance(place.maker, Norm):
            gain = place.maker.gain.name
            gains[gain] = gains[gain] / factors[name]
        elif isinstance(place.maker, SwiGLU):
            gate_up = _gate_up(layer, place.maker)
            assert gate_up is not None
            rows[gate_up.name] = np.concatenate([np.ones_like(factors[name]), 1 / factors[name]])
    rows[layer.projection.name] = _fold_heads(layer.attention, gains, factors)
    names = list(weights.linears)
    share = map if pool is None else pool.map
    linears = share(lambda name: _fold_linear(weights.linears[name], rows.get(name), columns.get(name)), names)
    return LayerWeights(dict(zip(names, linears, strict=True)), gains)


def _fold_heads(attention: Attention, gains: dict[str, np.ndarray], factors: Factors) -> np.ndarray:
    """What the rows of queries, keys and values are multiplied by; where both are normed, their gains change instead."""
    keys = np.concatenate([factors[KEYS], factors[KEYS]], axis=1)  # both halves of a rotation pair
    values = factors.get(VALUES, np.ones((attention.kv_heads, attention.head_dim), np.float32))
    key_rows, query_rows = 1 / keys.ravel(), for_query_heads(keys, attention)
    if attention.q_norm is not None and attention.k_norm is not None:
        q, k = attention.q_norm.name, attention.k_norm.name
        gains[q], gains[k] = gains[q] * keys[0], gains[k] / keys[0]
        key_rows, query_rows = np.ones_like(key_rows), np.ones_like(query_rows)
    return np.concatenate([query_rows, key_rows, 1 / values.ravel()])


def _fold_linear(linear: FloatLinear, rows: np.ndarray | None, columns: np.ndarray | None) -> FloatLinear:
    weight, bias = linear.weight, linear.bias
    if rows is None:
        return FloatLinear(weight if columns is None else weight * columns, bias)
    weight = weight * rows[:, None]
    if columns is not None:
        weight *= columns
    return FloatLinear(weight, None if bias is None else bias * rows)


def column_factors(layer: Layer, factors: Factors) -> dict[str, np.ndarray]:
    """What the columns of each linear are multiplied by: float32 [K] by name; what it reads is divided by the same."""
    wide = {
        name: for_query_heads(factors[name], layer.attention) if name == VALUES else factors[name] for name in factors
    }
    return {linear.name: wide[name] for name, place in places(layer).items() for linear in place.readers}


def for_query_heads(factors: np.ndarray, attention: Attention) -> np.ndarray:
    """[kv heads, head_dim] -> [heads * head_dim]: every query head finds the factors of its key head."""
    return np.repeat(factors, attention.heads // attention.kv_heads, axis=0).ravel()
