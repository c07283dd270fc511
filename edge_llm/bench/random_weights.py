"""Random weights in blocks with a scale each, by the names of Hugging Face: what models made for peers are filled with.

A name has the same values every time, so that a made model can be held against our float reference.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MANY = 1 << 22
"""Bytes from which on `random_bytes` draws them by eights."""


@dataclass(frozen=True)
class Blocks:
    """A matrix in ``bits`` bits per weight: every block of a row has a scale."""

    bits: int
    codes: np.ndarray
    """int8 [rows, columns], from -2^(bits-1)."""
    scales: np.ndarray
    """float32 [rows, blocks]."""

    @property
    def block(self) -> int:
        return int(self.codes.shape[1] // self.scales.shape[1])

    @property
    def values(self) -> np.ndarray:
        """float32 [rows, columns]."""
        return self.codes * np.repeat(self.scales, self.block, axis=1)

    @classmethod
    def stacked(cls, parts: Sequence[Blocks]) -> Blocks:
        """The rows of ``parts``, one after the other."""
        codes, scales = (np.concatenate(arrays) for arrays in ([p.codes for p in parts], [p.scales for p in parts]))
        return cls(parts[0].bits, codes, scales)


def random_blocks(name: str, rows: int, columns: int, bits: int, block: int) -> Blocks:
    """A matrix of whole blocks that keeps activations near one; scales are exact in float16."""
    random = _random(name)
    codes = np.frombuffer(random.bytes(rows * columns), np.int8).reshape(rows, columns) >> (8 - bits)
    deviation = 2.0**bits / 12**0.5
    scales = random.uniform(0.5, 1.5, (rows, columns // block)) / (deviation * columns**0.5)
    return Blocks(bits, codes, scales.astype(np.float16).astype(np.float32))


def random_vector(name: str, size: int) -> np.ndarray:
    """float32: gains near one, biases near zero."""
    center = 0.0 if name.endswith(".bias") else 1.0
    return (center + _random(name).uniform(-0.2, 0.2, size)).astype(np.float32)


def random_bytes(count: int, random: np.random.Generator) -> np.ndarray:
    """uint8 [count], which are the caller's own; many come five times as fast as from ``random.bytes``."""
    if count < MANY:
        return np.frombuffer(bytearray(random.bytes(count)), np.uint8)
    return random.integers(0, 2**64, -(-count // 8), np.uint64).view(np.uint8)[:count]


def _random(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))
