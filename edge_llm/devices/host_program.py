"""Operations of the host as programs: fixed arrays, any rows.  What no native kernel does is a step of Python in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from edge_llm.devices.base import LATE, BoundArrays, Rows, RunRow, Stopped, WatchedOp, Watching
from edge_llm.formats.layout import KEY_OFFSET
from edge_llm.models.layer import Attention, Embedding, Linear, Norm, SwiGLU
from edge_llm.models.rope import RopeTables
from edge_llm.schemes.tables import Table, integers_of
from edge_llm.subgraphs.ops import PRODUCT, Op
from edge_llm.weights.base import Turn
from kernels import ThreadPool
from kernels.program import Program

LOOK_SECONDS = 0.05
"""A program that has run for longer stops at its next wait: in Python a step can be cancelled."""


@dataclass
class _Native:
    """Native calls that follow each other.  ``ops`` are what they do; who is ``watching`` is told of every run."""

    pool: ThreadPool
    watching: Watching
    program: Program = field(default_factory=Program)
    waits: dict[int, int] = field(default_factory=dict)
    """The layers that calls await, by the numbers of these calls."""
    ops: list[WatchedOp] = field(default_factory=list)

    def __call__(self, rows: Rows, late: np.ndarray | None, stopped: Stopped | None) -> None:
        """Run the calls; where they stop at one of the ``waits``, call ``stopped`` and go on behind it."""
        arguments = (rows.tokens, rows.position, rows.slots, rows.sequence, rows.page_table, self.pool, late)
        watch = self.watching.watch
        seconds = None if watch is None else np.zeros(len(self.program))
        at = -1
        while (at := self.program.run(*arguments, start=at + 1, patience=LOOK_SECONDS, seconds=seconds)) in self.waits:
            assert stopped is not None, "a program that awaits layers"
            stopped(self.waits[at])
        if watch is not None and seconds is not None:
            watch(self.ops, rows.position, seconds)

    @property
    def run_row(self) -> RunRow | None:
        if self.waits:
            return None
        run_row, pool, watching = self.program.run_row, self.pool, self.watching

        def run(token: int, position: int, pages: np.ndarray) -> np.ndarray:
            if (watch := watching.watch) is None:
                return run_row(token, position, pages, pool)
            seconds = np.zeros(len(self.program))
            logits = run_row(token, position, pages, pool, seconds=seconds)
            watch(self.ops, np.array([position], np.int32), seconds)
            return logits

        return run


@dataclass
class _Python:
    """A step of Python, which is one of ``ops``."""

    step: Callable[[Rows, np.ndarray | None], None]
    watching: Watching
    ops: list[WatchedOp] = field(default_factory=list)

    def __call__(self, rows: Rows, late: np.ndarray | None, stopped: Stopped | None) -> None:
        started = time.perf_counter()
        self.step(rows, late)
        if (watch := self.watching.watch) is not None:
            watch(self.ops, rows.position, np.array([time.perf_counter() - started]))


class HostProgram:
    """Steps on ``pool``, in the order in which they were added: native calls that follow each other are one step."""

    def __init__(self, pool: ThreadPool, watching: Watching | None = None) -> None:
        self._pool = pool
        self._watching = watching or Watching()
        self._steps: list[_Native | _Python] = []
        self._ended = 0  # calls of the last step that belong to what was added before the operation at hand

    @property
    def native(self) -> Program:
        """Where the next native call goes."""
        return self._last_native().program

    def wait(self, turn: Turn) -> None:
        """What follows uses the weights of ``turn``."""
        last = self._last_native()
        last.waits[last.program.wait(turn.read, turn.checksums)] = turn.layer
        self._ended = len(last.program)

    def request(self, turn: Turn) -> None:
        """What was added before has used the weights of ``turn``: they make room for others."""
        self.native.request(turn.after)
        self._ended = len(self.native)

    @property
    def run_row(self) -> RunRow | None:
        if len(self._steps) != 1 or not isinstance(self._steps[0], _Native):
            return None
        return self._steps[0].run_row

    def add(self, step: Callable[[Rows, np.ndarray | None], None]) -> None:
        """A step of Python."""
        self._steps.append(_Python(step, self._watching))
        self._ended = 0

    def end_op(self, part: str, op: Op, arrays: BoundArrays) -> None:
        """What was added last is ``op``."""
        last = self._steps[-1]
        calls = len(last.program) if isinstance(last, _Native) else 1
        last.ops.append(WatchedOp(part, op, arrays.weights, arrays.pages, slice(self._ended, calls)))
        self._ended = calls

    def __call__(self, rows: Rows, late: np.ndarray | None = None, stopped: Stopped | None = None) -> None:
        for step in self._steps:
            step(rows, late, stopped)

    def _last_native(self) -> _Native:
        if not self._steps or not isinstance(self._steps[-1], _Native):
            self._steps.append(_Native(self._pool, self._watching))
            self._ended = 0
        last = self._steps[-1]
        assert isinstance(last, _Native)
        return last


def add_op(program: HostProgram, op: Op, bound: BoundArrays, tables: RopeTables, pool: ThreadPool, shadow: bool) -> None:
    """Add ``op`` in the arrays of ``bound``; without ``shadow`` the outliers are dropped."""
    if isinstance(op.of, Embedding):
        _add_embedding(program, op, bound)
    elif isinstance(op.of, Norm):
        _add_norm(program, op, op.of, bound)
    elif isinstance(op.of, SwiGLU):
        program.native.swiglu(bound.buffers[op.reads[0]], out=bound.buffers[op.writes[0]])
    elif isinstance(op.of, Linear):
        _add_linear(program, op, bound, pool, shadow)
    elif op.kind == "rope_append":
        _add_append(program, op, op.of, bound, tables)
    else:
        _add_attention(program, op, op.of, bound)


def _add_embedding(program: HostProgram, op: Op, bound: BoundArrays) -> None:
    table, out = bound.weights.linears["embedding"], bound.buffers[op.writes[0]]
    assert isinstance(table, Table)
    hot = table.hot_index, table.hot_weight
    program.native.embedding(integers_of(table), table.columns, table.weight_scale, *hot, out=out, turn=table.turn)


def _add_norm(program: HostProgram, op: Op, norm: Norm, bound: BoundArrays) -> None:
    gain = bound.weights.gains[norm.gain.name]
    program.native.rms_norm(bound.buffers[op.reads[0]], gain, norm.eps, out=bound.buffers[op.writes[0]])


def _add_linear(program: HostProgram, op: Op, bound: BoundArrays, pool: ThreadPool, shadow: bool) -> None:
    weight, swiglu = bound.weights.linears[op.linear.name], op.kind == "linear_swiglu"
    x, out = bound.buffers[op.reads[0]], bound.buffers[op.writes[0]]
    add = bound.buffers[op.adds] if op.adds else None
    gain, eps = (bound.weights.gains[op.norm.gain.name], op.norm.eps) if op.norm else (None, 0.0)
    product = _product(op, bound, len(x)) if PRODUCT in op.writes else None
    into, in_one = (out, swiglu) if product is None else (product, False)
    if weight.add_to(program.native, x, add=add, shadow=shadow, gain=gain, eps=eps, swiglu=in_one, out=into):
        if product is not None:
            program.native.swiglu(product, out=out)
        return

    def apply(rows: Rows, late: np.ndarray | None) -> None:
        n = rows.count
        added, into = None if add is None else add[:n], late if out is LATE else out[:n]
        weight.apply(x[:n], pool, add=added, shadow=shadow, gain=gain, eps=eps, swiglu=swiglu, out=into)

    program.add(apply)


def _product(op: Op, bound: BoundArrays, rows: int) -> np.ndarray:
    """A buffer for the product of ``op``, of the width that it has here."""
    values: np.ndarray = bound.buffers[PRODUCT].reshape(-1)
    return values[: rows * op.linear.rows].reshape(rows, op.linear.rows)


def _add_append(program: HostProgram, op: Op, attention: Attention, bound: BoundArrays, tables: RopeTables) -> None:
    gains, pages = bound.weights.gains, bound.pages
    assert pages is not None
    q_gain, k_gain = (gains[gain.name] if gain else None for gain in (attention.q_norm, attention.k_norm))
    program.native.rope_append(
        bound.buffers[op.reads[0]],
        attention.heads,
        attention.kv_heads,
        attention.head_dim,
        *tables[attention.rope],
        q_gain,
        k_gain,
        attention.eps,
        # The same vector off every key of a head changes no softmax, and leaves less to quantize.
        gains[KEY_OFFSET],
        pages.k,
        pages.k_scale,
        pages.v,
        pages.v_scale,
        turn=attention.turn,
    )


def _add_attention(program: HostProgram, op: Op, attention: Attention, bound: BoundArrays) -> None:
    pages = bound.pages
    assert pages is not None
    shape = (-1, attention.heads, attention.head_dim)
    q = bound.buffers[op.reads[0]][:, : attention.q_size].reshape(shape)
    out = bound.buffers[op.writes[0]].reshape(shape)
    scale = attention.head_dim**-0.5 / max(1, attention.turn)
    program.native.paged_attention(q, pages.k, pages.k_scale, pages.v, pages.v_scale, scale, out=out)
