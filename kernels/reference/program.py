"""A program as the calls that it stands for: `kernels.program.Program` gives the same bits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_llm.kernels.activation import SILU, Activation
from edge_llm.kernels.block_kinds import BlockKind
from edge_llm.kernels.reference.attention import PAGE, paged_attention, rope_append
from edge_llm.kernels.reference.blocks import block_linear, rows_of
from edge_llm.kernels.reference.embedding import embedding
from edge_llm.kernels.reference.half_linear import half_linear
from edge_llm.kernels.reference.linear import linear
from edge_llm.kernels.reference.pointwise import activate, gated, layer_norm, rms_norm
from edge_llm.kernels.types import F16, F32, I8, I32, I64, U8, U32


@dataclass(frozen=True)
class ProgramRows:
    """What a run says of its rows."""

    tokens: I64
    positions: I32
    slots: I64
    row_sequence: I32
    page_table: I32
    out: F32 | None
    adapters: I32 | None = None


class Program:
    """Calls in the order in which they were added; `weight` is the tuple of arguments of `reference.linear`.

    `low_rank` is the list of entries of a `LowRank`.
    """

    def __init__(self) -> None:
        self._calls: list[Callable[[ProgramRows], Any]] = []
        self._waits: dict[int, Callable[[], bool]] = {}  # by their numbers among the calls: whether all is there
        self._late: int = 0  # columns of the output of a run

    def embedding(
        self, integers: I8 | U8, columns: int, scale: F32, hot: I32, hot_weight: F16, *, out: F32, turn: int = 0
    ) -> None:
        def call(rows: ProgramRows) -> None:
            embedding(rows.tokens, integers, columns, scale, hot, hot_weight, turn=turn, out=out[: len(rows.tokens)])

        self._calls.append(call)

    def linear(self, x: F32, weight: tuple[Any, ...], *, out: F32 | None, add: F32 | None = None, **how: Any) -> None:
        if out is None:
            self._late = weight[1]

        def call(rows: ProgramRows) -> None:
            n = len(rows.positions)
            into = rows.out if out is None else out[:n]
            linear(x[:n], *weight, add=None if add is None else add[:n], out=into, **how)

        self._calls.append(call)

    def half_linear(self, x: F32, weight: F16, *, out: F32 | None, add: F32 | None = None, **how: Any) -> None:
        if out is None:
            self._late = weight.shape[1]

        def call(rows: ProgramRows) -> None:
            n = len(rows.positions)
            into = rows.out if out is None else out[:n]
            half_linear(x[:n], weight, add=None if add is None else add[:n], out=into, **how)

        self._calls.append(call)

    def block_linear(
        self, x: F32, weight: list[tuple[U8, BlockKind, int]], *, out: F32 | None, add: F32 | None = None, **how: Any
    ) -> None:
        if out is None:
            self._late = sum(channels for _, _, channels in weight)

        def call(rows: ProgramRows) -> None:
            n = len(rows.positions)
            into = rows.out if out is None else out[:n]
            block_linear(x[:n], weight, add=None if add is None else add[:n], out=into, **how)

        self._calls.append(call)

    def low_rank_down(self, x: F32, low_rank: list[Any], *, out: F32, **how: Any) -> None:
        def call(rows: ProgramRows) -> None:
            for row, entry in _adapted(rows, low_rank):
                down, _ = entry
                out[row, : down.shape[1]] = half_linear(x[row : row + 1], down, **how)[0]

        self._calls.append(call)

    def low_rank_up(self, t: F32, low_rank: list[Any], *, out: F32) -> None:
        def call(rows: ProgramRows) -> None:
            for row, (_, parts) in _adapted(rows, low_rank):
                for rank, channel, up in parts:
                    into = out[row : row + 1, channel : channel + up.shape[1]]
                    into[:] = half_linear(t[row : row + 1, rank : rank + len(up)], up, add=into)

        self._calls.append(call)

    def block_embedding(
        self, panels: U8, kind: BlockKind, channels: int, columns: int, *, out: F32, factor: float = 1.0
    ) -> None:
        def call(rows: ProgramRows) -> None:
            out[: len(rows.tokens)] = rows_of(panels, kind, columns, rows.tokens) * np.float32(factor)

        self._calls.append(call)

    def rms_norm(self, x: F32, gain: F32, eps: float, *, out: F32, add: F32 | None = None) -> None:
        def call(rows: ProgramRows) -> None:
            n = len(rows.positions)
            out[:n] = rms_norm(x[:n], gain, eps, add=None if add is None else add[:n])

        self._calls.append(call)

    def layer_norm(self, x: F32, gain: F32, bias: F32 | None, eps: float, *, out: F32, add: F32 | None = None) -> None:
        def call(rows: ProgramRows) -> None:
            n = len(rows.positions)
            out[:n] = layer_norm(x[:n], gain, bias, eps, add=None if add is None else add[:n])

        self._calls.append(call)

    def gated(self, gate_up: F32, gate: Activation, *, out: F32) -> None:
        def call(rows: ProgramRows) -> None:
            n = len(rows.positions)
            out[:n] = gated(gate_up[:n], gate)

        self._calls.append(call)

    def swiglu(self, gate_up: F32, *, out: F32) -> None:
        self.gated(gate_up, SILU, out=out)

    def activate(self, x: F32, kind: Activation, *, out: F32) -> None:
        def call(rows: ProgramRows) -> None:
            n = len(rows.positions)
            out[:n] = activate(x[:n], kind)

        self._calls.append(call)

    def rope_append(
        self,
        qkv: F32,
        heads: int,
        kv_heads: int,
        head_dim: int,
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
        *,
        turn: int = 0,
        **how: Any,
    ) -> None:
        def call(rows: ProgramRows) -> None:
            these, positions = qkv[: len(rows.positions)], rows.positions
            rope_append(
                these, heads, kv_heads, head_dim, positions, cos, sin, q_gain, k_gain, eps, k_offset,
                k_pages, k_scales, v_pages, v_scales, rows.slots, turn, **how,
            )  # fmt: skip

        self._calls.append(call)

    def paged_attention(
        self, q: F32, k_pages: I8, k_scales: F16, v_pages: I8, v_scales: F16, softmax_scale: float, *, out: F32, **how: Any
    ) -> None:
        def call(rows: ProgramRows) -> None:
            n = len(rows.positions)
            seen = rows.page_table, rows.row_sequence, rows.positions
            out[:n] = paged_attention(q[:n], k_pages, k_scales, v_pages, v_scales, *seen, softmax_scale, **how)

        self._calls.append(call)

    def wait(self, reading: Any, checksums: U32) -> int:
        def whole() -> bool:
            there, found = reading.wait()
            return bool(there == reading.nbytes and np.array_equal(found, checksums))

        self._waits[len(self._calls)] = whole
        self._calls.append(lambda rows: None)
        return len(self._calls) - 1

    def request(self, reading: Any) -> None:
        self._calls.append(lambda rows: reading.again())

    def run(
        self,
        tokens: I64,
        positions: I32,
        slots: I64,
        row_sequence: I32,
        page_table: I32,
        out: F32 | None = None,
        *,
        start: int = 0,
        patience: float = math.inf,
        adapters: I32 | None = None,
    ) -> int:
        rows = ProgramRows(tokens, positions, slots, row_sequence, page_table, out, adapters)
        end = time.monotonic() + patience
        for at in range(start, len(self._calls)):
            if at in self._waits and (time.monotonic() >= end or not self._waits[at]()):
                return at
            self._calls[at](rows)
        return len(self._calls)

    def run_row(self, token: int, position: int, pages: I32) -> F32:
        slot, out = pages[position // PAGE] * PAGE + position % PAGE, np.empty((1, self._late), np.float32)
        tokens, slots, positions = np.array([token]), np.array([slot]), np.array([position], np.int32)
        self.run(tokens, positions, slots, np.zeros(1, np.int32), pages[None], out)
        return out


def _adapted(rows: ProgramRows, low_rank: list[Any]) -> list[tuple[int, Any]]:
    """The rows that an adapter changes, and its entry."""
    numbers = [] if rows.adapters is None else rows.adapters.tolist()
    return [(row, low_rank[one - 1]) for row, one in enumerate(numbers) if one and low_rank[one - 1] is not None]
