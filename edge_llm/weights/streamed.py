"""Weights partly on flash: streamed layers take turns in a few buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from edge_llm.formats.block_reader import BlockReader, BlockReading
from edge_llm.formats.bundle import Bundle
from edge_llm.formats.direct import RangeFile, direct_buffers, range_reader
from edge_llm.formats.layout import DTYPES, BlockRange, group_units, layer_name, unit_of
from edge_llm.operations.host_call import HostExperts
from edge_llm.progress import CountProgress
from edge_llm.schemes import BlockWeights
from edge_llm.schemes.tables import Table
from edge_llm.weights.base import EMBEDDING, OUTPUT, FlashCounts
from edge_llm.weights.experts import StoredExperts
from edge_llm.weights.memory_plan import MemoryPlan
from edge_llm.weights.neurons import StoredNeurons
from edge_llm.weights.pools import Budget
from edge_llm.weights.resident import layer_weights, table_weights
from edge_llm.weights.ring import Ring
from edge_llm.weights.table import FlashTable
from edge_llm.weights.token_bytes import host_token
from edge_llm.weights.turns import LayerTurns, RingTurns

RESIDENT, LAYERS = "resident", "streamed layers"
"""Their shares of the budget; those of tables, experts and cold channels are named where these are read."""


class StreamedWeights:
    """The weights of ``bundle`` under ``plan``: resident blocks are read at once, the others by `wait`.

    The `slots` streamed layers that were requested last own the buffers, so callers request layers in the order of use.
    `request` and `wait` have one caller at a time each; any thread may call `use` meanwhile.  Layers that a card ``streams`` to
    itself may be resident here.  ``file`` replaces ``weights.bin``; without a ``budget`` all is within what the plan holds.
    Raises `StorageError` or `CorruptBundle`, as does `wait`.
    """

    sent_bytes = 0
    hosted: Mapping[int, int] = {}

    def __init__(
        self,
        bundle: Bundle,
        plan: MemoryPlan,
        progress: CountProgress | None = None,
        *,
        streams: tuple[int, ...] = (),
        file: RangeFile | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.streamed = tuple(sorted({*plan.streamed, *streams}))
        self.flash_tables = plan.flash_tables
        self.streamed_bytes = plan.streamed_bytes
        self.slots = plan.slots
        self.nbytes = plan.held_bytes
        self.token_bytes = host_token(bundle, plan.streamed_bytes)
        self.budget = budget or Budget(plan.held_bytes)
        """What of its memory each kind of block has."""
        self._bundle = bundle
        self._flash = reader = range_reader()
        self._reader = BlockReader(bundle, reader, file, columns=plan.neurons is None)
        tensors = self._read_resident(plan, progress)
        self.budget.take(RESIDENT, sum(array.nbytes for array in tensors.values()))
        self.embedding, output = table_weights(bundle, tensors)
        self.head = BlockWeights({"output": output}, bundle.decoder.norm.named(tensors["final_norm"]))
        self._tables: dict[str, FlashTable] = {}
        for name, resident in ((EMBEDDING, self.embedding), (OUTPUT, output)):
            if name == OUTPUT and bundle.decoder.tied and EMBEDDING in self._tables:
                self._tables[name] = self._tables[EMBEDDING]
            elif name in plan.flash_tables:
                tensor = bundle.blocks[name].tensors[0]
                self._tables[name] = FlashTable(bundle, tensor, resident, reader, self.budget, file)
        self._experts = None if plan.experts is None else StoredExperts(bundle, plan.experts, self._reader, self.budget)
        self._neurons = None
        if plan.neurons is not None:
            self._neurons = StoredNeurons(bundle, plan.neurons, tensors, reader, self._reader.file, self.budget)
        self._resident = {index: self._layer(tensors, index) for index in plan.resident}
        if self._experts is not None:
            self._experts.connect(self._resident)
        self._by_buffer = _LayersByBuffer(bundle, self._reader, self._layer_elsewhere(bundle))
        pool = self.budget.buffer_pool(LAYERS, plan.slots, plan.slot_bytes, direct_buffers)
        self._ring = Ring(pool, self._by_buffer.start, self._by_buffer.open)
        self._turns = LayerTurns(self._ring, plan.streamed, self._by_buffer.get)
        self._loaded_bytes = reader.read_bytes

    @property
    def read_bytes(self) -> int:
        return self._flash.read_bytes - self._loaded_bytes

    @property
    def experts(self) -> FlashCounts | None:
        found = self._experts or self._neurons
        return None if found is None else found.counts(self.read_bytes)

    def _layer(self, tensors: Mapping[str, np.ndarray], index: int) -> BlockWeights:
        """The resident layer ``index``: experts and columns of neurons may come from flash."""
        if self._neurons is not None:
            return self._neurons.open(index, tensors)
        return layer_weights(self._bundle, tensors, index, self._experts_of(index))

    def _layer_elsewhere(self, bundle: Bundle) -> OpenLayer:
        """Opens streamed layers; it does not hold these weights."""
        return partial(_opened, bundle) if self._neurons is None else self._neurons.open

    def _experts_of(self, index: int) -> HostExperts | None:
        return None if self._experts is None else self._experts.of_layer(index)

    def use(self, index: int) -> BlockWeights:
        return self._resident[index] if index in self._resident else self._ring.use(layer_name(index))

    def request(self, index: int) -> None:
        if index not in self._resident:
            self._ring.request(layer_name(index))

    def wait(self, index: int) -> None:
        if index not in self._resident:
            self._ring.wait(layer_name(index))

    def turns(self) -> RingTurns | None:
        return self._turns.begin() if self.streamed and len(self._ring) else None

    def host_part(self, index: int) -> BlockWeights:
        return self.use(index)

    def forget_layers(self) -> None:
        self._ring.release()
        self.budget.give_back(LAYERS)
        self._by_buffer.clear()

    def forget_tables(self) -> None:
        for table in self._tables.values():
            table.forget()

    def embedding_blocks(self) -> Iterator[tuple[slice, Table]]:
        if EMBEDDING in self._tables:
            yield from self._tables[EMBEDDING].blocks()
        else:
            yield slice(0, self.embedding.rows), self.embedding

    def embedding_rows(self, tokens: np.ndarray) -> tuple[Table, np.ndarray]:
        if EMBEDDING in self._tables:
            return self._tables[EMBEDDING].rows(tokens), np.arange(len(tokens))
        return self.embedding, tokens

    def head_blocks(self) -> Iterator[tuple[slice, BlockWeights]]:
        if OUTPUT not in self._tables:
            yield slice(0, self.head.linears["output"].rows), self.head
            return
        for rows, output in self._tables[OUTPUT].blocks():
            yield rows, BlockWeights({"output": output}, self.head.gains)

    def close(self) -> None:
        """Close the file; layers that are in memory stay valid."""
        self._reader.close()
        for table in self._tables.values():
            table.close()

    def _read_resident(self, plan: MemoryPlan, progress: CountProgress | None) -> dict[str, np.ndarray]:
        elsewhere = {layer_name(index) for index in range(len(self._bundle.decoder.layers)) if index not in plan.resident}
        blocks = [block for name, block in self._bundle.blocks.items() if name not in elsewhere]
        total = sum(block.nbytes for block in blocks)
        tensors: dict[str, np.ndarray] = {}
        done = 0
        for block in blocks:
            if block.name in plan.flash_tables:
                tensors |= self._read_beside_integers(block)
            elif plan.experts is not None and group_units(block):
                tensors |= {one.name: self._bundle.read(one.name) for one in block.tensors if unit_of(one.name) == block.name}
            else:
                tensors |= self._reader.read(block.name)
            done += block.nbytes
            if progress is not None:
                progress(done, total)
        return tensors

    def _read_beside_integers(self, block: BlockRange) -> dict[str, np.ndarray]:
        """The tensors of ``block``; its tiles or codes are an array of no panels."""
        integers, *others = block.tensors
        return {integers.name: np.empty((0, *integers.shape[1:]), DTYPES[integers.dtype])} | {
            tensor.name: self._bundle.read(tensor.name) for tensor in others
        }


OpenLayer = Callable[[int, Mapping[str, np.ndarray]], BlockWeights]
"""Makes weights of the number of a layer and its tensors."""


def _opened(bundle: Bundle, index: int, tensors: Mapping[str, np.ndarray]) -> BlockWeights:
    return layer_weights(bundle, tensors, index)


class _LayersByBuffer:
    """How the ring reads and opens streamed layers: once for each buffer that a layer comes into, then the same again."""

    def __init__(self, bundle: Bundle, reader: BlockReader, open: OpenLayer) -> None:
        self._open = open
        self._reader = reader
        self._numbers = {layer_name(index): index for index in range(len(bundle.decoder.layers))}
        # by the layer and the identity of the buffer
        self._readings: dict[tuple[str, int], BlockReading] = {}
        self._opened: dict[tuple[str, int], BlockWeights] = {}
        self._first: dict[str, BlockWeights] = {}  # by the layer: as it was opened first; it has what other buffers share

    def start(self, name: str, buffer: np.ndarray, urgent: bool) -> BlockReading:
        found = self._readings.get((name, id(buffer)))
        if found is None or not found.again():
            beside = next(iter(self._readings.values()), None)
            found = self._readings[name, id(buffer)] = self._reader.start(name, buffer, beside)
        return found

    def open(self, name: str, buffer: np.ndarray, tensors: Mapping[str, np.ndarray]) -> BlockWeights:
        if (name, id(buffer)) not in self._opened:
            opened = self._opened[name, id(buffer)] = self._open(self._numbers[name], tensors)
            first = self._first.setdefault(name, opened)
            for own, linear in opened.linears.items():
                linear.prepare(first.linears[own])  # a program is made when another layer may be in the buffer
        return self._opened[name, id(buffer)]

    def get(self, name: str, buffer: np.ndarray) -> tuple[BlockReading, BlockWeights] | None:
        """How layer ``name`` is read into ``buffer`` and what it is there; None before it was opened there."""
        weights = self._opened.get((name, id(buffer)))
        return None if weights is None else (self._readings[name, id(buffer)], weights)

    def clear(self) -> None:
        """Forget all layers, which hold the buffers."""
        self._readings.clear()
        self._opened.clear()
        self._first.clear()
