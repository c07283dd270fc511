"""Rotary position embedding: the angles of every position, with Llama 3's stretching of slow waves.

Keys are stored and models imported with these tables, so they have the same bits on every machine; NumPy's powers, cosines and
sines have not.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal

import numpy as np

from edge_llm.config import RopeScaling
from edge_llm.operations.attention import Rope
from edge_llm.operations.base import Tables
from kernels.floats import cos_sin64

_BLOCK = 128
"""Positions whose angles are the sum of one coarse and one fine angle."""
_EXACT = Context(prec=40)


def rope_tables(rope: Rope, positions: int) -> Tables:
    """The tables of ``positions`` positions; computed in float64."""
    frequency = frequencies(rope)
    fine_cos, fine_sin = cos_sin64(np.arange(_BLOCK)[:, None] * frequency)
    coarse = cos_sin64(np.arange(0, positions, _BLOCK)[:, None] * frequency)
    cos, sin = np.empty((2, positions, len(frequency)), np.float32)
    for block, (c, s) in enumerate(zip(*coarse, strict=True)):  # cos(a + b) and sin(a + b)
        rows = slice(block * _BLOCK, min((block + 1) * _BLOCK, positions))
        count = rows.stop - rows.start
        cos[rows] = (c * fine_cos - s * fine_sin)[:count]
        sin[rows] = (s * fine_cos + c * fine_sin)[:count]
    return cos, sin


def frequencies(rope: Rope) -> np.ndarray:
    """Radians per position of every wave, float64 [dim / 2]."""
    theta, dim = Decimal(rope.theta), Decimal(rope.dim)
    powers = [_EXACT.power(theta, _EXACT.divide(Decimal(-channel), dim)) for channel in range(0, rope.dim, 2)]
    frequency = np.array(powers, np.float64)
    return frequency if rope.scaling is None else _llama3_frequencies(frequency, rope.scaling)


class RopeTables:
    """The tables of ``positions`` positions for every embedding that a model's layers have, each made once."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self._tables: dict[Rope, Tables] = {}

    def __getitem__(self, rope: Rope) -> Tables:
        if rope not in self._tables:
            self._tables[rope] = rope_tables(rope, self.positions)
        return self._tables[rope]


def _llama3_frequencies(frequency: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    # slow waves are stretched by the factor, fast ones kept, those between mixed linearly
    turns = scaling.original_context * frequency / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return keep * frequency + (1.0 - keep) * frequency / scaling.factor
