"""A model that lies on an Ascend card as a whole: prompts go through it operator by operator, a step is one replayed graph.

What a step reads from the host is one copy, what it gives is another, and the host waits once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_llm.ascend.devices.card.inputs import Inputs
from edge_llm.ascend.devices.card.key_forms import fill_rows
from edge_llm.ascend.devices.card.keys import CardKeys
from edge_llm.ascend.devices.card.layers import Clipped, Layers, Tokens, settled
from edge_llm.ascend.devices.card.linears import NpuBlock
from edge_llm.ascend.devices.card.told_lengths import check_told
from edge_llm.ascend.devices.card.whole import WholeWeights
from edge_llm.ascend.npu.runtime import GRAPH_ROWS, CaptureRefused, Completion, Graph, Runtime, run
from edge_llm.devices.base import Chunk, Room, Rows, RunRow, RunSubgraph, Task, Watching
from edge_llm.errors import NumericError
from edge_llm.kv.pages import pages_for
from edge_llm.kv.sequence import KVPages
from edge_llm.models.layer import Decoder
from edge_llm.operations.base import HIDDEN
from edge_llm.schemes.base import BlockWeights
from edge_llm.subgraphs.ops import CARD_LANE, Part
from edge_llm.subgraphs.placement import CARD, place
from edge_llm.subgraphs.shelf import Sharing
from edge_llm.weights.base import Weights

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("edge_llm.devices")
HEAD_ROWS = GRAPH_ROWS[-1]
"""Rows whose logits are computed at once."""
LARGEST = 65504
"""Of float16.  Where a chip saturates, what was larger is this, and no result shows an infinity or what is no number."""
TOLD = 16
"""Float16 numbers of a step in front of its logits, which are all what `_trouble` says: 32 bytes, as the chip likes them."""


@dataclass
class _Flow:
    """A chunk on its way through the layers."""

    inputs: Inputs
    layers: Layers
    """That count what they cut off, or do not."""
    hidden: Any = None
    """The residual stream on the card, once work has made it; one array behind the last layer."""
    tokens: Tokens | None = None
    """Once work has made them."""
    last: Completion | None = None
    """Of the work that was given last."""
    outputs: tuple[np.ndarray, np.ndarray] | None = None


@dataclass
class _Step:
    """The graph of steps of some rows, and what they read and give."""

    inputs: Inputs
    results: Tensor
    """Pinned float16 [`TOLD` + rows * vocabulary]: what `_trouble` says, then logits."""
    graph: Graph | None = None
    made: Any = None
    """The same on the card."""


class CardModel:
    """``decoder`` with ``weights`` on the card of ``runtime``; ``embed`` writes the embeddings of rows, on the host."""

    def __init__(
        self,
        decoder: Decoder,
        weights: WholeWeights,
        layers: Layers,
        embed: RunSubgraph,
        runtime: Runtime,
        room: Room,
    ) -> None:
        import torch

        self.decoder = decoder
        self.weights: Weights = weights
        self._whole = weights
        self.layer_parts: Sequence[Sequence[Part]] = place(decoder, CARD)
        self.lane = CARD_LANE
        self.take_turns = True
        self._torch = torch
        self._layers = layers
        self._embed = embed
        self._runtime = runtime
        self._may_record = layers.calls.law.captures and layers.keys.records
        self.keys = CardKeys(decoder.attentions, room.tokens, layers.keys, runtime, layers.calls)
        self.kv: KVPages = self.keys
        self.step_row: RunRow | None = None
        self.watching: Watching | None = None
        self._blocks = pages_for(room.positions, self.keys.page_tokens)
        self._longest = room.lengths[-1]
        self._flows: dict[int, _Flow] = {}
        self._steps: dict[int, _Step] = {}
        self._steps_taken = 0
        self._trouble = runtime.pinned((1,), torch.float32)
        self._head_rows = runtime.pinned((HEAD_ROWS, decoder.vocab_size), torch.float16)
        run(runtime, self._make_counter)
        if self._records and layers.keys.host_lengths:
            check_told(runtime, layers.calls)

    @property
    def clipped(self) -> int:
        host = self._runtime.pinned((1,), self._torch.int64)
        run(self._runtime, lambda: self._runtime.copy_out(host, self._clipped.total))
        return self._clipped.in_all(int(host[0]))

    @property
    def sharing(self) -> Sharing:
        return Sharing(built=len(self._steps), uses=self._steps_taken, saved_bytes=0)

    def ahead(self) -> Sequence[Callable[[], None]]:
        if not self._records or self.weights.streamed:
            return ()
        return [partial(self._make_step, rows) for rows in GRAPH_ROWS]

    def stretches(self, chunks: Sequence[Chunk]) -> Sequence[range]:
        return [range(layer, layer + 1) for layer in range(len(self.decoder.layers))]

    def part(self, layers: range, part: Part, chunk: Chunk) -> Task:
        return partial(self._layer_in_turn, layers[0], self._flow(chunk))

    def walk(self, blocks: range, chunk: Chunk) -> Callable[[], None]:
        if len(blocks) == len(self.decoder.layers) + 2 and not len(chunk.states) and chunk.rows.count <= GRAPH_ROWS[-1]:
            return partial(self._step, chunk)
        return partial(self._walk, blocks, chunk)

    def step_streamed(self, chunk: Chunk, look: Callable[[], None]) -> bool:
        return False  # copies to a card are tasks

    def outputs(self, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
        flow = self._flow(chunk)
        found, flow.outputs = flow.outputs, None
        assert found is not None, "outputs of a chunk that has not been through the head, or asked for twice"
        return found

    # ---- operator by operator ----

    def _walk(self, blocks: range, chunk: Chunk) -> None:
        flow = self._flow(chunk)
        for block in blocks:
            if block == 0:
                self._begin(chunk, flow)
            elif block <= len(self.decoder.layers):
                self._give_layer(block - 1, flow)
            else:
                self._check_rows(flow)
                flow.outputs = self._logits(chunk.logits, flow), self._states(chunk.states, flow)
        if flow.last is not None:
            flow.last()

    def _begin(self, chunk: Chunk, flow: _Flow) -> None:
        """Embed the rows and copy what the layers need to know of them."""
        rows, inputs = chunk.rows, flow.inputs
        self._fill(rows, inputs)
        _in_range(inputs.host("hidden")[: rows.count])
        flow.layers = self._counting if self._clipped.looks_at(rows.count) else self._layers
        attend = self._layers.keys.chunk(rows, inputs)
        slots = self._layers.keys.slots(inputs, rows.count)
        # beside what the card computes for other chunks, but not behind layers that are streamed to it
        copied = None if self.weights.streamed else self._runtime.load(inputs.copy, after=flow.last)

        def work() -> None:
            if copied is None:
                inputs.copy()
            flow.hidden = inputs.card("hidden")[: rows.count]
            angles = self._layers.angles(inputs.card("positions")[: rows.count])
            flow.tokens = Tokens(angles, slots, attend)

        flow.last = self._runtime.enqueue(work, after=copied)

    def _layer_in_turn(self, layer: int, flow: _Flow) -> None:
        """Give a layer to the card, and wait for the one before: so one is computed while the next is given."""
        before = flow.last
        self._give_layer(layer, flow)
        if before is not None:
            before()

    def _give_layer(self, layer: int, flow: _Flow) -> None:
        block, keys, description = self.weights.use(layer), self.keys.layers[layer], self.decoder.layers[layer]
        assert isinstance(block, NpuBlock)
        traffic = block.traffic

        def work() -> None:
            assert flow.tokens is not None, "a layer before the embedding"
            hidden = flow.layers.run(description, traffic.layer, flow.hidden, keys, flow.tokens)
            flow.hidden = settled(hidden) if layer == len(self.decoder.layers) - 1 else hidden

        traffic.used = flow.last = self._runtime.enqueue(work, after=traffic.loaded)

    def _check_rows(self, flow: _Flow) -> None:
        """Raises `NumericError` where the rows are not numbers any more, wanted or not: products of INT8 do not show it."""
        run(self._runtime, lambda: self._runtime.copy_out(self._trouble, _trouble(flow.hidden).reshape(1)))
        _in_range(self._trouble.numpy())

    def _logits(self, wanted: np.ndarray, flow: _Flow) -> np.ndarray:
        """float32 [wanted, vocabulary]."""
        logits = np.empty((len(wanted), self.decoder.vocab_size), np.float32)
        for first in range(0, len(wanted), HEAD_ROWS):
            some = self._indices(wanted[first : first + HEAD_ROWS])

            def work(some: Any = some) -> None:
                made = self._head(flow.hidden.index_select(0, some.to(self._runtime.device)))
                self._runtime.copy_out(self._head_rows[: len(some)], made)

            run(self._runtime, work)
            logits[first : first + len(some)] = self._head_rows.numpy()[: len(some)]
        return _in_range(logits)

    def _states(self, wanted: np.ndarray, flow: _Flow) -> np.ndarray:
        """Normed last hidden states: float32 [wanted, hidden size]."""
        if not len(wanted):
            return np.empty((0, self.decoder.hidden_size), np.float32)
        some = self._indices(wanted)
        host = self._runtime.pinned((len(wanted), self.decoder.hidden_size), self._torch.float32)

        def work() -> None:
            rows = flow.hidden.index_select(0, some.to(self._runtime.device))
            self._runtime.copy_out(host, self._layers.norm(self.decoder.norm, self._whole.gains, rows))

        run(self._runtime, work)
        return _in_range(host.numpy())

    def _head(self, hidden: Any) -> Any:
        """float16 [rows, vocabulary] of hidden float32 [rows, hidden size]."""
        return self._layers.product(self._whole.output, self._layers.norm(self.decoder.norm, self._whole.gains, hidden))

    # ---- as one graph ----

    def _step(self, chunk: Chunk) -> None:
        count, wanted = chunk.rows.count, len(chunk.logits)
        given = max(1, wanted)  # trouble of any row shows in any
        self._steps_taken += 1
        step = self._step_of(next(rows for rows in GRAPH_ROWS if rows >= count))
        self._fill_step(chunk, step.inputs)
        lengths = step.inputs.host("lengths").tolist()
        flow = self._flow(chunk)
        end = TOLD + given * self.decoder.vocab_size

        def work() -> None:
            step.inputs.copy()
            if step.graph is None:
                self._compute_step(step, lengths)
            else:
                self._replay(step.graph, lengths)
            self._runtime.copy_out(step.results[:end], step.made[:end])

        flow.last = self._runtime.enqueue(work)
        flow.last()
        found = _in_range(step.results.numpy()[:end].astype(np.float32))
        logits = found[TOLD:].reshape(given, -1)
        flow.outputs = logits[:wanted], np.empty((0, self.decoder.hidden_size), np.float32)

    def _replay(self, graph: Graph, lengths: Sequence[int]) -> None:
        if self._layers.keys.host_lengths:
            graph.update(self._torch.from_numpy(np.array(lengths, np.int32)))
        graph.replay()

    def _step_of(self, rows: int) -> _Step:
        if rows not in self._steps:
            self._steps[rows] = self._new_step(rows)
        return self._steps[rows]

    def _make_step(self, rows: int) -> None:
        self._step_of(rows)

    def _new_step(self, rows: int) -> _Step:
        """The step of ``rows`` rows; where the chip records graphs, it is done once on spare memory and recorded.

        A graph whose lengths are told is recorded with the longest, for which its workspaces are then large enough.
        """
        inputs = Inputs(rows, self.decoder.hidden_size, self._blocks, self._runtime)
        results = self._runtime.pinned((TOLD + rows * self.decoder.vocab_size,), self._torch.float16)
        step = _Step(inputs, results)
        self._fill_up(inputs, 0)
        if not self._records:
            return step
        if self._layers.keys.host_lengths:
            inputs.host("lengths")[:] = self._blocks * self.keys.page_tokens
        lengths = inputs.host("lengths").tolist()

        def prepare() -> None:
            inputs.copy()
            self._compute_step(step, lengths)

        run(self._runtime, prepare)
        try:
            step.graph = self._runtime.capture(lambda: self._compute_step(step, lengths))
        except CaptureRefused as error:
            log.warning("%s; steps are given to it operator by operator, which takes longer", error)
        return step

    @property
    def _records(self) -> bool:
        return self._may_record and not self._runtime.capture_refusal

    def _compute_step(self, step: _Step, lengths: Sequence[int]) -> None:
        inputs = step.inputs
        attend = self._layers.keys.step(inputs, lengths)
        slots = self._layers.keys.slots(inputs, len(inputs.host("slots")))
        tokens = Tokens(self._layers.angles(inputs.card("positions")), slots, attend)
        hidden = inputs.card("hidden")
        for index, layer in enumerate(self.decoder.layers):
            block = self.weights.use(index)
            assert isinstance(block, NpuBlock)
            hidden = self._layers.run(layer, block.traffic.layer, hidden, self.keys.layers[index], tokens)
        hidden = settled(hidden)
        logits = self._head(hidden.index_select(0, inputs.card("wanted")))
        told = _trouble(hidden).to(self._torch.float16).expand(TOLD)
        step.made = self._torch.cat((told, logits.reshape(-1)))

    def _fill_step(self, chunk: Chunk, inputs: Inputs) -> None:
        rows, wanted = chunk.rows, chunk.logits
        self._fill(rows, inputs)
        _in_range(inputs.host("hidden")[: rows.count])
        inputs.host("wanted")[: len(wanted)] = wanted
        inputs.host("wanted")[len(wanted) :] = 0
        fill_rows(rows, inputs)
        self._fill_up(inputs, rows.count)

    def _fill(self, rows: Rows, inputs: Inputs) -> None:
        """Embeddings, positions and slots of ``rows``."""
        table, places = self.weights.embedding_rows(rows.tokens)
        looked_up = replace(rows, tokens=places)
        self._embed(BlockWeights({"embedding": table}, {}), {HIDDEN: inputs.host("hidden")}, looked_up, None)
        inputs.host("positions")[: rows.count] = rows.position
        inputs.host("slots")[: rows.count] = rows.slots

    def _fill_up(self, inputs: Inputs, count: int) -> None:
        """The rows from ``count`` on are zeros, and read and write spare memory."""
        inputs.host("hidden")[count:] = 0
        inputs.host("positions")[count:] = 0
        inputs.host("slots")[count:] = self.keys.spare_slot
        inputs.host("lengths")[count:] = 1
        inputs.host("table")[count:] = self.keys.count

    # ----

    def _flow(self, chunk: Chunk) -> _Flow:
        flow = self._flows.get(chunk.index)
        if flow is None:
            inputs = Inputs(self._longest, self.decoder.hidden_size, self._blocks, self._runtime)
            flow = self._flows[chunk.index] = _Flow(inputs, self._layers)
        return flow

    def _indices(self, rows: np.ndarray) -> Any:
        """Numbers of ``rows`` as the card takes them, still on the host."""
        return self._torch.from_numpy(rows.astype(np.int32))

    def _make_counter(self) -> None:
        self._clipped = Clipped(self._torch.zeros(1, dtype=self._torch.int64).to(self._runtime.device))
        look = self._clipped.look if self._layers.calls.law.saturates else self._layers.look
        self._counting = replace(self._layers, count=self._clipped.add, look=look)


def _trouble(hidden: Tensor) -> Tensor:
    """The largest of float32 [rows, hidden size], whatever its sign; not a number where one of them is none."""
    return hidden.abs().max()


def _in_range(values: np.ndarray) -> np.ndarray:
    if not (np.abs(values) < LARGEST).all():
        raise NumericError("numbers of the card are not finite: the model's activations left the range of float16")
    return values
