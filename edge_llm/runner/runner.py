"""The INT8 runner: prompts as windows of static chunks on a task graph, decode as one step over paged INT8 keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

import scheduler
from edge_llm.config import ModelConfig, RuntimeConfig
from edge_llm.devices.base import Buffers, Device, Rows
from edge_llm.errors import ContextOverflow, NumericError
from edge_llm.kv.memory import KVMemory
from edge_llm.kv.prefix import PrefixIndex
from edge_llm.kv.store import KVStore, SequencePages
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables
from edge_llm.runner.base import Cancel, Cancelled, Segment
from edge_llm.runner.decode import decode_graph
from edge_llm.runner.order import choose_policy
from edge_llm.runner.prefill import Chunk, prefill_graph, take_turns
from edge_llm.runner.rows import ladder, pack, static_length
from edge_llm.subgraphs.build import SubgraphShelf
from edge_llm.weights.base import Weights

if TYPE_CHECKING:
    from edge_llm.kv.prefix_store import PrefixStore  # only servers keep pages, and bring OpenSSL for it

STEP_ROWS = 32
"""A step of at most so many rows, such as the next token of every answer, walks the layers in program order."""


@dataclass(frozen=True)
class _Wanted:
    """What the wanted rows of a step's segments gave, chunk by chunk."""

    of_states: Sequence[bool]
    """Which segments want states, not logits."""
    logits: list[np.ndarray] = field(default_factory=list)
    """float32 [rows, vocab] each."""
    states: list[np.ndarray] = field(default_factory=list)
    """float32 [rows, hidden_size] each."""

    def split(self, rows: Rows, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the rows ``wanted`` of a chunk need states, and which logits."""
        if not any(self.of_states):
            return wanted[:0], wanted
        chosen = np.asarray(self.of_states)[rows.sequence[wanted]]
        return wanted[chosen], wanted[~chosen]


def _joined(pieces: Sequence[np.ndarray], width: int) -> np.ndarray:
    """All rows of ``pieces``; a single piece, which may be a vocabulary wide, is not copied."""
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.empty((0, width), np.float32)


class Int8Runner:
    """Runs one model on one device.  A sequence is a `SequencePages`; not thread-safe, the engine calls it in turn.

    ``identity`` stands for the model and its numbers: pages of other models are never taken for this one's.
    ``prefix_store`` keeps pages on disk; it must be of the same identity.  ``decoder`` is the model's description where some
    linears have another weight scheme than most.
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
    ) -> None:
        self.config = config
        decoder = decoder or describe(config)
        self.context = runtime.context or config.context
        self.weights = device.weights(weights, len(decoder.layers))
        self.kv = KVStore(decoder.attentions, runtime.kv_tokens or self.context)
        self.memory = KVMemory(self.kv, PrefixIndex(self.kv.pages, identity, self.kv.pages.pages), prefix_store)
        self.subgraphs = SubgraphShelf(device, decoder, tables)
        self._device = device
        self._lengths = ladder(min(runtime.chunk, max(8, self.context)))
        self._window = runtime.window
        self.policy = choose_policy(runtime.policy, device.lanes)
        """Order of the tasks of a window; it changes no result."""
        self._buffers = [device.buffers(self.subgraphs.widths, self._lengths[-1])]
        self.cost = scheduler.CostModel()
        """What tasks took so far, by kind and lane; the policy looks ahead with it."""
        self.watch: Callable[[scheduler.Trace], None] | None = None
        """Told of every graph that ran, to see where the time goes."""

    def open(self) -> SequencePages:
        return self.kv.open()

    def run(self, segments: Sequence[Segment[SequencePages]], *, cancel: Cancel | None = None) -> list[np.ndarray]:
        wanted = self._run(segments, cancel)
        rows = {False: _joined(wanted.logits, self.config.vocab_size), True: _joined(wanted.states, self.config.hidden_size)}
        given = {False: 0, True: 0}
        found: list[np.ndarray] = []
        for segment in segments:
            start = given[segment.states]
            given[segment.states] = end = start + segment.wanted
            found.append(rows[segment.states][start:end])
        return found

    def forward(
        self, sequence: SequencePages, tokens: Sequence[int], *, wanted: int = 1, cancel: Cancel | None = None
    ) -> np.ndarray:
        return self.run([Segment(sequence, tokens, wanted)], cancel=cancel)[0]

    def _run(self, segments: Sequence[Segment[SequencePages]], cancel: Cancel | None) -> _Wanted:
        """Compute all segments window by window; what their wanted rows gave."""
        starts = [segment.sequence.length for segment in segments]
        found = _Wanted([segment.states for segment in segments])
        try:
            self._reserve(segments)
            chunks = list(pack(segments, self._lengths))
            for first in range(0, len(chunks), self._window):
                self._run_window(chunks[first : first + self._window], found, cancel)
        except BaseException:
            for segment, start in zip(segments, starts, strict=True):
                segment.sequence.truncate(start)
            raise
        for segment in segments:
            segment.sequence.length += len(segment.tokens)
        return found

    def _reserve(self, segments: Sequence[Segment[SequencePages]]) -> None:
        for segment in segments:
            end = segment.sequence.length + len(segment.tokens)
            if end > self.context:
                raise ContextOverflow(end, self.context)
            self.memory.reserve(segment.sequence, end)

    def _run_window(self, window: Sequence[tuple[Rows, np.ndarray]], found: _Wanted, cancel: Cancel | None) -> None:
        """Compute a window of chunks, each with the rows that are wanted of it, and add what they give to ``found``."""
        chunks = [self._chunk(slot, rows) for slot, (rows, _) in enumerate(window)]
        if len(chunks) == 1 and chunks[0].rows.count <= STEP_ROWS:
            graph = decode_graph(chunks[0], self.weights, self.kv.layers, self.subgraphs, self._device)
        else:
            graph = prefill_graph(chunks, self.weights, self.kv.layers, self.subgraphs, self._device)
        with _numeric_errors():
            self._execute(graph, cancel)
            for chunk, (rows, wanted) in zip(chunks, window, strict=True):
                of_states, of_logits = found.split(rows, wanted)
                if len(of_logits):
                    found.logits.append(self._head(chunk, of_logits))
                if len(of_states):
                    found.states.append(self._normed(chunk, of_states))

    def _execute(self, graph: scheduler.TaskGraph, cancel: Cancel | None) -> None:
        try:
            trace = scheduler.execute(graph, self.policy, cost=self.cost, cancel=cancel)
        except scheduler.Cancelled:
            raise Cancelled from None
        self.cost.learn(trace)
        if self.watch is not None:
            self.watch(trace)

    def _chunk(self, slot: int, rows: Rows) -> Chunk:
        """``rows`` in the activations of window slot ``slot``."""
        while slot >= len(self._buffers):
            self._buffers.append(self._more_buffers())
        return Chunk(rows, self._buffers[slot])

    def _more_buffers(self) -> Buffers:
        if not take_turns(self._device):
            return self._device.buffers(self.subgraphs.widths, self._lengths[-1])
        first = self._buffers[0]
        return {**first, "hidden": np.empty_like(first["hidden"])}

    def _head(self, chunk: Chunk, wanted: np.ndarray) -> np.ndarray:
        """Logits of the rows ``wanted``: float32 [wanted, vocab]."""
        hidden, rows = self._wanted_rows(chunk, wanted)
        logits = np.empty((len(hidden), self.config.vocab_size), np.float32)
        head = self.subgraphs.get(self.subgraphs.head, rows.static)
        for columns, weights in self.weights.head_blocks():
            part = logits[:, columns]
            out = part if part.flags.c_contiguous else np.empty_like(part, order="C")
            head(weights, {"hidden": hidden, "logits": out}, rows, None)
            if out is not part:
                part[:] = out
        return logits

    def _normed(self, chunk: Chunk, wanted: np.ndarray) -> np.ndarray:
        """Normed last hidden states of the rows ``wanted``: float32 [wanted, hidden_size]."""
        hidden, rows = self._wanted_rows(chunk, wanted)
        normed = np.empty_like(hidden)
        norm = self.subgraphs.get(self.subgraphs.final_norm, rows.static)
        norm(self.weights.head, {"hidden": hidden, "normed": normed}, rows, None)
        return normed

    def _wanted_rows(self, chunk: Chunk, wanted: np.ndarray) -> tuple[np.ndarray, Rows]:
        """Hidden states float32 [wanted, hidden_size] of the rows ``wanted`` of ``chunk``, and what these rows are."""
        rows = chunk.rows
        picked = replace(
            rows,
            static=static_length(len(wanted), self._lengths),
            tokens=rows.tokens[wanted],
            sequence=rows.sequence[wanted],
            position=rows.position[wanted],
            slots=rows.slots[wanted],
        )
        return chunk.buffers["hidden"][wanted], picked


class _numeric_errors:  # noqa: N801 - reads as a block
    """Turns what kernels say about non-finite activations into the tree's `NumericError`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        cause = error.__cause__ if isinstance(error, scheduler.TaskFailed) else error
        if isinstance(cause, ValueError) and "non-finite" in str(cause):
            raise NumericError(f"{cause}: the model's weights or activations left the range of float32") from error
        if isinstance(error, scheduler.TaskFailed) and cause is not None:
            raise cause
