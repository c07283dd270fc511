"""How an INT8 weight lies in memory and in files, and the checksum of stored bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge_llm.kernels.types import I8, I32, I64, TILE_CHANNELS, TILE_DEPTH


def pack_tiles(weight: I8) -> I8:
    """weight[N, K] -> tiles[ceil(N/16), ceil(K/4), 16, 4], zero padded: tiles[p, kb, i, j] = weight[16p+i, 4kb+j].

    Raises ValueError for a value of -128: the range is symmetric, [-127, 127].
    """
    if weight.size and weight.min() == -128:
        raise ValueError("`weight` holds `-128`; int8 weights are symmetric, in [-127, 127]")
    n, k = weight.shape
    panels, blocks = -(-n // TILE_CHANNELS), -(-k // TILE_DEPTH)
    padded = np.zeros((panels * TILE_CHANNELS, blocks * TILE_DEPTH), np.int8)
    padded[:n, :k] = weight
    return np.ascontiguousarray(padded.reshape(panels, TILE_CHANNELS, blocks, TILE_DEPTH).transpose(0, 2, 1, 3))


def unpack_tiles(tiles: I8, n: int, k: int) -> I8:
    """tiles -> weight[N, K]."""
    panels, blocks = tiles.shape[:2]
    dense = tiles.transpose(0, 2, 1, 3).reshape(panels * TILE_CHANNELS, blocks * TILE_DEPTH)
    return np.ascontiguousarray(dense[:n, :k])


def gather_rows(tiles: I8, rows: I64, k: int) -> I8:
    """The weight's rows (output channels) by index: rows i64[M] -> i8[M, K]."""
    channels = tiles.shape[0] * TILE_CHANNELS
    return np.ascontiguousarray(unpack_tiles(tiles, channels, k)[rows])


def row_sums(tiles: I8, n: int) -> I32:
    """Sum over input channels of each output channel -> i32[N]."""
    return np.asarray(tiles.sum(axis=(1, 3), dtype=np.int32).reshape(-1)[:n])


def crc32c(data: bytes | bytearray | memoryview | npt.NDArray[np.uint8]) -> int:
    """CRC-32C (Castagnoli, RFC 3720) of the bytes, one table look-up per byte."""
    crc = 0xFFFFFFFF
    for byte in bytes(data):
        crc = _crc_table()[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _crc_table() -> list[int]:
    if not _CRC_TABLE:
        for byte in range(256):
            crc = byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
            _CRC_TABLE.append(crc)
    return _CRC_TABLE


_CRC_TABLE: list[int] = []
