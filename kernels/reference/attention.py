"""Keys and values in INT8 pages, and attention over them."""

from __future__ import annotations

import numpy as np

from edge_llm.kernels.reference.numeric import fma, into, lane_sum
from edge_llm.kernels.reference.pointwise import head_norm, rope, tanh
from edge_llm.kernels.reference.turn import turn as turned
from edge_llm.kernels.types import F16, F32, I8, I32, I64

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
    turn: int = 0,
    *,
    v_gain: F32 | None = None,
    norm_last: bool = False,
    q_scale: F32 | None = None,
) -> None:
    """`head_norm` where there is a gain, `rope`, q * q_scale[position], k - k_offset [Hkv, D], `turn` of q and k, `append_kv`.

    With `norm_last` queries and keys are rotated first.  qkv [M, (Hq + 2 Hkv) * D] in place.
    """
    joint = qkv.reshape(len(qkv), heads + 2 * kv_heads, head_dim)
    q, k, v = joint[:, :heads], joint[:, heads : heads + kv_heads], joint[:, heads + kv_heads :]
    for x, gain in ((q, q_gain), (k, k_gain)):
        if norm_last:
            rope(x, positions, cos, sin)
        if gain is not None:
            head_norm(x, gain, eps)
        if not norm_last:
            rope(x, positions, cos, sin)
    if v_gain is not None:
        head_norm(v, v_gain, eps)
    if q_scale is not None:
        q *= q_scale[positions][:, None, None]
    k -= k_offset
    q[:], k[:] = turned(q, turn), turned(k, turn)
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
    softmax_scale: float,
    *,
    out: F32 | None = None,
    window: int = 0,
    cap: float = 0.0,
    sinks: F32 | None = None,
) -> F32:
    """Softmax attention of the rows q[M, Hq, D] over INT8 pages -> [M, Hq, D].

    Row m sees the tokens j <= p = row_position[m] of its sequence, with a `window` those with p - j < window. Page j of the
    sequence is page_table[row_sequence[m], j]; a row at -1 sees none and gets zeros. Head h reads kv head h // (Hq/Hkv).
    Part of the definition: segments of 256 tokens from the sequence's first one on, a softmax in each that the row sees some
    of, merged in ascending order; exact integer products of int16 queries and weights (see `_to_int16`). A token that is
    hidden has weight 0 and adds 0 to the sum.
    With a `cap` a score s becomes cap * tanh(s / cap). `sinks` [Hq] are logits, which no scale multiplies: that of a head
    joins its maximum and its sum behind the last segment.
    """
    result = np.zeros(q.shape, np.float32)
    group = q.shape[1] // k_pages.shape[1]
    for m in range(q.shape[0]):
        tokens = int(row_position[m]) + 1
        first = max(0, tokens - window) if window else 0
        base = first // SEGMENT * SEGMENT
        there = slice(base // PAGE, -(-tokens // PAGE))
        pages = page_table[row_sequence[m], there].copy()
        pages[: first // PAGE - base // PAGE] = pages[-1:]  # they hold nothing that is seen, and may be gone
        scaled = q[m] * (np.float32(softmax_scale) * LOG2_E)
        k, k_scale = _gather_tokens(keys_of(k_pages[pages]), k_scales[pages], tokens - base, group)
        v, v_scale = _gather_tokens(values_of(v_pages[pages]), v_scales[pages], tokens - base, group)
        part = None
        for begin in range(0, tokens - base, SEGMENT):
            at, hidden = slice(begin, begin + SEGMENT), max(0, first - base - begin)
            part = _merge(part, _attend_segment(scaled, k[:, at], k_scale[:, at], v[:, at], v_scale[:, at], hidden, cap))
        if part is not None:
            _, total, value = part if sinks is None else _join_sinks(part, sinks)
            result[m] = value / total[:, None]
    return into(out, result)


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


_PartialAttention = tuple[F32, F32, F32]  # per head: maximum [H], sum of exponentials [H], weighted sum of values [H, D]


def _attend_segment(q: F32, k: I32, k_scale: F32, v: I32, v_scale: F32, hidden: int, cap: float) -> _PartialAttention:
    """q[H, D] (already times the softmax scale) on at most 256 tokens: k, v [H, T, D], k_scale, v_scale [H, T].

    The first `hidden` tokens are not seen.
    """
    q_int, q_step = _to_int16(q)
    with np.errstate(invalid="ignore", over="ignore"):
        dot = np.einsum("hd,htd->ht", q_int, k).astype(np.float32)  # exact: |sum| <= 256 * 2^15 * 2^7
        score = (dot * k_scale) * q_step[:, None]
        if cap:
            most = np.float32(cap) * LOG2_E
            score = tanh(score * (np.float32(1) / most)) * most
        top = score[:, hidden:].max(axis=-1)
        p = exp2_negative(score - top[:, None])
        p[:, :hidden] = 0
        product = p * v_scale
        product[:, :hidden] = 0
        weight, weight_step = _to_int16(product)
        value = np.einsum("ht,htd->hd", weight, v).astype(np.float32) * weight_step[:, None]
    return top, lane_sum(p), value


def _join_sinks(part: _PartialAttention, sinks: F32) -> _PartialAttention:
    """One more logit for each head, of a token whose value is 0."""
    sink = sinks * LOG2_E
    top = np.maximum(part[0], sink)
    with np.errstate(invalid="ignore"):
        a, b = exp2_negative(part[0] - top), exp2_negative(sink - top)
    return top, fma(part[1], a, b), part[2] * a[:, None]


def _merge(left: _PartialAttention | None, right: _PartialAttention) -> _PartialAttention:
    """Online softmax: both parts rescaled to the common maximum and added."""
    if left is None:
        return right
    top = np.maximum(left[0], right[0])
    with np.errstate(invalid="ignore"):
        a, b = exp2_negative(left[0] - top), exp2_negative(right[0] - top)
    total = fma(left[1], a, right[1] * b)
    return top, total, fma(left[2], a[:, None], right[2] * b[:, None])
