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

from concurrent.futures import Executor

import numpy as np

from edge_llm.operations.base import Factors, FloatLinear, Folding, LayerWeights, Place
from edge_llm.operations.layer import Layer


def places(layer: Layer) -> dict[str, Place]:
    """Every place of ``layer`` by its name, in the order of its operations."""
    return {place.name: place for operation in layer.operations for place in operation.places(layer)}


def no_folds(layer: Layer) -> Factors:
    """Factors that change nothing: all are 1."""
    return {name: np.ones(place.shape, np.float32) for name, place in places(layer).items()}


def fold_layer(weights: LayerWeights, layer: Layer, factors: Factors, pool: Executor | None = None) -> LayerWeights:
    """``weights`` of ``layer`` with its channels made even; ``weights`` themselves are not changed.

    The threads of ``pool`` share the linears.
    """
    folding, columns = Folding(dict(weights.gains), {}), column_factors(layer, factors)
    for name, place in places(layer).items():
        place.maker.fold(layer, place, factors[name], folding)
    names = list(weights.linears)
    share = map if pool is None else pool.map
    linears = share(lambda name: _fold_linear(weights.linears[name], folding.rows.get(name), columns.get(name)), names)
    return LayerWeights(dict(zip(names, linears, strict=True)), folding.gains)


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
    found = places(layer)
    wide = {name: place.maker.for_columns(place, factors[name]) for name, place in found.items() if place.readers}
    return {linear.name: wide[name] for name, place in found.items() for linear in place.readers}
