"""Integers of a few bits that lie packed in words of 32, as published checkpoints have them, and the floats they stand for."""

from __future__ import annotations

import numpy as np

_BLOCK_VALUES = 1 << 17
"""Weights that are made at a time, so that little lies beside the result."""


def words_of(count: int, bits: int) -> int:
    """Words of 32 bits that hold ``count`` integers without a gap."""
    return -(-count * bits // 32)


def unpack(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The first ``count`` integers of ``bits`` bits (2 to 8) in each row of ``words`` int32 [rows, words]: uint8 [rows, count].

    Integer i begins at bit i * bits of its row, the lowest bit of the first word first.
    """
    rows = len(words)
    octets = -(-count // 8)  # eight integers take `bits` bytes
    padded = np.zeros((rows, octets * bits), np.uint8)
    given = np.ascontiguousarray(words, "<i4").view(np.uint8).reshape(rows, -1)[:, : octets * bits]
    padded[:, : given.shape[1]] = given
    packed = padded.reshape(rows, octets, bits)
    found = np.empty((rows, octets, 8), np.uint8)
    for place in range(8):
        byte, shift = divmod(place * bits, 8)
        found[..., place] = packed[..., byte] >> np.uint8(shift)
        if shift + bits > 8:
            found[..., place] |= packed[..., byte + 1] << np.uint8(8 - shift)
    found &= np.uint8((1 << bits) - 1)
    return found.reshape(rows, -1)[:, :count]


def dequantize(
    codes: np.ndarray,
    zeros: np.ndarray | None,
    scales: np.ndarray,
    groups: np.ndarray | None = None,
    values: np.ndarray | None = None,
) -> np.ndarray:
    """(codes - zeros) * scales as float32 [N, K], each value rounded once.

    ``codes`` are integers [N, K]; ``zeros`` integers and ``scales`` float32, both [N or 1, G]: column k belongs to group
    ``groups[k]``, without ``groups`` to k // (K / G).  ``values`` float32 are what the codes stand for, else themselves.
    """
    rows, columns = codes.shape
    out = np.empty((rows, columns), np.float32)
    step = max(1, _BLOCK_VALUES // max(1, columns))
    for first in range(0, rows, step):
        some = slice(first, first + step)
        piece = codes[some].astype(np.float32) if values is None else values[codes[some]]
        grouped = piece.reshape(len(piece), -1, columns // scales.shape[1] if groups is None else 1)
        if zeros is not None:
            grouped -= _by_group(_of_rows(zeros, some).astype(np.float32), groups)
        np.multiply(grouped, _by_group(_of_rows(scales, some), groups), out=out[some].reshape(grouped.shape))
    return out


def _of_rows(parameters: np.ndarray, rows: slice) -> np.ndarray:
    return parameters if len(parameters) == 1 else parameters[rows]


def _by_group(parameters: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """[N, G] as something that goes with [N, G, K / G], or with [N, K, 1] where columns have ``groups``."""
    return (parameters if groups is None else np.take(parameters, groups, axis=1))[..., None]
