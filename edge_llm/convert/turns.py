"""Which channels of a model are turned, and its float weights as they are quantized.

    linear             its input, behind norm and folds; the columns of its weight have the inverse
    queries, keys      every head, behind the rotation: nothing in the weights
    values             every head, in the rows of the weight; the columns of what reads them have the inverse

So what attention gives to its output matrix is turned already, and costs nothing.  A tied output matrix is turned as any other:
embeddings are turned back when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor

import numpy as np

from edge_llm.convert.layer_folds import places
from edge_llm.kernels.pointwise import MAX_TURN
from edge_llm.models.layer import Decoder
from edge_llm.operations.attention import VALUES
from edge_llm.operations.base import FloatLinear, HeadTurns, LayerWeights
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.quant.turning import block_of, turned_columns, turned_rows
from edge_llm.schemes.joint import is_multiplied_as_int8


def with_turns(decoder: Decoder, most: int = MAX_TURN) -> Decoder:
    """``decoder`` with all its turns, in blocks of at most ``most`` channels; 0: none."""
    if most < 2:
        return decoder
    heads = block_of(decoder.attentions[0].head_dim, most) if decoder.attentions else 0
    with_values = bool(heads) and all(VALUES in places(layer) for layer in decoder.layers if layer.attentions)
    turns = {"output": block_of(decoder.output.columns, most)}
    for index, layer in enumerate(decoder.layers):
        behind_values = places(layer)[VALUES].readers if with_values and layer.attentions else ()
        for linear in layer.linears:
            if linear not in behind_values and is_multiplied_as_int8(linear.scheme):
                turns[f"layers.{index}.{linear.name}"] = block_of(linear.columns, most)
    return decoder.with_turns(turns, HeadTurns(heads, heads if with_values else 0))


def input_turn(layer: Layer, linear: Linear) -> int:
    """Block of channels in which the input of ``linear`` is turned, when it is quantized or by the weight of the values."""
    reads_values = VALUES in places(layer) and linear in places(layer)[VALUES].readers
    return layer.attention.value_turn if reads_values else linear.turn


def turn_values(weights: LayerWeights, layer: Layer) -> LayerWeights:
    """``weights`` of ``layer`` whose values are turned; the float layer is the same."""
    block = layer.attention.value_turn if layer.attentions else 0
    if not block:
        return weights
    attention, projection = layer.attention, layer.projection
    linears = dict(weights.linears)
    linears[projection.name] = _with_turned_rows(linears[projection.name], attention.q_size + attention.kv_size, block)
    for reader in places(layer)[VALUES].readers:
        linears[reader.name] = FloatLinear(turned_columns(linears[reader.name].weight, block), linears[reader.name].bias)
    return LayerWeights(linears, weights.gains)


def _with_turned_rows(linear: FloatLinear, first: int, block: int) -> FloatLinear:
    """``linear`` whose outputs from ``first`` on are turned."""

    def turned(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values[:first], turned_rows(values[first:], block)])

    return FloatLinear(turned(linear.weight), None if linear.bias is None else turned(linear.bias))


def quantizable(weights: LayerWeights, layer: Layer, pool: Executor) -> Mapping[str, FloatLinear]:
    """The linears of ``layer`` as they are quantized, by name: what meets a turned input has its columns turned."""

    def ready(name: str) -> FloatLinear:
        linear = weights.linears[name]
        block = layer.linear(name).turn
        return FloatLinear(turned_columns(linear.weight, block), linear.bias) if block else linear

    names = list(weights.linears)
    return dict(zip(names, pool.map(ready, names), strict=True))
