"""Attention over paged INT8 keys and values.

A page holds 16 tokens: integers [P, Hkv, 16, D] and one float16 scale per token and kv head [P, Hkv, 16]. Attention reads
the pages as they are; nothing is dequantized in memory. A row's result has the same bits whatever the other rows, the page
numbers, the threads or the instruction set, and equals `kernels.reference`.

    attention.append_kv(k, v, k_pages, k_scales, v_pages, v_scales, slots, pool)
    y = attention.paged_attention(q, k_pages, k_scales, v_pages, v_scales, page_table, row_sequence, row_position, scale, pool)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels import _native

F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

PAGE = 16  # tokens in a page


def append_kv(
    k: F32,
    v: F32,
    k_pages: I8,
    k_scales: F16,
    v_pages: I8,
    v_scales: F16,
    slots: I64,
    pool: _native.ThreadPool,
) -> None:
    """Quantize the keys and values of M tokens into their pages, in place.

    k, v [M, Hkv, D] (rows and heads may be strided), slots[M]: page * 16 + offset, each slot at most once, or -1 for a row
    that is left out (padding). scale = float16(absmax / 127), q = clamp(rint(x * (1/scale)), -127, 127).
    Raises ValueError for a slot outside the pages, and for a non-finite key or value, whose token is then stored as zeros
    (the other tokens are written all the same).
    """
    _native.append_kv(k, v, k_pages, k_scales, v_pages, v_scales, slots, pool)


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
    pool: _native.ThreadPool,
    out: F32 | None = None,
) -> F32:
    """Softmax attention of the rows q[M, Hq, D] (rows and heads may be strided) -> [M, Hq, D].

    Row m sees the tokens 0..row_position[m] of sequence row_sequence[m], whose page j is page_table[sequence, j]; a row at
    -1 (padding) sees none and gets zeros. Head h reads kv head h // (Hq/Hkv). D is a multiple of 8, at most 256. Rows may
    come in any order; neighbours of one sequence share the work of reading its pages. What lies in a page beyond a row's
    position never matters. Raises ValueError when a sequence, a position or a needed page is out of range.
    """
    return _native.paged_attention(
        q, k_pages, k_scales, v_pages, v_scales, page_table, row_sequence, row_position, scale, pool, out
    )
