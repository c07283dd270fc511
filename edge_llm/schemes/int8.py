"""Scheme ``int8``: symmetric INT8 per output channel, activations with a scale for each row, or a static one and a shadow.

    y = sw * (q @ Wq.T) * s[row] + bias
    y = s * sw * (q @ Wq.T) + x[:, J] @ Wf + cold residual + bias

with hot channels J in float16 and what else overflows the static scale s added back (design: shadow outliers).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_llm.config import INT8
from edge_llm.kernels.types import TILE_CHANNELS, TILE_DEPTH
from edge_llm.operations.linear import Linear
from edge_llm.quant.scheme import quantize_weight
from edge_llm.quant.shadow import product_cost
from edge_llm.schemes.base import (
    Facts,
    TensorSpec,
    beside_integers,
    check_beside_integers,
    fields_beside,
    integer_facts,
    integer_facts_of,
)
from edge_llm.schemes.int8_weight import TILES, Int8Weight

NAME = INT8
facts, facts_of, check = integer_facts, integer_facts_of, check_beside_integers


def tensors(linear: Linear, hot: int) -> list[TensorSpec]:
    rows, columns = linear.rows, linear.columns
    tiles = (-(-rows // TILE_CHANNELS), -(-columns // TILE_DEPTH), TILE_CHANNELS, TILE_DEPTH)
    return [(TILES, "int8", tiles), *beside_integers(linear, hot)]


def convert(weight: np.ndarray, hot: np.ndarray, name: str) -> dict[str, np.ndarray]:
    return quantize_weight(weight, hot, name).arrays()


def open(linear: Linear, arrays: Mapping[str, np.ndarray], facts: Facts) -> Int8Weight:
    return Int8Weight(arrays[TILES], **fields_beside(linear, arrays, facts))


def cost(linear: Linear) -> float:
    return product_cost(linear.rows, linear.columns)
