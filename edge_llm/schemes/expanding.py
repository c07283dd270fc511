"""Weights as a card takes them, which multiplies INT8 tiles alone: 4-bit codes are expanded on their way there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from edge_llm.kernels import ThreadPool
from edge_llm.kernels.types import TILE_CHANNELS, TILE_DEPTH
from edge_llm.operations.linear import Linear
from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.int8_weight import TILES, CodedProduct


def tile_bytes(linear: Linear) -> int:
    """Bytes of the tiles of ``linear`` in INT8."""
    return TILE_CHANNELS * -(-linear.rows // TILE_CHANNELS) * TILE_DEPTH * -(-linear.columns // TILE_DEPTH)


def expanded(block: BlockWeights) -> BlockWeights:
    """``block`` with INT8 weights in the place of those in codes, in memory of their own."""
    coded = {name: linear for name, linear in block.linears.items() if isinstance(linear, CodedProduct)}
    if not coded:
        return block
    made = {name: linear.expanded(ThreadPool(1)) for name, linear in coded.items()}
    before = {f"{name}.{integers}": array for name, linear in coded.items() for integers, array in linear.integers.items()}
    others = {name: array for name, array in block.tensors.items() if name not in before}
    tensors = {**others, **{f"{name}.{TILES}": linear.tiles for name, linear in made.items()}}
    empty = {name: np.empty((len(array), 0, *array.shape[2:]), array.dtype) for name, array in before.items()}
    return BlockWeights({**block.linears, **made}, block.gains, tensors, partial(_open, block, tuple(coded), empty))


def _open(
    block: BlockWeights, coded: tuple[str, ...], empty: Mapping[str, np.ndarray], tensors: Mapping[str, np.ndarray]
) -> BlockWeights:
    """``block`` with ``tensors``, which have tiles for the ``coded`` linears; their own tensors are ``empty`` there."""
    opened = block.moved({**tensors, **empty})
    linears = dict(opened.linears)
    for name in coded:
        linear = linears[name]
        assert isinstance(linear, CodedProduct)
        linears[name] = linear.with_tiles(tensors[f"{name}.{TILES}"])
    return BlockWeights(linears, opened.gains, tensors, partial(_open, block, coded, empty))
