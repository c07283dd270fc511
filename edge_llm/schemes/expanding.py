"""Weights as a card takes them, which multiplies INT8 tiles alone: 4-bit codes are expanded on their way there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from edge_llm.models.layer import Linear
from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.w4 import W4Weight
from kernels import ThreadPool
from kernels.types import TILE_CHANNELS, TILE_DEPTH

TILES, CODES = ".tiles", ".codes"


def tile_bytes(linear: Linear) -> int:
    """Bytes of the tiles of ``linear`` in INT8."""
    return TILE_CHANNELS * -(-linear.rows // TILE_CHANNELS) * TILE_DEPTH * -(-linear.columns // TILE_DEPTH)


def expanded(block: BlockWeights) -> BlockWeights:
    """``block`` with INT8 weights in the place of those in codes, in memory of their own."""
    made = {name: linear.expanded(ThreadPool(1)) for name, linear in block.linears.items() if isinstance(linear, W4Weight)}
    if not made:
        return block
    tensors: dict[str, np.ndarray] = {}
    for name, array in block.tensors.items():
        linear = name.removesuffix(CODES)
        tensors |= {linear + TILES: made[linear].tiles} if linear in made else {name: array}
    return BlockWeights({**block.linears, **made}, block.gains, tensors, partial(_open, block, tuple(made)))


def _open(block: BlockWeights, coded: tuple[str, ...], tensors: Mapping[str, np.ndarray]) -> BlockWeights:
    """``block`` with ``tensors``, which have tiles for the ``coded`` linears."""
    without = {name + CODES: np.empty((len(tensors[name + TILES]), 0), np.uint8) for name in coded}
    opened = block.moved({**tensors, **without})
    linears = dict(opened.linears)
    for name in coded:
        linear = linears[name]
        assert isinstance(linear, W4Weight)
        linears[name] = linear.with_tiles(tensors[name + TILES])
    return BlockWeights(linears, opened.gains, tensors, partial(_open, block, coded))
