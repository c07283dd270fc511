"""Every kernel once, in NumPy: the definition of correct.

Slow and plain on purpose. The native kernels are compared with these functions bit for bit, so the order of every float
reduction is written out here: sixteen virtual lanes (lane i sums elements i, i+16, ...), then the fixed tree
(l[i] + l[i+8]), +4, +2, +1; a multiply-add inside a reduction rounds once (`fma`).
Signatures are those of the kernels without `pool`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

LANES = 16
TILE_CHANNELS = 16  # output channels in a tile row block
TILE_DEPTH = 4  # input channels next to each other in a tile

# ---- the numeric rule ---------------------------------------------------------------------------------------------


def fma(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> F32:
    """float32 `a * b + c` with one rounding, broadcast like NumPy.

    The product of two float32 is exact in float64. The sum is rounded to odd there, so that the second rounding, to
    float32, gives what a single rounding would (Boldo and Melquiond, 2008: 53 >= 2 * 24 + 2).
    """
    product = np.asarray(a, np.float32).astype(np.float64) * np.asarray(b, np.float32).astype(np.float64)
    addend = np.asarray(c, np.float32).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.asarray(product + addend)
        back = total - product
        error = (product - (total - back)) + (addend - back)  # TwoSum: total + error is the exact sum
        bits = total.view(np.int64).copy()
        inexact_even = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
        step = np.where((error > 0) == (total > 0), 1, -1)  # towards the exact value
        bits = np.where(inexact_even, bits + step, bits)
        return np.asarray(bits.view(np.float64).astype(np.float32))


def to_lanes(x: F32) -> F32:
    """x[..., K] -> [..., ceil(K/16), 16], the missing elements +0."""
    length = x.shape[-1]
    steps = -(-length // LANES)
    padded = np.zeros((*x.shape[:-1], steps * LANES), np.float32)
    padded[..., :length] = x
    return padded.reshape(*x.shape[:-1], steps, LANES)


def reduce_lanes(lanes: F32) -> F32:
    """The fixed tree over the last axis of 16 lanes -> [...]."""
    width = LANES // 2
    while width:
        lanes = lanes[..., :width] + lanes[..., width : 2 * width]
        width //= 2
    return np.asarray(lanes[..., 0])


def lane_sum(x: F32) -> F32:
    """Sum over the last axis in the fixed order: x[..., K] -> [...]."""
    blocks = to_lanes(x)
    total = np.zeros((*x.shape[:-1], LANES), np.float32)
    for step in range(blocks.shape[-2]):
        total = total + blocks[..., step, :]
    return reduce_lanes(total)


def lane_dot(x: F32, y: F32) -> F32:
    """Sum of products over the last axis in the fixed order, one fma per lane and step: [..., K], [..., K] -> [...]."""
    x_blocks, y_blocks = np.broadcast_arrays(to_lanes(x), to_lanes(y))
    total = np.zeros((*x_blocks.shape[:-2], LANES), np.float32)
    for step in range(x_blocks.shape[-2]):
        total = fma(x_blocks[..., step, :], y_blocks[..., step, :], total)
    return reduce_lanes(total)


# ---- layout -------------------------------------------------------------------------------------------------------


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


# ---- INT8 linear --------------------------------------------------------------------------------------------------


class Residual(NamedTuple):
    """What quantization cut off, sparse by row (CSR): row m holds entries row_start[m] .. row_start[m+1]."""

    row_start: I64  # [M+1]
    column: I32  # [R], ascending inside a row
    value: F32  # [R], in units of the activation scale


def quantize(x: F32, scale: float, hot: I32, *, residual: bool = True) -> tuple[I8, Residual]:
    """x[M, K] -> (q[M, K], residual): y = x * (1/scale), q = clamp(rint(y), -127, 127), hot columns of q are 0.

    The residual keeps y - q where |y| > 127.5 outside the hot columns (empty when `residual` is false).
    Raises ValueError("non-finite activation") when any y is infinite or NaN.
    """
    inverse = np.float32(1) / np.float32(scale)
    with np.errstate(over="ignore", invalid="ignore"):
        y = x * inverse
    if not np.isfinite(y).all():
        raise ValueError("non-finite activation")
    q = np.rint(np.clip(y, np.float32(-127), np.float32(127))).astype(np.int8)
    q[:, hot] = 0
    over = np.abs(y) > np.float32(127.5)
    over[:, hot] = False
    if not residual:
        over[:] = False
    row, column = np.nonzero(over)
    row_start = np.zeros(x.shape[0] + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=x.shape[0]), out=row_start[1:])
    value = y[row, column] - q[row, column].astype(np.float32)
    return q, Residual(row_start, column.astype(np.int32), value)


def linear_int8(
    q: I8, tiles: I8, n: int, scale: F32, row_sum: I32, *, bias: F32 | None = None, out: F32 | None = None
) -> F32:
    """q[M, K] @ W[N, K].T in exact int32, then float32(dot) * scale[N] (+ bias[N]) -> [M, N].

    `row_sum` i32[N] serves variants that shift the activations to unsigned; it never changes the result.
    """
    weight = unpack_tiles(tiles, n, q.shape[1])
    # float64 holds every int32 sum exactly, and is the quick way to multiply in NumPy.
    dot = (q.astype(np.float64) @ weight.astype(np.float64).T).astype(np.int32)
    y = dot.astype(np.float32) * scale
    if bias is not None:
        y = y + bias
    return _into(out, y)


def add_hot(out: F32, x: F32, hot: I32, hot_weight: F16) -> None:
    """In place, for h ascending: out[M, N] = fma(x[:, hot[h]], hot_weight[h], out)."""
    for h, column in enumerate(hot):
        out[:] = fma(x[:, column, None], hot_weight[h].astype(np.float32), out)


def add_residual(out: F32, residual: Residual, tiles: I8, k: int, scale: F32) -> None:
    """In place, per row with entries: t = 0; for columns ascending t = fma(r, W[:, c], t); out = fma(t, scale, out)."""
    weight = unpack_tiles(tiles, out.shape[1], k).astype(np.float32)
    for m in range(out.shape[0]):
        begin, end = residual.row_start[m], residual.row_start[m + 1]
        if begin == end:
            continue
        total = np.zeros(out.shape[1], np.float32)
        for column, value in zip(residual.column[begin:end], residual.value[begin:end], strict=True):
            total = fma(value, weight[:, column], total)
        out[m] = fma(total, scale, out[m])


def linear(
    x: F32,
    tiles: I8,
    n: int,
    input_scale: float,
    scale: F32,
    row_sum: I32,
    hot: I32,
    hot_weight: F16,
    *,
    bias: F32 | None = None,
    add: F32 | None = None,
    shadow: bool = True,
    out: F32 | None = None,
) -> F32:
    """quantize -> linear_int8 -> add_hot -> add_residual -> + add[M, N]; x[M, K] -> [M, N].

    `scale` is input_scale * weight_scale. Without `shadow` the hot columns and the residual are lost.
    """
    q, residual = quantize(x, input_scale, hot, residual=shadow)
    y = linear_int8(q, tiles, n, scale, row_sum, bias=bias)
    if shadow:
        add_hot(y, x, hot, hot_weight)
        add_residual(y, residual, tiles, x.shape[1], scale)
    if add is not None:
        y = y + add
    return _into(out, y)


def _into(out: F32 | None, value: F32) -> F32:
    if out is None:
        return value
    out[:] = value
    return out


# ---- checksum -----------------------------------------------------------------------------------------------------


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
