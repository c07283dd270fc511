"""W4: an INT8 weight kept as 4-bit codes, w8[n, k] = m * (CODEBOOK[code[n, k]] - z), m and z for 32 columns of a row each.

Here is how codes and steps are chosen and laid out.  `kernels.linear.Int8Linear.of_codes` multiplies panels of codes.
`kernels.reference.w4` reads them byte by byte and defines every function; it has the constants from here, and no function.
All raise ValueError, naming the argument, for a wrong type, shape or value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_llm.kernels import _native
from edge_llm.kernels._native import ThreadPool
from edge_llm.kernels.types import F32, I8, TILE_CHANNELS, TILE_DEPTH, U8

CODEBOOK = np.array([0, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19], np.uint8)
GROUP = 32
"""Input channels that share a multiplier and a shift."""
MAX_MULTIPLIER = 12
"""Its products with the codebook fit a byte."""
MIN_SHIFT = 3
"""Then no code is more than 16 from the shift, and int16 holds the sum of 16 products with an activation."""
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
    """Raises ValueError for a multiplier and a shift that are not allowed: some code would leave [-127, 127] or int16.

    A multiplier of 0 goes with any shift: the weights are 0.
    """
    if not steps_fit(multiplier, shift).all():
        allowed = f"a multiplier must be at most {MAX_MULTIPLIER}, a shift from {MIN_SHIFT} to 15"
        raise ValueError(f"{allowed}, and no weight outside of [-127, 127]")


def steps_fit(multiplier: NDArray[np.integer], shift: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Where `check_steps` allows a multiplier and a shift."""
    m, z = multiplier.astype(np.int32), shift.astype(np.int32)
    small = (m <= MAX_MULTIPLIER) & (z >= MIN_SHIFT) & (m * np.maximum(z, int(CODEBOOK[-1]) - z) <= 127)
    return np.asarray((z <= 15) & (small | (m == 0)))


def steps_of(panels: U8, n: int, k: int) -> tuple[U8, U8]:
    """panels -> multiplier[N, ceil(K/32)] and shift of the same shape."""
    groups = -(-k // GROUP)
    steps = panels[:, : groups * TILE_CHANNELS].reshape(len(panels), groups, TILE_CHANNELS).transpose(0, 2, 1)
    steps = np.ascontiguousarray(steps.reshape(-1, groups)[:n])
    return np.bitwise_and(steps, 15, dtype=np.uint8), np.right_shift(steps, 4, dtype=np.uint8)


def take_groups(panels: U8, k: int, groups: NDArray[np.int64]) -> U8:
    """panels of ``k`` columns -> those of the 32 columns of each of ``groups`` (integers [G]); past ``k`` is anything."""
    count, whole, taken = len(panels), -(-k // GROUP), GROUP * len(groups)
    found = np.zeros((count, panel_bytes(taken)), np.uint8)
    steps = panels[:, : whole * TILE_CHANNELS].reshape(count, whole, TILE_CHANNELS)[:, groups]
    bytes_ = panels[:, panel_bytes(k) - whole * _GROUP_BYTES :].reshape(count, whole, _GROUP_BYTES)[:, groups]
    found[:, : len(groups) * TILE_CHANNELS] = steps.reshape(count, -1)
    found[:, panel_bytes(taken) - len(groups) * _GROUP_BYTES :] = bytes_.reshape(count, -1)
    return found


def expand(panels: U8, n: int, k: int, pool: ThreadPool) -> I8:
    """panels -> tiles of the INT8 weight [N, K]; rows beyond N are 0."""
    return _native.expand_codes(panels, n, k, pool)


def search(weight: F32, importance: F32, pool: ThreadPool) -> tuple[U8, U8, U8, F32]:
    """Codes[N, K], multipliers and shifts [N, ceil(K/32)] and scales[N] for weight[N, K] ~ scale * w8, of magnitudes to 1e15.

    Of some scales for a row, and multipliers and shifts for a group, those with the least sum of importance[K] * error^2.
    """
    return _native.search_codes(weight, importance, pool)


def encode(weight: F32, scale: F32, multiplier: U8, shift: U8, pool: ThreadPool) -> U8:
    """The nearest codes[N, K] of weight[N, K] under scale[N] and the steps [N, ceil(K/32)] of each group."""
    return _native.encode_codes(weight, scale, multiplier, shift, pool)
