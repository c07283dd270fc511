"""A model on a device: built subgraphs, activations, keys and values, and the output matrix, wherever their arrays lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from edge_llm.devices.arrays import Arrays
from edge_llm.devices.base import (
    LATE,
    AdaptedLinears,
    BoundArrays,
    BoundParts,
    Buffers,
    Chunk,
    Completion,
    Fuse,
    Fused,
    Room,
    Rows,
    RunRow,
    RunSubgraph,
    Stopped,
    Task,
    Watching,
    static_length,
)
from edge_llm.devices.kv_pages import MakeArray
from edge_llm.kv.sequence import KVPages
from edge_llm.models.layer import Decoder
from edge_llm.operations.base import HIDDEN
from edge_llm.schemes.base import BlockWeights
from edge_llm.subgraphs.ops import Part, Subgraph, buffer_widths
from edge_llm.subgraphs.placement import Placement, embedding_part, final_norm_part, head_part, place, whole_layers
from edge_llm.subgraphs.shelf import Sharing, SubgraphShelf
from edge_llm.weights.adapters import Adapters, Scratch
from edge_llm.weights.base import EMBEDDING, OUTPUT, Turns, Weights


@dataclass
class _Slot:
    """What belongs to one chunk of a window: its activations, its rows as subgraphs find them, and what came out."""

    buffers: Buffers
    rows: Rows | None = None
    outputs: tuple[np.ndarray, np.ndarray] | None = None
    programs: dict[tuple[range, Turns | None, bool], Fused] = field(default_factory=dict)
    """Of runs of blocks in these buffers, by the turns of their streamed layers (None: all of them are resident), and whether
    rows have adapters."""


@dataclass(frozen=True)
class _Head:
    """The part that multiplies a run of the output matrix, and the widths of the buffers between hidden states and logits."""

    part: Part
    between: Mapping[str, int]


class PlacedModel:
    """The model ``decoder`` with ``weights``, cut as ``placement`` says, in ``arrays``; ``build`` makes its subgraphs.

    ``fuse`` wants arrays in the host's memory and one lane. It makes one call of a step's blocks that follow each other, and
    one of a few layers of a prompt; ``watching`` says who is told of these calls.
    """

    clipped = 0

    def __init__(
        self,
        decoder: Decoder,
        weights: Weights,
        placement: Placement,
        build: Callable[[Subgraph], RunSubgraph],
        arrays: Arrays,
        room: Room,
        fuse: Fuse | None = None,
        watching: Watching | None = None,
    ) -> None:
        self.decoder = decoder
        self.weights = weights
        self.watching = watching
        parts = place(decoder, placement.prefill)
        self.lane = placement.decode.lane
        self.take_turns = takes_turns(parts)
        self.layer_parts: Sequence[Sequence[Part]] = whole_layers(parts) if fuse and self.take_turns else parts
        self._pages = arrays.pages(decoder.layers, room)
        self.kv: KVPages = self._pages
        self._step_parts = place(decoder, placement.decode)
        self._head_block = len(self._step_parts) + 1
        self._cut = placement.decode
        self._widths = model_widths(decoder, placement)
        self._subgraphs = SubgraphShelf(build, self._widths)
        self._embedding = embedding_part(decoder, self._cut)
        self._final_norm = final_norm_part(decoder, self._cut)
        self._heads: dict[int, _Head] = {}
        self._arrays = arrays
        self._lengths = room.lengths
        self._fuse = fuse
        self._no_states = np.empty((0, decoder.hidden_size), np.float32)
        self._of_a_row = [sum(one.rows * one.columns for one in layer.linears) for layer in decoder.layers]
        self._of_a_key = [sum(2 * one.q_size for one in layer.attentions) for layer in decoder.layers]
        self._slots = [_Slot(self._new_buffers(self._widths))]
        self.step_row: RunRow | None = None
        self._adapters: Adapters | None = None
        self._scratch = Scratch()

    def adapt(self, adapters: Adapters) -> None:
        assert self._fuse is not None, "rows have adapters on the host alone"
        self._adapters = adapters

    @property
    def sharing(self) -> Sharing:
        return self._subgraphs.sharing

    def stretches(self, chunks: Sequence[Chunk]) -> Sequence[range]:
        if self._fuse is None:
            return [range(layer, layer + 1) for layer in range(len(self.layer_parts))]
        rows = max(chunk.rows.static for chunk in chunks)
        keys = max(chunk.rows.count + int(chunk.rows.position.sum(dtype=np.int64)) for chunk in chunks)
        work = [rows * row + keys * key for row, key in zip(self._of_a_row, self._of_a_key, strict=True)]
        return stretches(work, self.weights.streamed)

    def part(self, layers: range, part: Part, chunk: Chunk) -> Task:
        if self._fuse is not None:
            return self._together(range(layers.start + 1, layers.stop + 1), chunk)
        (layer,) = layers
        subgraph, slot = self._subgraphs.get(part, chunk.rows.static), self._slot(chunk)
        launch, use, pages = self._arrays.launch, self.weights.use, self._pages.layers[layer]

        def run() -> Completion | None:
            assert slot.rows is not None, "a layer before the embedding"
            with launch():
                return subgraph(use(layer), slot.buffers, slot.rows, pages)

        return run

    def ahead(self) -> Sequence[Callable[[], None]]:
        return ()

    def walk(self, blocks: range, chunk: Chunk) -> Callable[[], None]:
        fused = self._fused(blocks, chunk)
        if fused == blocks:  # on the host, where nothing is sent anywhere
            return self._together(fused, chunk)
        tasks = [self._alone(block, chunk) for block in range(blocks.start, fused.start)]
        if fused:
            tasks.append(self._together(fused, chunk))
        tasks += [self._alone(block, chunk) for block in range(fused.stop, blocks.stop)]
        return self._launched(*tasks)

    def step_streamed(self, chunk: Chunk, look: Callable[[], None]) -> bool:
        if self._fuse is None or (turns := self.weights.turns()) is None:
            return False
        fused = self._fused(range(self._head_block + 1), chunk)

        def stopped(layer: int) -> None:
            turns.give_back(layer)
            look()
            self.weights.wait(layer)
            turns.lend()

        look()
        for block in range(fused.start):
            self._alone(block, chunk)()
        turns.lend()
        self._run_fused(self._fuse, fused, chunk, self._slot(chunk), turns, stopped)
        turns.give_back(None)
        for block in range(fused.stop, self._head_block + 1):
            self._alone(block, chunk)()
        return True

    def outputs(self, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
        slot = self._slot(chunk)
        found, slot.outputs = slot.outputs, None
        assert found is not None, "outputs of a chunk that has not been through the head, or asked for twice"
        return found

    def _launched(self, *tasks: Callable[[], None]) -> Callable[[], None]:
        """``tasks`` one after the other, sent to the device in one go."""

        def run() -> None:
            with self._arrays.launch():
                for task in tasks:
                    task()

        return run

    def _fused(self, blocks: range, chunk: Chunk) -> range:
        """Those of ``blocks`` that are one call: layers, and what lies in memory: the embedding, a head that all rows want."""
        if self._fuse is None:
            return range(blocks.stop, blocks.stop)
        on_flash = self.weights.flash_tables
        first = max(blocks.start, 1 if EMBEDDING in on_flash else 0)
        end = min(blocks.stop, self._head_block + (OUTPUT not in on_flash and len(chunk.logits) == chunk.rows.count))
        return range(first, max(first, end))

    def _together(self, blocks: range, chunk: Chunk) -> Callable[[], None]:
        assert self._fuse is not None
        return partial(self._run_fused, self._fuse, blocks, chunk, self._slot(chunk))

    def _alone(self, block: int, chunk: Chunk) -> Callable[[], None]:
        slot = self._slot(chunk)
        if block == 0:
            return partial(self._embed, chunk, slot)
        if block == self._head_block:
            return partial(self._finish, chunk, slot)
        steps = tuple(self._subgraphs.get(part, chunk.rows.static) for part in self._step_parts[block - 1])
        return partial(self._run_layer, block - 1, steps, slot)

    def _embed(self, chunk: Chunk, slot: _Slot) -> None:
        slot.rows = self._arrays.rows(chunk.index, chunk.rows)
        table, places = self.weights.embedding_rows(slot.rows.tokens)
        run = self._subgraphs.get(self._embedding, chunk.rows.static)
        rows = slot.rows if places is slot.rows.tokens else replace(slot.rows, tokens=places)
        _wait(run(BlockWeights({"embedding": table}, {}), slot.buffers, rows, None))

    def _run_layer(self, layer: int, steps: Sequence[RunSubgraph], slot: _Slot) -> None:
        assert slot.rows is not None, "a layer before the embedding"
        weights, pages = self.weights.use(layer), self._pages.layers[layer]
        for step in steps:
            _wait(step(weights, slot.buffers, slot.rows, pages))

    def _run_fused(
        self, fuse: Fuse, blocks: range, chunk: Chunk, slot: _Slot, turns: Turns | None = None, stopped: Stopped | None = None
    ) -> None:
        """``blocks`` as one call."""
        if blocks.start == 0:
            slot.rows = self._arrays.rows(chunk.index, chunk.rows)
        assert slot.rows is not None, "a layer before the embedding"
        adapted = slot.rows.adapters is not None
        program = slot.programs.get((blocks, turns, adapted)) or self._new_program(fuse, blocks, slot, turns, adapted)
        if blocks.stop <= self._head_block:
            program(slot.rows, None, stopped)
            return
        logits = np.empty((chunk.rows.count, self.decoder.vocab_size), np.float32)
        program(slot.rows, logits, stopped)
        slot.outputs = logits, self._no_states

    def _new_program(self, fuse: Fuse, blocks: range, slot: _Slot, turns: Turns | None, adapted: bool) -> Fused:
        """A call of ``blocks`` in the buffers of ``slot``; it is kept unless their weights lie elsewhere in the next step."""
        program = fuse([self._bound(block, slot, turns, adapted) for block in blocks])
        if turns is not None or not any(layer + 1 in blocks for layer in self.weights.streamed):
            slot.programs[blocks, turns, adapted] = program
            if len(blocks) == self._head_block + 1 and not adapted:
                self.step_row = program.run_row
        return program

    def _bound(self, block: int, slot: _Slot, turns: Turns | None, adapted: bool) -> BoundParts:
        if block == 0:
            assert slot.rows is not None
            table, _ = self.weights.embedding_rows(slot.rows.tokens)
            return BoundParts((self._embedding,), BoundArrays(BlockWeights({"embedding": table}, {}), slot.buffers, None))
        if block == self._head_block:
            buffers = {**slot.buffers, self.decoder.output.writes: LATE}
            return BoundParts((self._head(self.decoder.vocab_size).part,), BoundArrays(self.weights.head, buffers, None))
        turn = turns.layers.get(block - 1) if turns is not None else None
        weights = self.weights.use(block - 1) if turn is None else turn.weights
        added = AdaptedLinears(self._adapters.layers[block - 1], self._scratch) if adapted and self._adapters else None
        arrays = BoundArrays(weights, slot.buffers, self._pages.layers[block - 1], added)
        return BoundParts(self._step_parts[block - 1], arrays, turn)

    def _finish(self, chunk: Chunk, slot: _Slot) -> None:
        """The head of ``chunk``: what its rows are wanted for."""
        slot.outputs = self._logits(chunk, slot), self._states(chunk, slot)

    def _logits(self, chunk: Chunk, slot: _Slot) -> np.ndarray:
        """Logits of the wanted rows: float32 [wanted, vocab]."""
        if not len(chunk.logits):
            return np.empty((0, self.decoder.vocab_size), np.float32)
        most = self._arrays.head_rows
        parts = [self._logits_of(chunk.logits[first : first + most], slot) for first in range(0, len(chunk.logits), most)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _logits_of(self, wanted: np.ndarray, slot: _Slot) -> np.ndarray:
        hidden, rows = self._wanted(wanted, slot)
        with self._arrays.workspace() as empty:
            logits = empty((len(hidden), self.decoder.vocab_size), np.float32)
            for columns, weights in self.weights.head_blocks():
                self._head_run(weights, rows, hidden, logits[:, columns], empty)
            return self._arrays.to_host(logits)

    def _head_run(self, weights: BlockWeights, rows: Rows, hidden: np.ndarray, logits: np.ndarray, empty: MakeArray) -> None:
        """A run of the output matrix: its part of the ``logits``."""
        head = self._head(logits.shape[1])
        out = logits if logits.flags.c_contiguous else empty(logits.shape, np.float32)
        buffers: Buffers = {HIDDEN: hidden, self.decoder.output.writes: out}
        for name, width in head.between.items():
            buffers[name] = empty((len(hidden), width), np.float32)
        _wait(self._subgraphs.get(head.part, rows.static)(weights, buffers, rows, None))
        if out is not logits:
            logits[:] = out

    def _states(self, chunk: Chunk, slot: _Slot) -> np.ndarray:
        """Normed last hidden states of the wanted rows: float32 [wanted, hidden_size]."""
        if not len(chunk.states):
            return np.empty((0, self.decoder.hidden_size), np.float32)
        hidden, rows = self._wanted(chunk.states, slot)
        with self._arrays.workspace() as empty:
            normed = empty(hidden.shape, np.float32)
            norm = self._subgraphs.get(self._final_norm, rows.static)
            _wait(norm(self.weights.head, {HIDDEN: hidden, self.decoder.norm.writes: normed}, rows, None))
            return self._arrays.to_host(normed)

    def _wanted(self, wanted: np.ndarray, slot: _Slot) -> tuple[np.ndarray, Rows]:
        """Hidden states float32 [wanted, hidden_size] of the rows ``wanted``, and what these rows are."""
        rows = slot.rows
        assert rows is not None
        if len(wanted) == rows.count:
            return slot.buffers[HIDDEN][: rows.count], rows
        picked = replace(
            rows,
            static=static_length(len(wanted), self._lengths),
            tokens=rows.tokens[wanted],
            sequence=rows.sequence[wanted],
            position=rows.position[wanted],
            slots=rows.slots[wanted],
            adapters=None,  # what is wanted of rows comes behind all layers
        )
        return slot.buffers[HIDDEN][wanted], picked

    def _head(self, rows: int) -> _Head:
        """What multiplies ``rows`` rows of the output matrix."""
        if rows not in self._heads:
            part = head_part(self.decoder, self._cut, rows)
            widths = buffer_widths((part,), self.decoder.hidden_size)
            ends = (HIDDEN, self.decoder.output.writes)
            self._heads[rows] = _Head(part, {name: width for name, width in widths.items() if name not in ends})
        return self._heads[rows]

    def _slot(self, chunk: Chunk) -> _Slot:
        while chunk.index >= len(self._slots):
            self._slots.append(_Slot(self._more_buffers()))
        return self._slots[chunk.index]

    def _more_buffers(self) -> Buffers:
        if not self.take_turns:
            return self._new_buffers(self._widths)
        first = self._slots[0].buffers
        return {**first, **self._new_buffers({HIDDEN: self.decoder.hidden_size})}

    def _new_buffers(self, widths: Mapping[str, int]) -> Buffers:
        return self._arrays.buffers(self._lengths[-1], widths)


def _wait(completion: Completion | None) -> None:
    """Wait for what a subgraph sent to the device: the next step reads it."""
    if completion is not None:
        completion()


def takes_turns(layer_parts: Sequence[Sequence[Part]]) -> bool:
    """Whether one lane does everything: then the chunks of a window could not overlap anyway."""
    return len({part.lane for parts in layer_parts for part in parts}) == 1


STRETCH = 1 << 35
"""Multiplications, attention's too, that one task of several layers does at most: some 50 ms of two cores, for tasks cannot be
cancelled, and each leaves the cores to Python for 0.1 ms."""


def stretches(work: Sequence[int], streamed: Sequence[int]) -> list[range]:
    """Layers of so much ``work`` each in runs of at most `STRETCH`; a ``streamed`` or a larger layer is alone."""
    runs: list[range] = []
    done = STRETCH
    for layer, own in enumerate(work):
        apart = layer in streamed or layer - 1 in streamed
        if apart or done + own > STRETCH:
            runs.append(range(layer, layer + 1))
            done = own
        else:
            runs[-1] = range(runs[-1].start, layer + 1)
            done += own
    return runs


def model_widths(decoder: Decoder, placement: Placement) -> dict[str, int]:
    """Values per row of every float buffer that the layers, and a norm before the head, work in, in either phase."""
    cuts = dict.fromkeys((placement.prefill, placement.decode))
    every = dict.fromkeys(part for cut in cuts for parts in place(decoder, cut) for part in parts)
    alone = () if decoder.norm.fits_linears else (final_norm_part(decoder, placement.decode),)
    return buffer_widths((*every, *alone), decoder.hidden_size)


def activation_bytes(decoder: Decoder, placement: Placement, rows: int, window: int) -> int:
    """Memory of the float buffers of ``window`` chunks of ``rows`` tokens."""
    widths = model_widths(decoder, placement)
    whole = sum(widths.values())
    others = widths[HIDDEN] if takes_turns(place(decoder, placement.prefill)) else whole
    return rows * 4 * (whole + (window - 1) * others)
