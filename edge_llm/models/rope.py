"""Rotary position embedding: the angles of every position, with Llama 3's stretching of slow waves."""

from __future__ import annotations

import math

import numpy as np

from edge_llm.config import RopeScaling
from edge_llm.models.layer import Rope

Tables = tuple[np.ndarray, np.ndarray]
"""Cosines and sines of every position's angles, each float32 [positions, dim / 2]."""


def rope_tables(rope: Rope, positions: int) -> Tables:
    """The tables of ``positions`` positions; computed in float64."""
    frequency = rope.theta ** (-np.arange(0, rope.dim, 2) / rope.dim)
    if rope.scaling is not None:
        frequency = _llama3_frequencies(frequency, rope.scaling)
    angle = np.arange(positions)[:, None] * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


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
