"""W4: an INT8 weight kept as 4-bit codes, w8[n, k] = m * (CODEBOOK[code[n, k]] - z), m and z for 32 columns of a row each.

What multiplies is the INT8 weight: its sums, scales and outliers are those of `kernels.reference.linear`.  Integer steps
within one scale per row are those of QServe (Lin et al., 2024, arXiv 2405.04532, section 4.2); the codebook is that of a
normal distribution.  Constants are those of `kernels.w4`; whatever is done with them is written out here a second time.
"""

from __future__ import annotations

import numpy as np

from edge_llm.kernels.reference.layout import pack_tiles
from edge_llm.kernels.reference.numeric import LANES, reduce_lanes
from edge_llm.kernels.types import F32, I8, I32, TILE_CHANNELS, TILE_DEPTH, U8
from edge_llm.kernels.w4 import CODEBOOK, GROUP, MAX_MULTIPLIER, MIN_SHIFT


def unpack_codes(panels: U8, n: int, k: int) -> tuple[U8, U8, U8]:
    """panels -> codes[N, K], multiplier[N, ceil(K/32)], shift of the same shape.

    A panel holds 16 rows: one byte z * 16 + m for each group and row, [groups, 16] up to a whole line of 64 bytes, and then
    the codes, [groups, 4, 16, 4]: the low half of byte [g, b, i, j] is column 32g + 8b + j of row i, the high half column
    32g + 8b + 4 + j.
    """
    groups = -(-k // GROUP)
    steps = np.zeros((len(panels), TILE_CHANNELS, groups), np.uint8)
    for group in range(groups):
        steps[:, :, group] = panels[:, TILE_CHANNELS * group :][:, :TILE_CHANNELS]
    codes = np.zeros((len(panels), TILE_CHANNELS, k), np.uint8)
    first = -(-TILE_CHANNELS * groups // 64) * 64
    for column in range(k):
        block, place = divmod(column, 2 * TILE_DEPTH)
        is_high, j = divmod(place, TILE_DEPTH)
        rows = panels[:, first + TILE_CHANNELS * TILE_DEPTH * block + j :][:, : TILE_CHANNELS * TILE_DEPTH : TILE_DEPTH]
        codes[:, :, column] = rows >> 4 if is_high else rows & 15
    steps = steps.reshape(-1, groups)[:n]
    return codes.reshape(-1, k)[:n], steps & np.uint8(15), steps >> np.uint8(4)


def steps_fit(multiplier: int, shift: int) -> bool:
    """Whether a group may have this multiplier and shift: each weight is in [-127, 127], each code at most 16 from the shift.

    A multiplier of 0 goes with any shift of 4 bits: the weights are 0.
    """
    off = [int(value) - shift for value in CODEBOOK]
    return 0 <= shift <= 15 and (multiplier == 0 or all(abs(one) <= 16 and abs(multiplier * one) <= 127 for one in off))


def decode(codes: U8, multiplier: U8, shift: U8) -> I8:
    """The INT8 weight w8[N, K] of the codes."""
    columns = np.arange(codes.shape[1]) // GROUP
    m, z = multiplier.astype(np.int32)[:, columns], shift.astype(np.int32)[:, columns]
    return (m * (CODEBOOK[codes].astype(np.int32) - z)).astype(np.int8)


def expand(panels: U8, n: int, k: int) -> I8:
    """panels -> tiles of the INT8 weight, as `kernels.reference.layout.pack_tiles` lays them out; rows beyond N are 0."""
    return pack_tiles(decode(*unpack_codes(panels, n, k)))


SEARCH_FACTORS = (0.82, 0.88, 0.94, 1.0, 1.06)
"""Of the scale under which no weight is cut off: those that are tried."""
SMALLEST_SCALE = np.float32(1e-30)
_TOP = np.float32(CODEBOOK[-1])


def search(weight: F32, importance: F32) -> tuple[U8, U8, U8, F32]:
    """Codes, multipliers, shifts and scales[N] for weight[N, K] ~ scale * w8, of magnitudes to 1e15.

    Of some scales for a row, and multipliers and shifts for a group, those with the least sum of importance[K] * error^2.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # where all weights are 0 nothing of it is used
        return _search(weight, importance)


def _search(weight: F32, importance: F32) -> tuple[U8, U8, U8, F32]:
    n, k = weight.shape
    groups = -(-k // GROUP)
    w, h = np.zeros((n, groups * GROUP), np.float32), np.zeros(groups * GROUP, np.float32)
    w[:, :k], h[:k] = weight, importance
    w, h = w.reshape(n, groups, GROUP), h.reshape(groups, GROUP)
    low, high = np.minimum(w.min(-1), 0), np.maximum(w.max(-1), 0)
    step, least = _widest(low, high)
    base = least.max(axis=1, initial=0)
    error, scale = np.full(n, np.inf, np.float32), np.full(n, SMALLEST_SCALE)
    for factor in SEARCH_FACTORS:
        tried = base * np.float32(factor)
        found = _steps(w, h, low, high, step, tried)[2]
        total = np.zeros(n, np.float32)
        for group in range(groups):
            total = total + found[:, group]
        better = (total < error) & (base >= SMALLEST_SCALE)
        error, scale = np.where(better, total, error), np.where(better, tried, scale)
    multiplier, shift, _ = _steps(w, h, low, high, step, scale)
    zero = base < SMALLEST_SCALE
    multiplier[zero], shift[zero] = 0, 0
    codes = encode(w.reshape(n, -1)[:, :k], scale, multiplier, shift)
    return codes, multiplier.astype(np.uint8), shift.astype(np.uint8), scale


def encode(weight: F32, scale: F32, multiplier: U8 | I32, shift: U8 | I32) -> U8:
    """The nearest codes of weight[N, K] under scale[N] and the steps of each group; 0 where all weights of a group are 0."""
    columns = np.arange(weight.shape[1]) // GROUP
    m, z = multiplier[:, columns].astype(np.float32), shift[:, columns].astype(np.float32)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(m > 0, np.float32(1) / (scale[:, None] * m), 0).astype(np.float32)
        value = nearest(weight * inverse + z)
    codes = np.zeros(weight.shape, np.uint8)
    for code, there in enumerate(CODEBOOK):
        codes[(m > 0) & (value == there)] = code
    return codes


def nearest(v: F32) -> F32:
    """The nearest value of the codebook, whose steps are 1 from 4 to 15 and 2 beside; half of a step goes to even steps."""
    four, fifteen, two = np.float32(4), np.float32(15), np.float32(2)
    low = four + two * np.rint(np.maximum(v - four, -four) / two)
    high = fifteen + two * np.rint(np.minimum(v - fifteen, four) / two)
    return np.where(v < four, low, np.where(v <= fifteen, np.rint(v), high))


def _widest(low: F32, high: F32) -> tuple[F32, F32]:
    """The step of each group that reaches over all of it, and the scale that the largest multiplier makes of it."""
    span = (high - low) / _TOP
    some = span > 0
    at = np.clip(np.divide(-low, span, out=np.full_like(span, 9), where=some), np.float32(MIN_SHIFT), np.float32(15))
    step = np.where(some, np.maximum(high / (_TOP - at), -low / at), span)
    return step, np.where(some, step / np.trunc(np.float32(127) / np.maximum(at, _TOP - at)), np.float32(0))


def _steps(w: F32, h: F32, low: F32, high: F32, step: F32, scale: F32) -> tuple[I32, I32, F32]:
    """The multiplier and the shift of each group under scale[N], and the error that is left."""
    s, some = scale[:, None], step > 0
    ratio, middle = step / s, (low + high) * np.float32(0.5)
    first = np.clip(np.trunc(ratio * np.float32(0.75)), 1, MAX_MULTIPLIER)
    last = np.minimum(np.trunc(ratio) + 1, MAX_MULTIPLIER)
    multiplier, shift = np.zeros(step.shape, np.int32), np.zeros(step.shape, np.int32)
    error = np.where(some, np.float32(np.inf), np.float32(0))
    for wanted in range(1, MAX_MULTIPLIER + 1):
        at = np.clip(np.float32(9.5) - middle / (s * np.float32(wanted)), np.float32(MIN_SHIFT), np.float32(15))
        for more in (0, 1):
            z = np.trunc(at).astype(np.int32) + more
            m = np.minimum(wanted, 127 // np.maximum(z, int(_TOP) - z))
            found = _error(w, h, s * m.astype(np.float32), z)
            better = some & (first <= wanted) & (wanted <= last) & (z <= 15) & (found < error)
            error = np.where(better, found, error)
            multiplier, shift = np.where(better, m, multiplier), np.where(better, z, shift)
    return multiplier, shift, error


def _error(w: F32, h: F32, step: F32, shift: I32) -> F32:
    z = shift.astype(np.float32)[..., None]
    off = (nearest(w * (np.float32(1) / step)[..., None] + z) - z) * step[..., None] - w
    error = off * off * h
    return reduce_lanes(error[..., :LANES] + error[..., LANES:])
