"""The INT8 runner: prompts as windows of static chunks on a task graph, decode as one step over paged INT8 keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from edge_llm import scheduler
from edge_llm.config import DEFAULT_CHUNK, ModelConfig, RuntimeConfig
from edge_llm.devices.base import Adaptable, Chunk, Device, Room, Watch
from edge_llm.errors import ContextOverflow
from edge_llm.kernels.activation import soft_cap
from edge_llm.kernels.pointwise import activate
from edge_llm.kv.memory import KVMemory
from edge_llm.kv.sequence import SequencePages
from edge_llm.kv.states import slots_for
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables
from edge_llm.progress import StageProgress, ignore
from edge_llm.runner.base import Cancel, Cancelled, Segment, Site
from edge_llm.runner.decode import decode_graph
from edge_llm.runner.inside import RunnerInside, look_at_pages, look_at_weights
from edge_llm.runner.numeric import numeric_errors
from edge_llm.runner.order import choose_policy
from edge_llm.runner.prefill import prefill_graph
from edge_llm.runner.rows import chunk_lengths, pack
from edge_llm.runner.windows import PromptWindows
from edge_llm.runner.work import StepMeter
from edge_llm.weights.adapters import Adapters
from edge_llm.weights.base import Weights

if TYPE_CHECKING:
    from edge_llm.kv.prefix_store import PrefixStore  # only servers keep pages, and bring OpenSSL for it

STEP_ROWS = 32
"""A step of at most so many rows, such as the next token of every answer, walks the layers in program order."""


class Int8Runner:
    """Runs one model on one device.  A sequence is a `SequencePages`; not thread-safe, the engine calls it in turn.

    ``identity`` stands for the model and its numbers: pages of other models are never taken for this one's.
    ``prefix_store`` keeps pages on disk; it must be of the same identity.  ``decoder`` is the model's description where some
    linears have another weight scheme than most.  ``watch`` sees every operation.  Sequences may have one of the ``adapters``,
    where the device's model is `Adaptable`.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        device: Device,
        runtime: RuntimeConfig,
        tables: RopeTables,
        identity: bytes = b"",
        prefix_store: PrefixStore | None = None,
        decoder: Decoder | None = None,
        watch: Watch | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        self.config = config
        self.context = runtime.context or config.context
        self._runtime = runtime
        self.pool = device.pool
        self._lengths = chunk_lengths(runtime.chunk or DEFAULT_CHUNK, self.context)
        self._window = runtime.window
        decoder = decoder or describe(config)
        states = slots_for(decoder.state_bytes, runtime.parallel) if runtime.kv_states is None else runtime.kv_states
        room = Room(runtime.kv_tokens or self.context, self.context, self._lengths, runtime.window, states)
        self._whole = decoder.is_encoder
        self.model = device.open(decoder, weights, tables, room, watch)
        """The model on its device."""
        if adapters is not None:
            assert isinstance(self.model, Adaptable), "planned for a device that takes adapters"
            self.model.adapt(adapters)
        self.memory = KVMemory(self.model.kv, identity, prefix_store, adapters.digests if adapters else ())
        lanes = dict.fromkeys(part.lane for parts in self.model.layer_parts for part in parts)
        self.policy = choose_policy(runtime.policy, list(lanes))
        """Order of the tasks of a window; it changes no result."""
        self.cost = scheduler.CostModel()
        """What tasks took so far, by kind and lane; the policy looks ahead with it."""
        self.on_trace: Callable[[scheduler.Trace], None] | None = None
        """Called with the trace of every graph that ran, to see where the time goes."""
        self._device = device
        watching = None if watch is not None else self.model.watching
        self._meter = StepMeter(watching, weights)
        self._prompt = PromptWindows(self._meter)
        self._looked_at = False
        self._clipped = 0
        """As of the last prompt behind a look: a card is asked in the thread that runs it, and only when somebody looks."""

    @property
    def site(self) -> Site:
        return Site.of(self._runtime, self._device)

    @property
    def clipped(self) -> int:
        return self.model.clipped

    @property
    def overflow(self) -> int | None:
        """Activation values that overflowed INT8 so far and were added back; None where nobody counts."""
        return self._device.overflow

    def prepare(self, progress: StageProgress = ignore) -> None:
        tasks = self.model.ahead()
        for done, task in enumerate(tasks):
            progress("graphs", done, len(tasks))
            task()
        if tasks:
            progress("graphs", len(tasks), len(tasks))

    def look(self) -> RunnerInside:
        self._looked_at = True
        pages, disk = look_at_pages(self.memory)
        weights = look_at_weights(self.model.weights)
        step = self._meter.look()
        return RunnerInside(self._prompt.look(), pages, disk, self.overflow, self._clipped, **weights, step=step)

    def open(self) -> SequencePages:
        return self.memory.open()

    def run(self, segments: Sequence[Segment[SequencePages]], *, cancel: Cancel | None = None) -> list[np.ndarray]:
        if self._meter.is_due(segments):
            with self._meter.step():
                return self._run(segments, cancel)
        return self._run(segments, cancel)

    def _run(self, segments: Sequence[Segment[SequencePages]], cancel: Cancel | None) -> list[np.ndarray]:
        if len(segments) == 1 and (logits := self._step_row(segments[0], cancel)) is not None:
            return [logits]
        starts = [segment.sequence.length for segment in segments]
        try:
            self._reserve(segments)
            chunks = list(pack(segments, self._lengths, self._window, whole=self._whole))
            windows = [chunks[first : first + self._window] for first in range(0, len(chunks), self._window)]
            outputs = [output for window in windows for output in self._run_window(window, segments, cancel)]
        except BaseException:
            for segment, start in zip(segments, starts, strict=True):
                segment.sequence.truncate(start)
            raise
        for segment in segments:
            segment.sequence.advance(len(segment.tokens))
        return self._dealt(segments, outputs)

    def forward(
        self, sequence: SequencePages, tokens: Sequence[int], *, wanted: int = 1, cancel: Cancel | None = None
    ) -> np.ndarray:
        return self.run([Segment(sequence, tokens, wanted)], cancel=cancel)[0]

    def run_first(self, layers: int, segments: Sequence[Segment[SequencePages]]) -> list[np.ndarray]:
        """As `run`, through the first ``layers`` layers and the head alone, which must all be resident: few rows of logits.

        Later layers get no keys and values of these tokens, so callers truncate the sequences behind it.
        """
        starts, head = [segment.sequence.length for segment in segments], len(self.model.layer_parts) + 1
        outputs: list[tuple[np.ndarray, np.ndarray]] = []
        try:
            self._reserve(segments)
            for chunk in pack(segments, self._lengths):
                with numeric_errors():
                    self.model.walk(range(layers + 1), chunk)()
                    self.model.walk(range(head, head + 1), chunk)()
                outputs.append(self._outputs(chunk))
        except BaseException:
            for segment, start in zip(segments, starts, strict=True):
                segment.sequence.truncate(start)
            raise
        for segment in segments:
            segment.sequence.advance(len(segment.tokens))
        return self._dealt(segments, outputs)

    def _step_row(self, segment: Segment[SequencePages], cancel: Cancel | None) -> np.ndarray | None:
        """The step of one token of one sequence as one call; None, with nothing done, where it is more than that."""
        run_row = self.model.step_row
        one = len(segment.tokens) == 1 and segment.wanted == 1 and not (segment.states or segment.sequence.adapter)
        if run_row is None or not one or self.on_trace is not None or segment.sequence.states is not None:
            return None
        sequence, start = segment.sequence, segment.sequence.length
        try:
            with numeric_errors():
                self._reserve((segment,))
                _look(cancel)
                logits = run_row(segment.tokens[0], start, sequence.table)
        except BaseException:
            sequence.truncate(start)
            raise
        sequence.length = start + 1
        return self._capped(logits)

    def _reserve(self, segments: Sequence[Segment[SequencePages]]) -> None:
        for segment in segments:
            end = segment.sequence.length + len(segment.tokens)
            if end > self.context:
                raise ContextOverflow(end, self.context)
            self.memory.reserve(segment.sequence, end)

    def _run_window(
        self, chunks: Sequence[Chunk], segments: Sequence[Segment[SequencePages]], cancel: Cancel | None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Compute a window of chunks of ``segments``: the logits and the states that are wanted of each."""
        with numeric_errors():
            if len(chunks) == 1 and chunks[0].rows.count <= STEP_ROWS:
                self._step(chunks[0], cancel)
            else:
                with self._meter.timed() as timed:
                    trace = self._execute(prefill_graph(chunks, self.model), cancel)
                    timed.output_seconds = self._head(chunks)
                self._prompt.add(segments, trace, sum(chunk.rows.count for chunk in chunks), timed)
                if self._looked_at:
                    self._looked_at, self._clipped = False, self.clipped
        return [self._outputs(chunk) for chunk in chunks]

    def _step(self, chunk: Chunk, cancel: Cancel | None) -> None:
        """A step of few rows, which needs a graph for its trace, or where reads of its weights are tasks of their own."""
        look = partial(_look, cancel)
        if self.on_trace is None and not self.model.weights.streamed:
            look()
            self.model.walk(range(len(self.model.layer_parts) + 2), chunk)()
            return
        if self.on_trace is None and self.model.step_streamed(chunk, look):
            return
        self._execute(decode_graph(chunk, self.model), cancel)

    def _outputs(self, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
        """Logits and states that are wanted of ``chunk``."""
        logits, states = self.model.outputs(chunk)
        return self._capped(logits), states

    def _capped(self, logits: np.ndarray) -> np.ndarray:
        """``logits`` [rows, V] within the model's cap, in place."""
        cap = self.model.decoder.cap
        return activate(logits, soft_cap(cap), self.pool, out=logits) if cap and len(logits) else logits

    def _head(self, chunks: Sequence[Chunk]) -> float:
        """What the rows of ``chunks`` are wanted for; the seconds of that."""
        started, head = time.perf_counter(), len(self.model.layer_parts) + 1
        for chunk in chunks:
            self.model.walk(range(head, head + 1), chunk)()
        return time.perf_counter() - started

    def _execute(self, graph: scheduler.TaskGraph, cancel: Cancel | None) -> scheduler.Trace:
        try:
            trace = scheduler.execute(graph, self.policy, cost=self.cost, cancel=cancel)
        except scheduler.Cancelled:
            raise Cancelled from None
        self.cost.learn(trace)
        if self.on_trace is not None:
            self.on_trace(trace)
        return trace

    def _dealt(
        self, segments: Sequence[Segment[SequencePages]], outputs: Sequence[tuple[np.ndarray, np.ndarray]]
    ) -> list[np.ndarray]:
        """What each segment wanted, out of the ``outputs`` of all chunks in order."""
        if len(segments) == len(outputs) == 1:
            return [outputs[0][segments[0].states]]
        logits, states = zip(*outputs, strict=True) if outputs else ((), ())
        rows = {False: _joined(logits, self.config.vocab_size), True: _joined(states, self.config.hidden_size)}
        given = {False: 0, True: 0}
        found: list[np.ndarray] = []
        for segment in segments:
            start = given[segment.states]
            given[segment.states] = end = start + segment.wanted
            found.append(rows[segment.states][start:end])
        return found


def _look(cancel: Cancel | None) -> None:
    if cancel is not None and cancel():
        raise Cancelled


def _joined(pieces: Sequence[np.ndarray], width: int) -> np.ndarray:
    """All rows of ``pieces``; a single piece, which may be a vocabulary wide, is not copied."""
    pieces = [piece for piece in pieces if len(piece)]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.empty((0, width), np.float32)
