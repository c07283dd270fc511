"""Rotary position embedding: the tables of all angles' cosines and sines.

Keys are stored and models imported with these tables, so they have the same bits on every machine; NumPy's powers, cosines and
sines have not.
"""

from __future__ import annotations

import numpy as np

from edge_llm.config import RopeScaling
from edge_llm.models.layer import Rope
from edge_llm.models.rope_kinds import Llama3, Plain, RopeKind
from kernels.floats import cos_sin64, log64

Tables = tuple[np.ndarray, np.ndarray]
"""Cosines and sines of every position's angles, each float32 [positions, dim / 2]."""
_BLOCK = 128
"""Positions whose angles are the sum of one coarse and one fine angle."""


def rope_tables(rope: Rope, positions: int) -> Tables:
    """The tables of ``positions`` positions; computed in float64."""
    frequency, factor = frequencies(rope), kind_of(rope).factor
    fine_cos, fine_sin = (factor * table for table in cos_sin64(np.arange(_BLOCK)[:, None] * frequency))
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
    return kind_of(rope).frequencies(rope.theta, rope.dim)


def kind_of(rope: Rope) -> RopeKind:
    """How its waves are made."""
    scaling: RopeScaling | RopeKind | None = rope.scaling
    if scaling is None:
        return Plain()
    if not isinstance(scaling, RopeScaling):
        return scaling
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    return Llama3(scaling.factor, low, high, scaling.original_context)


def query_factors(beta: float, original_context: int, positions: int) -> np.ndarray:
    """Of queries, by some families: ``1 + beta ln(1 + floor(p / original_context))`` of every position p, float32."""
    folds = np.arange(positions) // original_context
    return (1.0 + beta * log64(1.0 + folds)).astype(np.float32)


class RopeTables:
    """The tables of ``positions`` positions for every embedding that a model's layers have, each made once."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self._tables: dict[Rope, Tables] = {}

    def __getitem__(self, rope: Rope) -> Tables:
        if rope not in self._tables:
            self._tables[rope] = rope_tables(rope, self.positions)
        return self._tables[rope]
