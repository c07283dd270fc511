"""Attention of encoders on the host: the tokens of a text see those behind them too, so all of them are computed at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from edge_llm.kernels.attention import paged_attention
from edge_llm.operations.arithmetic import same_bits_by

if TYPE_CHECKING:
    from edge_llm.operations.base import Arithmetic
    from edge_llm.operations.host_call import AnyRows, HostCall
    from edge_llm.operations.scores import Scores

AttendText = Callable[[np.ndarray, np.ndarray, np.ndarray, "Arithmetic"], np.ndarray]
"""What one text [T, heads, head_dim] makes of its keys and values [kv heads, T, head_dim]: [T, heads, head_dim]."""


def add_both_ways(
    call: HostCall, heads: int, kv_heads: int, scores: Scores, sinks: np.ndarray | None, attend: AttendText
) -> None:
    """Add an attention of whole texts to a program of the host; ``scores`` say their scale, ``attend`` has the float32.

    A text that no window cuts goes through the kernel of pages, every row at the text's last position.  Of a longer one the
    window leaves each row keys of its own: those texts are computed in float32, in blocks of rows.
    """
    qkv, pages, pool = call.buffers[call.op.reads[0]], call.pages, call.pool
    of_heads = qkv.reshape(len(qkv), heads + 2 * kv_heads, -1)
    q, out = of_heads[:, :heads], call.buffers[call.op.writes[0]].reshape(len(qkv), heads, -1)
    kept, arithmetic = (pages.k, pages.k_scale, pages.v, pages.v_scale), same_bits_by(pool)

    def attend_whole(rows: AnyRows) -> None:
        count, last = len(rows.position), _last_positions(rows)
        seen = rows.page_table, rows.sequence, last
        paged_attention(q[:count], *kept, *seen, scores.scale, pool, out[:count], cap=scores.cap, sinks=sinks)
        for text in _texts(rows.sequence) if scores.window else ():
            if last[text.start] >= scores.window:
                queries, keys, values = np.split(of_heads[text], [heads, heads + kv_heads], axis=1)
                out[text] = attend(queries, keys.transpose(1, 0, 2), values.transpose(1, 0, 2), arithmetic)

    call.add_rows(attend_whole)


def _texts(sequence: np.ndarray) -> Iterator[slice]:
    """The rows of each text, which lie side by side, where ``sequence`` [T] numbers the texts."""
    cuts = [0, *(np.flatnonzero(np.diff(sequence)) + 1).tolist(), len(sequence)]
    return map(slice, cuts[:-1], cuts[1:])


def _last_positions(rows: AnyRows) -> np.ndarray:
    """Of each of ``rows``, the last position of its text: int32."""
    last = np.full(len(rows.page_table), -1, np.int32)
    np.maximum.at(last, rows.sequence, rows.position)
    return last[rows.sequence]
