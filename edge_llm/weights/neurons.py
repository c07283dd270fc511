"""Columns of neurons from flash: those that were active for the last tokens stay in memory, the others are read when they are.

The window of LLM in a flash (arXiv 2312.11514), as long as the memory allows: of the runs of a layer those leave that were
not active for longest.  What is in memory is multiplied while the rest is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from edge_llm.formats.direct import RangeFile, RangeReading, direct_buffers
from edge_llm.formats.layout import layer_name
from edge_llm.operations.linear import Linear
from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.neurons import CHECKSUMS, COLUMNS, Found, NeuronWeight, runs_of
from edge_llm.weights.base import NeuronCounts
from edge_llm.weights.resident import layer_weights
from edge_llm.weights.store import BlockStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edge_llm.formats.bundle import Bundle
    from edge_llm.formats.layout import TensorRange
    from edge_llm.kernels.range_reader import RangeReader
    from edge_llm.weights.memory_plan import NeuronSlots
    from edge_llm.weights.pools import Budget


class RunKey(NamedTuple):
    """A run of neurons of a linear."""

    linear: str
    run: int


class StoredNeurons:
    """The columns of all such linears of ``bundle`` in as many slots as ``plan`` says, read through ``reader``.

    ``tensors`` has what lies beside the columns, by full names.  One step at a time.
    """

    def __init__(
        self,
        bundle: Bundle,
        plan: NeuronSlots,
        tensors: Mapping[str, np.ndarray],
        reader: RangeReader,
        file: RangeFile,
        budget: Budget,
    ) -> None:
        (memory,) = direct_buffers(1, plan.slots * plan.slot_bytes)
        found = neuron_linears(bundle)
        self._bundle = bundle
        checksums = {name: f"{name}.{CHECKSUMS}" for name in found}
        known = {name: tensors[key] if key in tensors else bundle.read(key) for name, key in checksums.items()}
        reads = _Reads(bundle, known, reader, file, memory)
        self._linears = found
        slots = list(memory.reshape(plan.slots, plan.slot_bytes))
        pool = budget.buffer_pool("neurons", plan.slots, plan.slot_bytes, lambda count, nbytes: slots)
        self._store: BlockStore[RunKey, int] = BlockStore(pool, reads.start, reads.open)
        integers = memory.view(np.int8)
        self._windows = {
            name: Window(name, runs_of(linear).total, plan.quota, self._store, integers) for name, linear in found.items()
        }

    def open(self, index: int, tensors: Mapping[str, np.ndarray]) -> BlockWeights:
        """The weights of layer ``index``, whose ``tensors`` lack the columns that come from here."""
        none = {
            f"{name}.{COLUMNS}": np.empty((0, runs_of(one).nbytes), np.int8)
            for name, one in self._linears.items()
            if name.startswith(f"{layer_name(index)}.")
        }
        weights = layer_weights(self._bundle, {**tensors, **none}, index)
        own = {name: window for name in weights.linears if (window := self._windows.get(f"layers.{index}.{name}"))}
        found = {name: replace(cast(NeuronWeight, weights.linears[name]), held=window) for name, window in own.items()}
        return replace(weights, linears={**weights.linears, **found})

    def counts(self, read_bytes: int) -> NeuronCounts:
        """What became of all so far, where so many bytes were read.  Any thread may ask."""
        windows = self._windows.values()
        return NeuronCounts(
            used=sum(one.used for one in windows),
            read=sum(one.read for one in windows),
            tokens=max(one.rows for one in windows),
            read_bytes=read_bytes,
        )

    def close(self) -> None:
        """Give the memory back."""
        self._store.close()


def neuron_linears(bundle: Bundle) -> dict[str, Linear]:
    """The linears of ``bundle`` whose neurons can be read alone, by their full names."""
    return {name: one for name, one in bundle.decoder.linears().items() if f"{name}.{COLUMNS}" in bundle.tensors}


class Window:
    """The ``count`` runs of ``linear``, ``quota`` of which are in ``memory`` (int8) at a time, through ``store``."""

    def __init__(self, linear: str, count: int, quota: int, store: BlockStore[RunKey, int], memory: np.ndarray) -> None:
        """Raises ValueError for fewer than two runs in memory: one is used while the next is read."""
        if quota < min(2, count):
            raise ValueError(f"{quota} runs of neurons in memory are too few")
        self._linear = linear
        self._quota = quota
        self._store = store
        self._memory = memory
        self._place = np.full(count, -1, np.int64)  # where in memory a run begins; -1: it is not there
        self._last = np.zeros(count, np.int64)  # the last step in which it was active
        self._now = 0
        self.used = self.read = self.rows = 0

    @property
    def nbytes(self) -> int:
        return 0  # the slots are counted by the plan

    def take(self, runs: np.ndarray, rows: int) -> Iterator[Found]:
        """`HeldColumns.take`.  The next step goes on without what was not read."""
        self._now += 1
        self._last[runs] = self._now
        there = self._place[runs] >= 0
        held, missing = runs[there], runs[~there]
        self.rows, self.used, self.read = self.rows + rows, self.used + len(runs), self.read + len(missing)
        yield from self._run(held, missing)

    def _run(self, held: np.ndarray, missing: np.ndarray) -> Iterator[Found]:
        begun: list[int] = []
        try:
            left = self._begin(missing, begun, self._idle(held))
            if len(held):
                yield self._found(held)
            if len(left):  # what was used may leave now, and then half of what comes while the other half is used
                left = self._begin(left, begun, held)
            while begun:
                some = begun[: max(1, len(begun) // 2)] if len(left) else begun[:]
                self._wait(some)
                del begun[: len(some)]
                arrived = np.array(some, np.int64)
                yield self._found(arrived)
                if len(left):
                    left = self._begin(left, begun, arrived)
        finally:
            self._place[begun] = -1  # of some of them the read has ended, before another one failed
            for run in begun:
                self._store.release(RunKey(self._linear, run))

    def _found(self, runs: np.ndarray) -> Found:
        return Found(runs, self._memory, self._place[runs])

    def _idle(self, used: np.ndarray) -> np.ndarray:
        """Runs in memory that are not ``used``, those first that were not active for longest."""
        idle = self._place >= 0
        idle[used] = False
        found = np.flatnonzero(idle)
        return found[np.argsort(self._last[found], kind="stable")]

    def _begin(self, missing: np.ndarray, begun: list[int], may_leave: np.ndarray) -> np.ndarray:
        """Begin to read as many of ``missing`` as there is room for when all of ``may_leave`` go; what is left."""
        room = self._quota - int((self._place >= 0).sum()) - len(begun)
        leaving = may_leave[: max(0, len(missing) - room)].tolist()
        for run in leaving:
            self._store.release(RunKey(self._linear, run))
        self._place[leaving] = -1
        now = missing[: room + len(leaving)].tolist()
        for run in now:
            begun.append(run)
            self._store.request(RunKey(self._linear, run))
        return missing[len(now) :]

    def _wait(self, runs: list[int]) -> None:
        for run in runs:
            self._place[run] = self._store.wait(RunKey(self._linear, run))


class _Reads:
    """Reads runs of columns, which share a descriptor of the file, and checks them against ``checksums``."""

    def __init__(
        self,
        bundle: Bundle,
        checksums: Mapping[str, np.ndarray],
        reader: RangeReader,
        file: RangeFile,
        memory: np.ndarray,
    ) -> None:
        self._bundle = bundle
        self._tensors: dict[str, TensorRange] = {name: bundle.tensors[f"{name}.{COLUMNS}"] for name in checksums}
        self._checksums = {name: found.view(np.uint32).tolist() for name, found in checksums.items()}
        self._reader, self._file = reader, file
        self._first: RangeReading | None = None
        self._start = memory.ctypes.data
        self._ends = {name: np.array([tensor.shape[1]], np.int64) for name, tensor in self._tensors.items()}

    def start(self, key: RunKey, buffer: np.ndarray, urgent: bool) -> RangeReading:
        tensor = self._tensors[key.linear]
        nbytes = tensor.shape[1]
        reading = RangeReading(
            self._file, self._reader, buffer[:nbytes], tensor.offset + key.run * nbytes, self._ends[key.linear],
            urgent=urgent, beside=self._first,
        )  # fmt: skip
        self._first = self._first or reading
        return reading

    def open(self, key: RunKey, buffer: np.ndarray, checksums: list[int]) -> int:
        """Where in memory the run begins."""
        if checksums[0] != self._checksums[key.linear][key.run]:
            raise self._bundle.damaged(self._tensors[key.linear])
        return buffer.ctypes.data - self._start
