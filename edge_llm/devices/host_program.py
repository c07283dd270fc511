"""Operations of the host as programs: fixed arrays, any rows.  What no native kernel does is a step of Python in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from edge_llm.devices.base import LATE, BoundOps, Rows, RunRows, Stopped
from edge_llm.formats.layout import KEY_OFFSET
from edge_llm.models.layer import Attention, Embedding, Linear, Norm, SwiGLU
from edge_llm.models.rope import RopeTables
from edge_llm.schemes.int8_weight import Int8Product
from edge_llm.subgraphs.ops import PRODUCT, Op
from edge_llm.weights.base import Turn
from kernels import ThreadPool
from kernels.program import Program

LOOK_SECONDS = 0.05
"""A program that has run for longer stops at its next wait: in Python a step can be cancelled."""


class HostProgram:
    """Steps on ``pool``, in the order in which they were added: native calls that follow each other are one program."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool
        self._steps: list[RunRows] = []
        self._open: Program | None = None  # the last step, while more native calls may follow
        self._waits: dict[int, int] = {}  # of that program: the layers, by the numbers of the calls that await them

    @property
    def native(self) -> Program:
        """Where the next native call goes."""
        if self._open is None:
            program = self._open = Program()
            self._waits = {}
            self._steps.append(partial(_run, program, self._waits, self._pool))
        return self._open

    def wait(self, turn: Turn) -> None:
        """What follows uses the weights of ``turn``."""
        call = self.native.wait(turn.read, turn.checksums)
        self._waits[call] = turn.layer

    def add(self, step: Callable[[Rows, np.ndarray | None], None]) -> None:
        """A step of Python."""
        self._open = None
        self._steps.append(lambda rows, late, stopped: step(rows, late))

    def __call__(self, rows: Rows, late: np.ndarray | None = None, stopped: Stopped | None = None) -> None:
        for step in self._steps:
            step(rows, late, stopped)


def _run(
    program: Program,
    waits: Mapping[int, int],
    pool: ThreadPool,
    rows: Rows,
    late: np.ndarray | None,
    stopped: Stopped | None,
) -> None:
    """Run ``program``; where it stops at one of its ``waits``, call ``stopped`` and go on behind it."""
    arguments = (rows.tokens, rows.position, rows.slots, rows.sequence, rows.page_table, pool, late)
    at = -1
    while (at := program.run(*arguments, start=at + 1, patience=LOOK_SECONDS)) in waits:
        assert stopped is not None, "a program that awaits layers"
        stopped(waits[at])


def add_op(program: HostProgram, op: Op, bound: BoundOps, tables: RopeTables, pool: ThreadPool, shadow: bool) -> None:
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


def _add_embedding(program: HostProgram, op: Op, bound: BoundOps) -> None:
    table, out = bound.weights.linears["embedding"], bound.buffers[op.writes[0]]
    assert isinstance(table, Int8Product)
    program.native.embedding(table.integers, table.columns, table.weight_scale, table.hot_index, table.hot_weight, out=out)


def _add_norm(program: HostProgram, op: Op, norm: Norm, bound: BoundOps) -> None:
    gain = bound.weights.gains[norm.gain.name]
    program.native.rms_norm(bound.buffers[op.reads[0]], gain, norm.eps, out=bound.buffers[op.writes[0]])


def _add_linear(program: HostProgram, op: Op, bound: BoundOps, pool: ThreadPool, shadow: bool) -> None:
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


def _product(op: Op, bound: BoundOps, rows: int) -> np.ndarray:
    """A buffer for the product of ``op``, of the width that it has here."""
    values: np.ndarray = bound.buffers[PRODUCT].reshape(-1)
    return values[: rows * op.linear.rows].reshape(rows, op.linear.rows)


def _add_append(program: HostProgram, op: Op, attention: Attention, bound: BoundOps, tables: RopeTables) -> None:
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
    )


def _add_attention(program: HostProgram, op: Op, attention: Attention, bound: BoundOps) -> None:
    pages = bound.pages
    assert pages is not None
    shape = (-1, attention.heads, attention.head_dim)
    q = bound.buffers[op.reads[0]][:, : attention.q_size].reshape(shape)
    out = bound.buffers[op.writes[0]].reshape(shape)
    scale = attention.head_dim**-0.5
    program.native.paged_attention(q, pages.k, pages.k_scale, pages.v, pages.v_scale, scale, out=out)
