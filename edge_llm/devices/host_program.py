"""Operations of the host as programs: fixed arrays, any rows.  What no native kernel does is a step of Python in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from edge_llm.devices.base import BoundArrays, Rows, RunRow, Stopped, WatchedOp, Watching
from edge_llm.devices.kv_pages import LayerPages
from edge_llm.kernels import LowRank, ThreadPool
from edge_llm.kernels.program import Program
from edge_llm.models.rope import RopeTables
from edge_llm.operations.base import Op
from edge_llm.operations.host_call import AnyRows, HostExperts
from edge_llm.schemes.base import Weight
from edge_llm.schemes.tables import Table
from edge_llm.weights.base import Turn

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
        run = partial(self.program.run, *arguments, patience=LOOK_SECONDS, seconds=seconds, adapters=rows.adapters)
        at = -1
        while (at := run(start=at + 1)) in self.waits:
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


@dataclass(frozen=True)
class _Call:
    """``op`` in the arrays of ``bound``, for ``program``: what operations call a `HostCall`."""

    program: HostProgram
    op: Op
    bound: BoundArrays
    tables: RopeTables
    pool: ThreadPool
    shadow: bool

    @property
    def native(self) -> Program:
        return self.program.native

    @property
    def buffers(self) -> Mapping[str, np.ndarray]:
        return self.bound.buffers

    @property
    def linears(self) -> Mapping[str, Weight]:
        return self.bound.weights.linears

    @property
    def experts(self) -> HostExperts | None:
        return self.bound.weights.experts

    @property
    def table(self) -> Table:
        table = self.linears["embedding"]
        assert isinstance(table, Table)
        return table

    @property
    def gains(self) -> Mapping[str, np.ndarray]:
        return self.bound.weights.gains

    @property
    def low_ranks(self) -> Mapping[str, LowRank]:
        return self.bound.adapted.low_ranks if self.bound.adapted else {}

    def scratch(self, use: str, rows: int, width: int) -> np.ndarray:
        assert self.bound.adapted is not None
        return self.bound.adapted.scratch.array(use, rows, width)

    @property
    def pages(self) -> LayerPages:
        assert self.bound.pages is not None
        return self.bound.pages

    @property
    def states(self) -> Mapping[str, np.ndarray]:
        return self.pages.fixed

    def add(self, step: Callable[[int, np.ndarray | None], None]) -> None:
        self.program.add(lambda rows, late: step(rows.count, late))

    def add_rows(self, step: Callable[[AnyRows], None]) -> None:
        self.program.add(lambda rows, late: step(rows))


def add_op(program: HostProgram, op: Op, bound: BoundArrays, tables: RopeTables, pool: ThreadPool, shadow: bool) -> None:
    """Add ``op`` in the arrays of ``bound``; without ``shadow`` the outliers are dropped."""
    op.of.add_call(_Call(program, op, bound, tables, pool, shadow))
