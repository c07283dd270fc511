"""Kernel calls over fixed arrays, one after the other in one native call, without the interpreter between them.

A call is added with the arguments of the kernel of its name. Its arrays are checked then; the program keeps them, and they must
stay where they are. `run` says how many of their first rows there are, and what these rows are.
A program may read weights from a file on the way: it waits for a range before the calls that use it, and asks for the next one
behind them.  `kernels.reference.Program` walks the same calls.

    program = Program()
    program.linear(x, weight, gain=gain, eps=1e-6, out=gate_up)
    program.swiglu(gate_up, out=y)
    program.run(tokens, positions, slots, row_sequence, page_table, pool)
"""

from __future__ import annotations

import math

import numpy as np

from edge_llm.kernels import _native
from edge_llm.kernels._native import BlockLinear, Int8Linear, LowRank, Reading, ThreadPool
from edge_llm.kernels.activation import SILU, Activation, numbers
from edge_llm.kernels.block_kinds import BlockKind
from edge_llm.kernels.types import F16, F32, F64, I8, I32, I64, U8, U32


class Program:
    """Calls in the order in which they were added; each raises ValueError that names a wrong argument."""

    def __init__(self) -> None:
        self._native = _native.Program()

    def __len__(self) -> int:
        """Native calls so far; what one method adds may be two."""
        return len(self._native)

    def embedding(
        self, integers: I8 | U8, columns: int, scale: F32, hot: I32, hot_weight: F16, *, out: F32, turn: int = 0
    ) -> None:
        """`kernels.embedding.embedding` of the tokens of `run`."""
        self._native.embedding(integers, columns, scale, hot, hot_weight, out, turn)

    def linear(
        self,
        x: F32,
        weight: Int8Linear,
        *,
        out: F32 | None,
        add: F32 | None = None,
        shadow: bool = True,
        gain: F32 | None = None,
        eps: float = 0.0,
        gate: Activation | None = None,
        swiglu: bool = False,
    ) -> None:
        """`kernels.linear.linear`. Without `out` it writes to the `out` of `run`, as one linear of a program may."""
        kind, limit = numbers(gate, swiglu)
        if out is not None and kind and add is None and not weight.swiglu_in_one_pass:
            y = np.empty((len(x), weight.rows), np.float32)
            self._native.linear(x, weight, add, shadow, gain, eps, 0, 0.0, y)
            self._native.gated(y, kind, limit, out)
        else:
            self._native.linear(x, weight, add, shadow, gain, eps, kind, limit, out)

    def half_linear(
        self,
        x: F32,
        weight: F16,
        *,
        out: F32 | None,
        bias: F32 | None = None,
        add: F32 | None = None,
        gain: F32 | None = None,
        eps: float = 0.0,
        gate: Activation | None = None,
        swiglu: bool = False,
    ) -> None:
        """`kernels.half_linear.half_linear`. Without `out` it writes to the `out` of `run`, as one linear of a program may."""
        self._native.half_linear(x, weight, bias, add, gain, eps, *numbers(gate, swiglu), out)

    def block_linear(
        self,
        x: F32,
        weight: BlockLinear,
        *,
        out: F32 | None,
        bias: F32 | None = None,
        add: F32 | None = None,
        gain: F32 | None = None,
        eps: float = 0.0,
        gate: Activation | None = None,
    ) -> None:
        """`kernels.blocks.block_linear`. Without `out` it writes to the `out` of `run`, as one linear of a program may."""
        kind, limit = numbers(gate)
        if out is not None and kind and add is None and not weight.gated_in_one_pass:
            y = np.empty((len(x), weight.rows), np.float32)
            self._native.block_linear(x, weight, bias, add, gain, eps, 0, 0.0, y)
            self._native.gated(y, kind, limit, out)
        else:
            self._native.block_linear(x, weight, bias, add, gain, eps, kind, limit, out)

    def low_rank_down(self, x: F32, low_rank: LowRank, *, out: F32, gain: F32 | None = None, eps: float = 0.0) -> None:
        """`kernels.half_linear.half_linear` of every row that has an adapter, with that one's first matrix.

        `out` is f32[len(x), low_rank.widest]; what lies behind an adapter's rank is undefined, as are rows without one.
        """
        self._native.low_rank_down(x, low_rank, gain, eps, out)

    def low_rank_up(self, t: F32, low_rank: LowRank, *, out: F32) -> None:
        """Adds the product of `t`, which `low_rank_down` wrote, and the second matrix of every row's adapter to `out`."""
        self._native.low_rank_up(t, low_rank, out)

    def block_embedding(
        self, panels: U8, kind: BlockKind, channels: int, columns: int, *, out: F32, factor: float = 1.0
    ) -> None:
        """`kernels.blocks.rows_of` of the tokens of `run`, of ``channels`` rows, times `factor`."""
        self._native.block_embedding(panels, kind.number, channels, columns, factor, out)

    def rms_norm(self, x: F32, gain: F32, eps: float, *, out: F32, add: F32 | None = None) -> None:
        """`kernels.pointwise.rms_norm`."""
        self._native.rms_norm(x, gain, eps, out, add)

    def layer_norm(self, x: F32, gain: F32, bias: F32 | None, eps: float, *, out: F32, add: F32 | None = None) -> None:
        """`kernels.pointwise.layer_norm`."""
        self._native.layer_norm(x, gain, bias, eps, out, add)

    def gated(self, gate_up: F32, gate: Activation, *, out: F32) -> None:
        """`kernels.pointwise.gated`."""
        self._native.gated(gate_up, *numbers(gate), out)

    def swiglu(self, gate_up: F32, *, out: F32) -> None:
        """`kernels.pointwise.swiglu`."""
        self.gated(gate_up, SILU, out=out)

    def activate(self, x: F32, kind: Activation, *, out: F32) -> None:
        """`kernels.pointwise.activate`."""
        self._native.activate(x, *numbers(kind), out)

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
        v_gain: F32 | None = None,
        norm_last: bool = False,
        q_scale: F32 | None = None,
    ) -> None:
        """`kernels.attention.rope_append`, at the positions and into the slots of `run`."""
        self._native.rope_append(
            qkv, heads, kv_heads, head_dim, cos, sin, q_gain, k_gain, eps, k_offset, k_pages, k_scales, v_pages, v_scales,
            turn, v_gain, norm_last, q_scale,
        )  # fmt: skip

    def paged_attention(
        self,
        q: F32,
        k_pages: I8,
        k_scales: F16,
        v_pages: I8,
        v_scales: F16,
        softmax_scale: float,
        *,
        out: F32,
        window: int = 0,
        cap: float = 0.0,
        sinks: F32 | None = None,
    ) -> None:
        """`kernels.attention.paged_attention` of the rows of `run`."""
        self._native.paged_attention(q, k_pages, k_scales, v_pages, v_scales, softmax_scale, out, window, cap, sinks)

    def wait(self, reading: Reading, checksums: U32) -> int:
        """Wait for ``reading``, into arrays of the calls that follow; the number of this call, at which `run` may stop.

        `checksums` u32[pieces] are those of a reading that came whole.
        """
        return self._native.wait(reading, checksums)

    def request(self, reading: Reading) -> None:
        """`Reading.again`, behind the calls that use what it writes to."""
        self._native.request(reading)

    def run(
        self,
        tokens: I64,
        positions: I32,
        slots: I64,
        row_sequence: I32,
        page_table: I32,
        pool: ThreadPool,
        out: F32 | None = None,
        *,
        start: int = 0,
        patience: float = math.inf,
        seconds: F64 | None = None,
        adapters: I32 | None = None,
    ) -> int:
        """All calls from number `start` on, on the first M rows of their arrays; the number of the call that it stopped at.

        It stops behind the last call, or at a `wait` whose reading does not come whole, or at the first `wait` that it comes to
        after `patience` seconds.

        tokens[M] are those of `kernels.embedding`; positions[M], slots[M] and row_sequence[M] those of `kernels.attention`.
        `out` f32[M, N] is written by the linear that was added without one. What every call takes is added to `seconds`
        f64[len(self)]. adapters[M] are numbers from 1 of the entries of every `LowRank`, or 0 for none; None: no row has one.
        Raises ValueError when one of them or a needed page is out of range, before anything is computed, and for a value that
        is not finite, in the middle.
        """
        rows = tokens, positions, slots, row_sequence, page_table
        return self._native.run(*rows, pool, out, start, patience, seconds, adapters)

    def run_row(self, token: int, position: int, pages: I32, pool: ThreadPool, *, seconds: F64 | None = None) -> F32:
        """`run` of one row: the token at `position` of a sequence that has these `pages` i32[P].

        Returns what the linear without `out` gives, f32[1, N]. `seconds` is that of `run`. Raises ValueError as `run` does,
        for a program without such a linear, and for one that reads weights on the way.
        """
        return self._native.run_row(token, position, pages, pool, seconds)
