"""The experts of a model in a cache: those that a step lacks are read while it computes with the others.

What the next layer's router says when it is asked early is read ahead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edge_llm.formats.direct import direct_buffers
from edge_llm.formats.layout import group_units, layer_name
from edge_llm.operations.arithmetic import same_bits_by
from edge_llm.operations.early_router import GUESSED_ROWS, EarlyRouter, early_router, mixture_of
from edge_llm.operations.experts import NAME
from edge_llm.schemes.base import BlockWeights, Weight
from edge_llm.weights.base import ExpertCounts
from edge_llm.weights.cache import BlockCache
from edge_llm.weights.policies import DEFAULT, Key, Slots, policy_of
from edge_llm.weights.resident import open_linear
from edge_llm.weights.store import BlockStore

if TYPE_CHECKING:
    from edge_llm.formats.block_reader import BlockReader, BlockReading
    from edge_llm.formats.bundle import Bundle
    from edge_llm.kernels import ThreadPool
    from edge_llm.weights.memory_plan import ExpertSlots
    from edge_llm.weights.pools import Budget

Opened = Sequence[Weight]
"""An expert: gate and up in one, then down."""
GUESSED_BYTES = 8 << 20
"""About what a disk reads while a layer computes.  What was begun cannot be taken back, and keeps others waiting."""


class StoredExperts:
    """The experts of ``bundle`` in as many slots as ``plan`` says, read through ``reader``.  One step at a time."""

    def __init__(self, bundle: Bundle, plan: ExpertSlots, reader: BlockReader, budget: Budget) -> None:
        self._bundle = bundle
        pool = budget.buffer_pool("experts", plan.slots, plan.slot_bytes, direct_buffers)
        store = BlockStore(pool, _Reads(reader).start, _Opener(bundle).open)
        self._store: BlockStore[Key, Opened] = store
        self.cache = BlockCache(store, Slots(policy_of(DEFAULT, plan.count), plan.quota), plan.ahead)
        self._layers = {
            index: LayerExperts(self.cache, index, _bytes_of(bundle, index), max(1, GUESSED_BYTES // plan.slot_bytes))
            for index, layer in enumerate(bundle.decoder.layers)
            if mixture_of(layer) is not None
        }

    def of_layer(self, index: int) -> LayerExperts | None:
        """Those of layer ``index``; None where it has none."""
        return self._layers.get(index)

    def connect(self, layers: Mapping[int, BlockWeights]) -> None:
        """The weights of ``layers`` are here: from now on each guesses for the next."""
        described = self._bundle.decoder.layers
        for here, there in itertools.pairwise(self._layers):
            early = early_router(described[here], layers[here].gains, described[there], layers[there].gains)
            if early is not None:
                self._layers[here].next = early, self._layers[there]

    def counts(self, read_bytes: int) -> ExpertCounts:
        """What became of all so far, where so many bytes were read.  Any thread may ask."""
        layers, uses, guesses = self._layers.values(), self.cache.uses, self.cache.guesses
        return ExpertCounts(
            used=uses.used,
            read=uses.read,
            tokens=max(one.rows for one in layers),
            named=sum(one.named for one in layers),
            needed=sum(one.needed for one in layers),
            recalled=sum(one.recalled for one in layers),
            fetched=guesses.fetched,
            right=guesses.right,
            vain_bytes=guesses.vain_bytes,
            read_bytes=read_bytes,
        )

    def close(self) -> None:
        """Give the memory of all experts back."""
        self._store.close()


def _bytes_of(bundle: Bundle, index: int) -> int:
    return sum(unit.nbytes for unit in group_units(bundle.blocks[layer_name(index)]).values())


class LayerExperts:
    """The experts of layer ``index``, of so many bytes, out of ``cache``."""

    def __init__(self, cache: BlockCache[Opened], index: int, nbytes: int, guesses: int) -> None:
        """``guesses`` experts at most are read ahead."""
        self.nbytes = nbytes
        self._guesses = guesses
        self._cache = cache
        self._index = index
        self.next: tuple[EarlyRouter, LayerExperts] | None = None
        """Guesses for the next layer with experts, and that layer."""
        self._expected: frozenset[int] = frozenset()
        self.named = self.needed = self.recalled = self.rows = 0

    def runs(
        self, experts: Sequence[int], x: np.ndarray, pool: ThreadPool
    ) -> Iterator[Sequence[tuple[int, Opened]]]:
        self.rows += len(x)
        if self._expected:
            self.needed += len(experts)
            self.recalled += len(self._expected.intersection(experts))
        self._expected = frozenset()
        for number, run in enumerate(self._cache.take(self._index, experts, ascending=len(x) > GUESSED_ROWS)):
            if number == 0 and self.next is not None:
                early, following = self.next
                following.expect(early.ranked(x, same_bits_by(pool)))
            yield run

    def expect(self, experts: Sequence[int]) -> None:
        """The next step may need ``experts``, the first ones rather than the last."""
        self.named += len(experts)
        self._expected = frozenset(experts)
        self._cache.guess(self._index, experts, self._guesses)


class _Reads:
    """Begins the reads of experts, which share a descriptor of the file."""

    def __init__(self, reader: BlockReader) -> None:
        self._reader = reader
        self._first: BlockReading | None = None

    def start(self, key: Key, buffer: np.ndarray, urgent: bool) -> BlockReading:
        reading = self._reader.start(f"layers.{key.layer}.{NAME}.{key.expert}", buffer, self._first, urgent=urgent)
        self._first = self._first or reading
        return reading


class _Opener:
    """Makes weights of what was read."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._linears = {
            Key(index, expert): mixture.linears_of(expert)
            for index, layer in enumerate(bundle.decoder.layers)
            if (mixture := mixture_of(layer)) is not None
            for expert in range(mixture.count)
        }

    def open(self, key: Key, buffer: np.ndarray, tensors: Mapping[str, np.ndarray]) -> Opened:
        block = layer_name(key.layer)
        own = {name.removeprefix(f"{block}."): array for name, array in tensors.items()}
        return [open_linear(self._bundle, block, one, own) for one in self._linears[key]]
