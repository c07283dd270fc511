"""A card that is watched: what every part of a model takes on the card, in copies, on the host and in waiting for the card."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_llm.ascend.devices.card.model import CardModel, _Flow
from edge_llm.ascend.npu.runtime import Completion, Graph, Mark, Runtime, Work
from edge_llm.devices.base import BESIDE_HOST, Chunk, Watch, WatchedOp
from edge_llm.models.layer import Decoder
from edge_llm.operations.base import Op
from edge_llm.schemes.base import BlockWeights

if TYPE_CHECKING:
    from torch import Tensor

CARD, COPY_IN, COPY_OUT = BESIDE_HOST
HOST, WAIT = "host", "wait"
WEIGHTS = "weights"
"""The part of what is loaded beside the computation."""


@dataclass
class _Given:
    """Work that was given to the card, and when its pieces began and ended there."""

    part: str
    after: _Given | None
    marks: tuple[Mark, Mark] | None = None
    """Once the work is done."""
    copies: list[tuple[str, Mark, Mark]] = field(default_factory=list)
    told: bool = False


@dataclass
class _Watched:
    """A completion that is timed, and tells what the card did before it."""

    given: _Given
    done: Completion
    runtime: WatchedRuntime

    def __call__(self) -> None:
        self.runtime.wait(self)


class WatchedRuntime:
    """``runtime`` for the model ``decoder``; ``watch`` is told what time each part took, once the host has waited.

    One thread gives work at a time; lanes that load wait beside it.
    """

    def __init__(self, runtime: Runtime, decoder: Decoder, watch: Watch) -> None:
        self.law, self.device, self.counters = runtime.law, runtime.device, runtime.counters
        self.emulated, self.software, self.attention_missing = runtime.emulated, runtime.software, runtime.attention_missing
        self._runtime, self._watch, self._decoder = runtime, watch, decoder
        self._running = threading.local()
        self._pending: list[_Given] = []
        self._lock = threading.Lock()
        self._part = ""
        self._thread = 0
        self._since = 0.0

    @property
    def capture_refusal(self) -> str:
        return self._runtime.capture_refusal

    @capture_refusal.setter
    def capture_refusal(self, reason: str) -> None:
        self._runtime.capture_refusal = reason

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What the host does inside the block is for the part ``name``, but for the parts inside."""
        before = self._switch(name)
        try:
            yield
        finally:
            self._switch(before)

    def memory(self) -> tuple[int, int]:
        return self._runtime.memory()

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        return self._runtime.pinned(shape, dtype)

    def enqueue(self, work: Work, after: Completion | None = None) -> Completion:
        given = _Given(self._part, _given(after))
        with self._lock:
            self._pending.append(given)
        return _Watched(given, self._runtime.enqueue(self._timed(work, given), _bare(after)), self)

    def load(self, work: Work, after: Completion | None = None) -> Completion:
        here = self._part and self._thread == threading.get_ident()
        given = _Given(self._part if here else WEIGHTS, _given(after))
        return _Watched(given, self._runtime.load(self._timed(work, given), _bare(after)), self)

    def copy_in(self, card: Tensor, host: Tensor) -> None:
        self._copy(COPY_IN, lambda: self._runtime.copy_in(card, host))

    def copy_out(self, host: Tensor, card: Tensor) -> None:
        self._copy(COPY_OUT, lambda: self._runtime.copy_out(host, card))

    def capture(self, work: Work) -> Graph:
        return self._runtime.capture(work)

    def mark(self) -> Mark:
        return self._runtime.mark()

    def wait(self, one: _Watched) -> None:
        """Wait for ``one``, and tell of it and of what was given before."""
        started = time.perf_counter()
        one.done()
        waited = time.perf_counter() - started
        if self._part and self._thread == threading.get_ident():  # else a lane waited that loads, and the host went on
            self._since += waited
            self._tell(self._part, WAIT, waited)
        for given in self._ended(one.given):
            self._tell_given(given)

    def _ended(self, given: _Given) -> list[_Given]:
        """``given`` and what was given before it."""
        with self._lock:
            if given not in self._pending:
                return [given]
            end = self._pending.index(given) + 1
            ended, self._pending[:end] = self._pending[:end], []
            return ended

    def _timed(self, work: Work, given: _Given) -> Work:
        def timed() -> None:
            self._running.given = given
            started = self._runtime.mark()
            try:
                work()
            finally:
                self._running.given = None
                given.marks = started, self._runtime.mark()

        return timed

    def _copy(self, kind: str, copy: Callable[[], None]) -> None:
        given: _Given | None = getattr(self._running, "given", None)
        started = self._runtime.mark()
        copy()
        if given is not None:
            given.copies.append((kind, started, self._runtime.mark()))

    def _switch(self, part: str) -> str:
        now, before = time.perf_counter(), self._part
        if before:
            self._tell(before, HOST, now - self._since)
        self._part, self._since, self._thread = part, now, threading.get_ident()
        return before

    def _tell_given(self, given: _Given) -> None:
        if given.told or given.marks is None:
            return
        given.told = True
        if given.after is not None:
            self._tell_given(given.after)
            given.after = None  # else every step would hold all before it
        started, ended = given.marks
        left = ended.seconds_since(started)
        for kind, begun, done in given.copies:
            seconds = done.seconds_since(begun)
            left -= seconds
            self._tell(given.part, kind, seconds)
        self._tell(given.part, CARD, max(0.0, left))

    def _tell(self, part: str, kind: str, seconds: float) -> None:
        if part:
            op = Op(kind, (), (), self._decoder.embedding)
            one = WatchedOp(part, op, BlockWeights({}, {}), None, slice(0, 1))
            self._watch((one,), np.empty(0, np.int32), np.array([seconds]))


def _given(after: Completion | None) -> _Given | None:
    return after.given if isinstance(after, _Watched) else None


def _bare(after: Completion | None) -> Completion | None:
    return after.done if isinstance(after, _Watched) else after


class WatchedModel(CardModel):
    """The same model; its ``runtime`` is told which part the host is at."""

    _runtime: WatchedRuntime

    def _begin(self, chunk: Chunk, flow: _Flow) -> None:
        with self._runtime.part("embedding"):
            super()._begin(chunk, flow)

    def _walk(self, blocks: range, chunk: Chunk) -> None:
        with self._runtime.part("layers"):
            super()._walk(blocks, chunk)

    def _layer_in_turn(self, layer: int, flow: _Flow) -> None:
        with self._runtime.part("layers"):
            super()._layer_in_turn(layer, flow)

    def _check_rows(self, flow: _Flow) -> None:
        with self._runtime.part("head"):
            super()._check_rows(flow)

    def _logits(self, wanted: np.ndarray, flow: _Flow) -> np.ndarray:
        with self._runtime.part("head"):
            return super()._logits(wanted, flow)

    def _states(self, wanted: np.ndarray, flow: _Flow) -> np.ndarray:
        with self._runtime.part("head"):
            return super()._states(wanted, flow)

    def _step(self, chunk: Chunk) -> None:
        with self._runtime.part("step"):
            super()._step(chunk)
