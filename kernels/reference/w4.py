"""W4: an INT8 weight kept as 4-bit codes, w8[n, k] = m * (CODEBOOK[code[n, k]] - z), m and z for 32 columns of a row each.

What multiplies is the INT8 weight: its sums, scales and outliers are those of `kernels.reference.linear`.  Integer steps
within one scale per row are those of QServe (Lin et al., 2024, arXiv 2405.04532, section 4.2); the codebook is that of a
normal distribution.
"""

from __future__ import annotations

import numpy as np

from kernels.reference.layout import pack_tiles, unpack_tiles
from kernels.types import I8, TILE_CHANNELS, TILE_DEPTH, U8

CODEBOOK = np.array([0, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19], np.uint8)
GROUP = 32
"""Input channels that share a multiplier and a shift."""
MAX_MULTIPLIER = 12
"""Its products with the codebook fit a byte."""
_LINE = 64
_GROUP_BYTES = TILE_CHANNELS * GROUP // 2


def panel_bytes(k: int) -> int:
    """Bytes of a panel of 16 rows and ``k`` columns."""
    groups = -(-k // GROUP)
    return -(-groups * TILE_CHANNELS // _LINE) * _LINE + groups * _GROUP_BYTES


def pack_codes(codes: U8, multiplier: U8, shift: U8) -> U8:
    """codes[N, K] below 16, multiplier[N, ceil(K/32)] and shift of the same shape -> panels[ceil(N/16), panel_bytes(K)].

    A panel holds one byte for each group and row, z * 16 + m, [groups, 16] up to a whole line of 64 bytes, and then the
    codes, [groups, 4, 16, 4]: the low half of byte [g, b, i, j] is column 32g + 8b + j of row i, the high half column
    32g + 8b + 4 + j.  What lies beyond N and K is 0.

    Raises ValueError where a weight would leave [-127, 127], and where K is no multiple of 4.
    """
    n, k = codes.shape
    groups, panels = -(-k // GROUP), -(-n // TILE_CHANNELS)
    if k % TILE_DEPTH:
        raise ValueError(f"`codes` must have a multiple of {TILE_DEPTH} columns; got `{k}`")
    if multiplier.shape != (n, groups) or shift.shape != (n, groups):
        raise ValueError(f"`multiplier` and `shift` must have the shape [{n}, {groups}]")
    check_steps(multiplier, shift)
    if codes.max(initial=0) > 15:
        raise ValueError("`codes` must be below 16")
    steps = np.zeros((panels * TILE_CHANNELS, groups), np.uint8)
    steps[:n] = shift << 4 | multiplier
    padded = np.zeros((panels * TILE_CHANNELS, groups * GROUP), np.uint8)
    padded[:n, :k] = codes
    halves = padded.reshape(panels, TILE_CHANNELS, groups, 4, 2, TILE_DEPTH)
    bytes_ = (halves[..., 0, :] | halves[..., 1, :] << 4).transpose(0, 2, 3, 1, 4)
    found = np.zeros((panels, panel_bytes(k)), np.uint8)
    found[:, : groups * TILE_CHANNELS] = steps.reshape(panels, TILE_CHANNELS, groups).transpose(0, 2, 1).reshape(panels, -1)
    found[:, panel_bytes(k) - groups * _GROUP_BYTES :] = bytes_.reshape(panels, -1)
    return found


def check_steps(multiplier: U8, shift: U8) -> None:
    """Raises ValueError for a multiplier and a shift under which some code leaves [-127, 127]."""
    m, z = multiplier.astype(np.int32), shift.astype(np.int32)
    if (m > MAX_MULTIPLIER).any() or (z > 15).any():
        raise ValueError(f"a multiplier must be at most {MAX_MULTIPLIER}, a shift at most 15")
    if (m * np.maximum(z, int(CODEBOOK[-1]) - z) > 127).any():
        raise ValueError("a multiplier and a shift give weights outside of [-127, 127]")


def unpack_codes(panels: U8, n: int, k: int) -> tuple[U8, U8, U8]:
    """panels -> codes[N, K], multiplier[N, ceil(K/32)], shift of the same shape."""
    groups, count = -(-k // GROUP), len(panels)
    steps = panels[:, : groups * TILE_CHANNELS].reshape(count, groups, TILE_CHANNELS).transpose(0, 2, 1)
    steps = np.ascontiguousarray(steps.reshape(-1, groups)[:n])
    bytes_ = panels[:, panel_bytes(k) - groups * _GROUP_BYTES :].reshape(count, groups, 4, TILE_CHANNELS, TILE_DEPTH)
    halves = np.stack([bytes_ & 15, bytes_ >> 4], axis=-2).transpose(0, 3, 1, 2, 4, 5)
    codes = halves.reshape(count * TILE_CHANNELS, groups * GROUP)[:n, :k]
    return np.ascontiguousarray(codes), steps & 15, steps >> 4


def decode(codes: U8, multiplier: U8, shift: U8) -> I8:
    """The INT8 weight w8[N, K] of the codes."""
    columns = np.arange(codes.shape[1]) // GROUP
    m, z = multiplier.astype(np.int32)[:, columns], shift.astype(np.int32)[:, columns]
    return (m * (CODEBOOK[codes].astype(np.int32) - z)).astype(np.int8)


def expand(panels: U8, n: int, k: int) -> I8:
    """panels -> tiles of the INT8 weight, as `kernels.reference.layout.pack_tiles` lays them out; rows beyond N are 0."""
    return pack_tiles(decode(*unpack_codes(panels, n, k)))


def expand_rows(panels: U8, rows: int, k: int) -> I8:
    """panels -> w8[rows, K]."""
    return unpack_tiles(expand(panels, rows, k), rows, k)
