"""Integers of a few bits that lie packed in words of 32, as published checkpoints have them, and the floats they stand for."""

from __future__ import annotations

import numpy as np

_BLOCK_VALUES = 1 << 19
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
        piece = codes[some].astype(np.int16) if values is None else values[codes[some]]
        if zeros is not None:
            piece -= _by_column(_of_rows(zeros, some).astype(np.int16), columns, groups)
        np.multiply(piece, _by_column(_of_rows(scales, some), columns, groups), out=out[some], casting="unsafe")
    return out


def _of_rows(parameters: np.ndarray, rows: slice) -> np.ndarray:
    return parameters if len(parameters) == 1 else parameters[rows]


def _by_column(parameters: np.ndarray, columns: int, groups: np.ndarray | None) -> np.ndarray:
    """[N, G] as something that goes with [N, K]."""
    count = parameters.shape[1]
    if groups is not None:
        return parameters[:, groups]
    return parameters if count == 1 else np.repeat(parameters, columns // count, axis=1)
