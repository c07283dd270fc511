"""Every kernel once, in NumPy: the definition of correct.

Slow and plain on purpose. The native kernels are compared with these functions bit for bit, so the order of every float
reduction is written out here: sixteen virtual lanes (lane i sums elements i, i+16, ...), then the fixed tree
(l[i] + l[i+8]), +4, +2, +1; a multiply-add inside a reduction rounds once (`fma`).
Signatures are those of the kernels without `pool`.
"""

from __future__ import annotations

import math
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


def quantize(
    x: F32, scale: float, hot: I32, *, residual: bool = True, gain: F32 | None = None, eps: float = 0.0
) -> tuple[I8, Residual]:
    """x[M, K] -> (q[M, K], residual): y = x * (1/scale), at hot columns x * 0; q = clamp(rint(y), -127, 127).

    The residual keeps y - q where |y| > 127.5 (empty when `residual` is false). With `gain` f32[K] x is
    `rms_norm(x, gain, eps)` first. Raises ValueError("non-finite activation") when any y is infinite or NaN.
    """
    if gain is not None:
        x = rms_norm(x, gain, eps)
    factor = np.full(x.shape[1], np.float32(1) / np.float32(scale))
    factor[hot] = 0
    with np.errstate(over="ignore", invalid="ignore"):
        y = x * factor
    if not np.isfinite(y).all():
        raise ValueError("non-finite activation")
    q = np.rint(np.clip(y, np.float32(-127), np.float32(127))).astype(np.int8)
    over = (np.abs(y) > np.float32(127.5)) & residual
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
    Raises ValueError for a -128 in q: the range is symmetric, [-127, 127].
    """
    if q.size and q.min() == -128:
        raise ValueError("`q` holds `-128`; int8 activations are symmetric, in [-127, 127]")
    weight = unpack_tiles(tiles, n, q.shape[1])
    # float64 holds every int32 sum exactly, and is the quick way to multiply in NumPy.
    dot = (q.astype(np.float64) @ weight.astype(np.float64).T).astype(np.int32)
    y = dot.astype(np.float32) * scale
    if bias is not None:
        y = y + bias
    return _into(out, y)


def hot_product(x: F32, hot: I32, hot_weight: F16, *, out: F32 | None = None) -> F32:
    """x[M, hot] @ hot_weight[H, N] -> [M, N]: from 0, for h ascending sum = fma(x[:, hot[h]], hot_weight[h], sum)."""
    total = np.zeros((x.shape[0], hot_weight.shape[1]), np.float32)
    for h, column in enumerate(hot):
        total = fma(x[:, column, None], hot_weight[h].astype(np.float32), total)
    return _into(out, total)


def merge(
    y: F32, hot_sum: F32 | None, residual: Residual | None, tiles: I8, k: int, scale: F32, *, add: F32 | None = None
) -> None:
    """In place: y[M, N] += hot_sum; rows with residual: y = fma(t, scale, y); y += add.

    t starts at 0, and for the row's columns ascending t = fma(r, W[:, c], t).
    """
    added = None if add is None else add.copy()
    if hot_sum is not None:
        y += hot_sum
    if residual is not None:
        _add_residual(y, residual, unpack_tiles(tiles, y.shape[1], k).astype(np.float32), scale)
    if added is not None:
        y += added


def _add_residual(y: F32, residual: Residual, weight: F32, scale: F32) -> None:
    for m in range(y.shape[0]):
        begin, end = residual.row_start[m], residual.row_start[m + 1]
        if begin == end:
            continue
        total = np.zeros(y.shape[1], np.float32)
        for column, value in zip(residual.column[begin:end], residual.value[begin:end], strict=True):
            total = fma(value, weight[:, column], total)
        y[m] = fma(total, scale, y[m])


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
    gain: F32 | None = None,
    eps: float = 0.0,
    swiglu: bool = False,
    out: F32 | None = None,
) -> F32:
    """quantize (after rms_norm with `gain`) -> linear_int8 -> merge with hot_product and add[M, N]; x[M, K] -> [M, N].

    `scale` is input_scale * weight_scale. Without `shadow` the hot columns and the residual are lost.
    With `swiglu`, which excludes `add`, the result is swiglu(y) [M, N/2].
    """
    if swiglu and add is not None:
        raise ValueError("`swiglu` takes no `add`")
    normed = x if gain is None else rms_norm(x, gain, eps)
    q, residual = quantize(normed, input_scale, hot, residual=shadow)
    y = linear_int8(q, tiles, n, scale, row_sum, bias=bias)
    hot_sum = hot_product(normed, hot, hot_weight) if shadow and len(hot) else None
    merge(y, hot_sum, residual, tiles, x.shape[1], scale, add=add)
    return _into(out, _swiglu(y) if swiglu else y)


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


# ---- pointwise ----------------------------------------------------------------------------------------------------


def exp(x: F32) -> F32:
    """e^x as the kernels compute it: x = n ln2 + r, a degree-7 polynomial in r, n added to the exponent field.

    0 below the smallest normal number (exp(-inf) = 0), inf above the largest, NaN kept; relative error < 2e-7.
    """
    f32 = np.float32
    with np.errstate(invalid="ignore", over="ignore"):
        n = np.rint(x * f32(float.fromhex("0x1.715476p+0")))
        r = fma(n, f32(float.fromhex("-0x1.62e400p-1")), x)
        r = fma(n, f32(float.fromhex("-0x1.7f7d1cp-20")), r)
        y = np.full(r.shape, float.fromhex("0x1.a01a02p-13"), np.float32)
        for coefficient in ("0x1.6c16c2p-10", "0x1.111112p-7", "0x1.555556p-5", "0x1.555556p-3", "0x1p-1"):
            y = fma(y, r, f32(float.fromhex(coefficient)))
        y = fma(y * r, r, r) + f32(1)
        shift = np.where(np.abs(n) < 2.0**8, n, 0).astype(np.int32) << 23
        y = np.asarray(y.view(np.int32) + shift).view(np.float32)
    y = np.where(x < f32(float.fromhex("-0x1.5d589ep+6")), f32(0), y)
    return np.asarray(np.where(x > f32(float.fromhex("0x1.62e42ep+6")), f32(np.inf), y))


def rms_norm(x: F32, gain: F32, eps: float, *, out: F32 | None = None) -> F32:
    """x[M, K], gain[K] -> (x * r) * gain with r = 1 / sqrt(mean(x^2) + eps)."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        mean = lane_dot(x, x) / np.float32(x.shape[-1])
        r = np.float32(1) / np.sqrt(mean + np.float32(eps))
        y = (x * r[..., None]) * gain
    return _into(out, y)


def head_norm(x: F32, gain: F32, eps: float) -> None:
    """In place, `rms_norm` of every head: x[M, H, D], gain[D]."""
    x[:] = rms_norm(x, gain, eps)


def rope(x: F32, positions: I32, cos: F32, sin: F32) -> None:
    """In place, rotary embedding by halves: x[M, H, D], positions[M], cos and sin [C, D/2].

    (x1, x2) -> (fma(-x2, s, x1*c), fma(x1, s, x2*c)), x1 and x2 the halves of a head (the layout of Hugging Face).
    """
    half = x.shape[-1] // 2
    c, s = cos[positions][:, None], sin[positions][:, None]
    x1, x2 = x[..., :half].copy(), x[..., half:].copy()
    x[..., :half] = fma(-x2, s, x1 * c)
    x[..., half:] = fma(x1, s, x2 * c)


def swiglu(gate_up: F32, *, out: F32 | None = None) -> F32:
    """gate_up[M, 2F], the gate in the left half -> silu(gate) * up [M, F], silu(g) = g / (1 + exp(-g))."""
    width = gate_up.shape[1] // 2
    gate, up = gate_up[:, :width], gate_up[:, width:]
    with np.errstate(invalid="ignore", over="ignore"):
        y = (gate / (np.float32(1) + exp(-gate))) * up
    return _into(out, y)


_swiglu = swiglu  # `linear` has an argument of that name

# ---- sampling -----------------------------------------------------------------------------------------------------


def sampling_masses(gaps: F32, temperature: float, unit: float) -> I64:
    """rint(e^(gap / temperature) * unit) of gaps <= 0: x = n ln2 + r, a degree-10 polynomial in r, nothing fused.

    Temperatures below 1e-30 count as that.
    """
    x = np.maximum(gaps.astype(np.float64) * (1.0 / max(temperature, 1e-30)), -100.0)
    n = np.rint(x * float.fromhex("0x1.71547652b82fep+0"))
    r = (x - n * float.fromhex("0x1.62e42fefa0000p-1")) - n * float.fromhex("0x1.cf79abc9e3b3ap-40")
    y = np.full(r.shape, 1.0 / math.factorial(10))
    for power in range(9, -1, -1):
        y = y * r + 1.0 / math.factorial(power)
    return np.asarray(np.rint(np.ldexp(y * unit, n.astype(np.int64))).astype(np.int64))


def sampling_candidates(
    logits: F32, best: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[I64, I64]:
    """The tokens of logits[V] that top-k (0: off), then top-p, then min-p leave, in order, and their masses.

    Tokens are in order of logit - best, which is rounded to float32, equal ones in order of their ids. The mass of a token
    is its probability over the best one's in units of which 2^53 count the vocabulary; one without mass is no candidate.
    Top-p leaves the fewest tokens that have that share of all masses, at least one; min-p those with that share of the
    best one's.
    """
    with np.errstate(over="ignore"):
        gaps = logits - np.float32(best)
    unit = 2.0 ** min(51, 53 - len(logits).bit_length())
    order = np.lexsort((np.arange(len(logits)), -gaps))[: top_k or None]
    masses = sampling_masses(gaps[order], temperature, unit)
    kept = int(np.count_nonzero(masses))
    if top_p < 1.0:
        kept = min(kept, int(np.searchsorted(np.cumsum(masses), top_p * float(masses.sum()))) + 1)
    kept = min(kept, int(np.count_nonzero(masses >= min_p * unit)))
    return order[:kept], masses[:kept]


def sampling_draw(
    logits: F32, best: float, temperature: float, top_k: int, top_p: float, min_p: float, chance: float
) -> int:
    """The candidate at which the running sum of masses, in order, exceeds `chance` (in 0..1) of their sum."""
    tokens, masses = sampling_candidates(logits, best, temperature, top_k, top_p, min_p)
    return int(tokens[np.searchsorted(np.cumsum(masses), chance * float(masses.sum()), side="right")])


# ---- attention ----------------------------------------------------------------------------------------------------

PAGE = 16  # tokens in a page
SEGMENT = 256  # tokens in a segment: one softmax each, merged in ascending order


INT16_MOST = np.float32(32767)
LOG2_E = np.float32(1.4426950408889634)  # scores are in powers of two
SMALLEST_NORMAL = np.finfo(np.float32).tiny


def key_page(page: I8) -> I8:
    """Keys of a page by token [..., 16, D] -> the order of the store, [D/2][16][2] in an array of the same shape."""
    pairs = page.reshape(*page.shape[:-1], -1, 2).swapaxes(-3, -2)
    return np.ascontiguousarray(pairs).reshape(page.shape)


def value_page(page: I8) -> I8:
    """Values of a page by token [..., 16, D] -> the order of the store, [8][D][2] in an array of the same shape."""
    dim = page.shape[-1]
    pairs = page.reshape(*page.shape[:-2], PAGE // 2, 2, dim).swapaxes(-2, -1)
    return np.ascontiguousarray(pairs).reshape(page.shape)


def keys_of(stored: I8) -> I8:
    """The inverse of `key_page`."""
    dim = stored.shape[-1]
    pairs = stored.reshape(*stored.shape[:-2], dim // 2, PAGE, 2).swapaxes(-3, -2)
    return np.ascontiguousarray(pairs).reshape(stored.shape)


def values_of(stored: I8) -> I8:
    """The inverse of `value_page`."""
    dim = stored.shape[-1]
    pairs = stored.reshape(*stored.shape[:-2], PAGE // 2, dim, 2).swapaxes(-2, -1)
    return np.ascontiguousarray(pairs).reshape(stored.shape)


def append_kv(k: F32, v: F32, k_pages: I8, k_scales: F16, v_pages: I8, v_scales: F16, slots: I64) -> None:
    """Token m's keys and values k, v [M, Hkv, D] into slot slots[m] = page * 16 + offset (-1: left out).

    Pages [P, Hkv, 16, D], a head's integers in the order of `key_page` and `value_page`; scales [P, Hkv, 16]. Per token and
    kv head: scale = float16(min(absmax / 127, 65504)), q = clamp(rint(x * (1/scale)), -127, 127), zeros for a zero scale.
    Raises ValueError("non-finite key or value").
    """
    if not np.isfinite(k).all() or not np.isfinite(v).all():
        raise ValueError("non-finite key or value")
    k_tokens, v_tokens = keys_of(k_pages), values_of(v_pages)
    for x, tokens, scales in ((k, k_tokens, k_scales), (v, v_tokens, v_scales)):
        step = np.minimum(np.abs(x).max(axis=-1) / np.float32(127), np.float32(65504)).astype(np.float16)
        wide = step.astype(np.float32)
        inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
        q = np.rint(np.clip(x * inverse[..., None], np.float32(-127), np.float32(127))).astype(np.int8)
        for m, slot in enumerate(slots):
            if slot >= 0:
                tokens[slot // PAGE, :, slot % PAGE] = q[m]
                scales[slot // PAGE, :, slot % PAGE] = step[m]
    k_pages[:], v_pages[:] = key_page(k_tokens), value_page(v_tokens)


def rope_append(
    qkv: F32,
    heads: int,
    kv_heads: int,
    head_dim: int,
    positions: I32,
    cos: F32,
    sin: F32,
    q_gain: F32 | None,
    k_gain: F32 | None,
    eps: float,
    k_offset: F32,
    k_pages: I8,
    k_scales: F16,
    v_pages: I8,
    v_scales: F16,
    slots: I64,
) -> None:
    """`head_norm` where there is a gain, `rope`, k - k_offset [Hkv, D], `append_kv`; qkv [M, (Hq + 2 Hkv) * D] in place."""
    joint = qkv.reshape(len(qkv), heads + 2 * kv_heads, head_dim)
    q, k, v = joint[:, :heads], joint[:, heads : heads + kv_heads], joint[:, heads + kv_heads :]
    for x, gain in ((q, q_gain), (k, k_gain)):
        if gain is not None:
            head_norm(x, gain, eps)
        rope(x, positions, cos, sin)
    k -= k_offset
    append_kv(k, v, k_pages, k_scales, v_pages, v_scales, slots)


def paged_attention(
    q: F32,
    k_pages: I8,
    k_scales: F16,
    v_pages: I8,
    v_scales: F16,
    page_table: I32,
    row_sequence: I32,
    row_position: I32,
    scale: float,
    *,
    out: F32 | None = None,
) -> F32:
    """Softmax attention of the rows q[M, Hq, D] over INT8 pages -> [M, Hq, D].

    Row m sees the tokens 0..row_position[m] of its sequence, whose page j is page_table[row_sequence[m], j]; a row at -1
    sees none and gets zeros. Head h reads kv head h // (Hq/Hkv). Part of the definition: segments of 256 tokens, a softmax
    in each, merged in ascending order; exact integer products of int16 queries and weights (see `_to_int16`).
    """
    result = np.zeros(q.shape, np.float32)
    group = q.shape[1] // k_pages.shape[1]
    for m in range(q.shape[0]):
        tokens = int(row_position[m]) + 1
        pages = page_table[row_sequence[m], : -(-tokens // PAGE)]
        scaled = q[m] * (np.float32(scale) * LOG2_E)
        k, k_scale = _gather_tokens(keys_of(k_pages[pages]), k_scales[pages], tokens, group)
        v, v_scale = _gather_tokens(values_of(v_pages[pages]), v_scales[pages], tokens, group)
        part = None
        for begin in range(0, tokens, SEGMENT):
            at = slice(begin, begin + SEGMENT)
            part = _merge(part, _attend_segment(scaled, k[:, at], k_scale[:, at], v[:, at], v_scale[:, at]))
        if part is not None:
            result[m] = part[2] / part[1][:, None]
    return _into(out, result)


def _gather_tokens(pages: I8, scales: F16, tokens: int, group: int) -> tuple[I32, F32]:
    """Integers and scales of a sequence's pages, per query head: [Hq, T, D], [Hq, T]."""
    kv_heads, dim = pages.shape[1], pages.shape[3]
    q = pages.transpose(1, 0, 2, 3).reshape(kv_heads, -1, dim)[:, :tokens]
    scale = scales.transpose(1, 0, 2).reshape(kv_heads, -1)[:, :tokens]
    return np.repeat(q.astype(np.int32), group, axis=0), np.repeat(scale.astype(np.float32), group, axis=0)


def _to_int16(x: F32) -> tuple[I32, F32]:
    """x[H, K] -> (integers in -32767..32767 [H, K], step [H]): step = absmax / 32767, q = rint(x * (1/step)).

    Zeros where the step is not a normal number; not a number where x is not finite.
    """
    step = np.abs(x).max(axis=-1) / INT16_MOST
    step = np.where(np.isfinite(x).all(axis=-1), step, np.float32(np.nan))
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step >= SMALLEST_NORMAL)
    scaled = np.where(np.isfinite(x), x, np.float32(0)) * inverse[:, None]
    return np.rint(scaled).astype(np.int32), step


def exp2_negative(y: F32) -> F32:
    """2^y for y <= 0 as attention computes it: y = n + r, a polynomial in r, n added to the exponent field.

    At least 2^-126, NaN kept; relative error < 2e-7.
    """
    f32 = np.float32
    with np.errstate(invalid="ignore"):
        y = np.where(y < f32(-126), f32(-126), y)
        n = np.rint(y)
        r = y - n
        p = np.full(r.shape, float.fromhex("0x1.5bba14p-10"), np.float32)
        for coefficient in ("0x1.3cea88p-7", "0x1.c6b752p-5", "0x1.ebf9bcp-3", "0x1.62e42ap-1", "0x1p+0"):
            p = fma(p, r, f32(float.fromhex(coefficient)))
        shift = np.where(np.isfinite(n), n, 0).astype(np.int32) << 23
        return np.asarray(np.asarray(p.view(np.int32) + shift).view(np.float32))


_Part = tuple[F32, F32, F32]  # per head: maximum [H], sum of exponentials [H], weighted sum of values [H, D]


def _attend_segment(q: F32, k: I32, k_scale: F32, v: I32, v_scale: F32) -> _Part:
    """q[H, D] (already times the softmax scale) on at most 256 tokens: k, v [H, T, D], k_scale, v_scale [H, T]."""
    q_int, q_step = _to_int16(q)
    with np.errstate(invalid="ignore", over="ignore"):
        dot = np.einsum("hd,htd->ht", q_int, k).astype(np.float32)  # exact: |sum| <= 256 * 2^15 * 2^7
        score = (dot * k_scale) * q_step[:, None]
        top = score.max(axis=-1)
        p = exp2_negative(score - top[:, None])
        weight, weight_step = _to_int16(p * v_scale)
        value = np.einsum("ht,htd->hd", weight, v).astype(np.float32) * weight_step[:, None]
    return top, lane_sum(p), value


def _merge(left: _Part | None, right: _Part) -> _Part:
    """Online softmax: both parts rescaled to the common maximum and added."""
    if left is None:
        return right
    top = np.maximum(left[0], right[0])
    with np.errstate(invalid="ignore"):
        a, b = exp2_negative(left[0] - top), exp2_negative(right[0] - top)
    total = fma(left[1], a, right[1] * b)
    return top, total, fma(left[2], a[:, None], right[2] * b[:, None])
