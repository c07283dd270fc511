"""Attention over paged INT8 keys and values.

A page holds 16 tokens: integers [P, Hkv, 16, D] and one float16 scale per token and kv head [P, Hkv, 16]. A head's 16 * D
integers lie in the order in which attention reads them: keys as [D/2][16][2], values as [8][D][2] (pairs of neighbouring
dims, pairs of neighbouring tokens). Attention reads the pages as they are; nothing is dequantized in memory. A row's result
has the same bits whatever the other rows, the page numbers, the threads or the instruction set, and equals
`kernels.reference`.

    attention.rope_append(qkv, heads, kv_heads, head_dim, positions, cos, sin, None, None, eps, k_offset,
                          k_pages, k_scales, v_pages, v_scales, slots, pool)
    y = attention.paged_attention(q, k_pages, k_scales, v_pages, v_scales, page_table, row_sequence, row_position,
                                  softmax_scale, pool)
"""

from __future__ import annotations

from edge_llm.kernels import _native
from edge_llm.kernels.types import F16, F32, I8, I32, I64

PAGE = 16  # tokens in a page


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
    pool: _native.ThreadPool,
    *,
    turn: int = 0,
    v_gain: F32 | None = None,
    norm_last: bool = False,
    q_scale: F32 | None = None,
) -> None:
    """Rotate the queries and keys of M tokens and quantize keys and values into their pages, in place.

    qkv [M, (Hq + 2 Hkv) * D], C-contiguous, the heads of queries, keys and values side by side. In this order: queries and
    keys are normed per head where there is a gain [D] (root mean square, `eps`) and rotated by cos and sin [C, R/2] at
    positions[M] in their first R channels (0: not at all), with `norm_last` the other way round; values are normed where there
    is a v_gain [D]; queries are multiplied by q_scale [C] at their position; k_offset [Hkv, D] is subtracted from the keys; and
    queries and keys are turned in blocks of `turn` channels (`kernels.pointwise.turn`; the softmax scale must then be less by
    that factor). `qkv` keeps the results. Then keys and values are quantized per token and head, scale = float16(absmax / 127),
    q = clamp(rint(x * (1/scale)), -127, 127), into slots[M]: page * 16 + offset, each slot at most once, or -1 for a row that
    is not stored (padding).

    Raises ValueError for a position or a slot out of range, and for a non-finite key or value, whose head is then stored as
    zeros (the others are written all the same).
    """
    _native.rope_append(
        qkv, heads, kv_heads, head_dim, positions, cos, sin, q_gain, k_gain, eps, k_offset,
        k_pages, k_scales, v_pages, v_scales, slots, pool, turn, v_gain, norm_last, q_scale,
    )  # fmt: skip


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
    pool: _native.ThreadPool,
    out: F32 | None = None,
    *,
    window: int = 0,
    cap: float = 0.0,
    sinks: F32 | None = None,
) -> F32:
    """Softmax attention of the rows q[M, Hq, D] (rows and heads may be strided) -> [M, Hq, D].

    Row m sees the tokens 0..row_position[m] of sequence row_sequence[m], with a `window` the last so many of them; page j of
    the sequence is page_table[sequence, j]; a row at -1 (padding) sees none and gets zeros. Head h reads kv head h // (Hq/Hkv).
    D is a multiple of 8, at most 512. Rows may come in any order; neighbours of one sequence share the work of reading its
    pages. What lies in a page beyond a row's position or before its window never matters, and pages that no row sees are not
    looked up. A `cap` keeps scores within it, cap * tanh(score / cap). `sinks` [Hq] are one more logit for each head, which no
    scale multiplies and whose value is 0. Queries, and the softmax weights of 256 tokens, are rounded to int16 with a scale of
    their own: an error of at most 2^-16 of the largest one.
    Raises ValueError when a sequence, a position or a needed page is out of range.
    """
    return _native.paged_attention(
        q, k_pages, k_scales, v_pages, v_scales, page_table, row_sequence, row_position, softmax_scale, pool, out,
        window, cap, sinks,
    )  # fmt: skip
