"""Rotary position embedding: the tables of all angles' cosines and sines.

Keys are stored and models imported with these tables, so they have the same bits on every machine; NumPy's powers, cosines and
sines have not.
"""

from __future__ import annotations

import numpy as np

from edge_llm.kernels.floats import cos_sin64
from edge_llm.operations.attention import Rope
from edge_llm.operations.questions import Tables
from edge_llm.operations.rope_kinds import Plain, RopeKind

_BLOCK = 128
"""Positions whose angles are the sum of one coarse and one fine angle."""


def rope_tables(rope: Rope, positions: int) -> Tables:
    """The tables of ``positions`` positions; computed in float64."""
    frequency, factor = frequencies(rope), _kind(rope).factor
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
    return _kind(rope).frequencies(rope.theta, rope.dim)


def _kind(rope: Rope) -> RopeKind:
    return Plain() if rope.scaling is None else rope.scaling


class RopeTables:
    """The tables of ``positions`` positions for every embedding that a model's layers have, each made once."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self._tables: dict[Rope, Tables] = {}

    def __getitem__(self, rope: Rope) -> Tables:
        if rope not in self._tables:
            self._tables[rope] = rope_tables(rope, self.positions)
        return self._tables[rope]
