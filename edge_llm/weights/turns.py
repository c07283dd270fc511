"""Streamed layers in the hands of a program, which awaits each one and asks for the next without Python.

A layer that comes into a buffer again is what it was there before: the same read, the same checksums, the same opened
weights.  So one program serves every step in which the layers take the same buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from edge_llm.formats.layout import layer_name
from edge_llm.schemes.base import BlockWeights
from edge_llm.weights.base import Turn
from edge_llm.weights.ring import Ring

if TYPE_CHECKING:
    from edge_llm.formats.block_reader import BlockReading


class Read(NamedTuple):
    """A streamed layer on its way into a buffer that it was in before."""

    layer: int
    place: int
    """The number of the buffer."""
    reading: BlockReading
    weights: BlockWeights
    """What the layer is there."""


@dataclass(frozen=True, eq=False)
class RingTurns:
    """The turns of a step in the buffers of ``ring``, which are lent to its program."""

    layers: Mapping[int, Turn]
    ring: Ring[str, BlockWeights]
    reads: Sequence[Read]
    """In their order: those of the step, then those that it begins for the next one."""

    def lend(self) -> None:
        places = range(len(self.ring))
        self.ring.store.lend([_Writers([read.reading for read in self.reads if read.place == place]) for place in places])

    def give_back(self, layer: int | None) -> None:
        first = len(self.layers) if layer is None else list(self.layers).index(layer)
        for read in self.reads[first : first + len(self.ring)]:
            self.ring.store.put(read.place, layer_name(read.layer), read.reading)


@dataclass(frozen=True)
class _Writers:
    """All readings that may write to a buffer while it is lent."""

    readings: Sequence[BlockReading]

    def wait(self) -> None:
        """Nothing to open: what comes is the program's."""

    def hurry(self) -> None:
        """The program has begun them in its order."""

    def drop(self) -> None:
        """The program wants all that it has begun."""

    def settle(self) -> int:
        return sum(reading.settle() for reading in self.readings)


class LayerTurns:
    """Makes the turns of steps over the layers ``streamed``, of which there are more than buffers of ``ring``.

    ``find(name, buffer)`` is how a layer is read into a buffer and what it is there, or None before it was opened there.
    """

    def __init__(
        self,
        ring: Ring[str, BlockWeights],
        streamed: Sequence[int],
        find: Callable[[str, np.ndarray], tuple[BlockReading, BlockWeights] | None],
    ) -> None:
        self._ring = ring
        self._streamed = streamed
        self._find = find
        self._made: dict[tuple[int, ...], RingTurns] = {}  # by the buffers of the first layers, which decide all others

    def begin(self) -> RingTurns | None:
        """The turns of a step that begins now.

        None where Python must take part: a layer will be in a buffer for the first time, or its reads need Python.
        """
        ahead = self._streamed[: len(self._ring)]
        for layer in ahead:
            self._ring.request(layer_name(layer))
        places = tuple(self._ring.store.place(layer_name(layer)) for layer in ahead)
        reads = self._reads(places)
        if reads is None:
            return None
        made = self._made.get(places)
        if made is None or made.reads != reads:
            made = self._made[places] = self._make(reads)
        return made

    def _reads(self, places: Sequence[int]) -> list[Read] | None:
        reads: list[Read] = []
        for number in range(len(self._streamed) + len(places)):
            layer, place = self._streamed[number % len(self._streamed)], places[number % len(places)]
            found = self._find(layer_name(layer), self._ring.store.buffer(place))
            if found is None or found[0].native is None:
                return None
            reads.append(Read(layer, place, *found))
        return reads

    def _make(self, reads: Sequence[Read]) -> RingTurns:
        layers: dict[int, Turn] = {}
        for read, after in zip(reads, reads[len(self._ring) :], strict=False):
            own, following = read.reading.native, after.reading.native
            assert own is not None and following is not None, "`_reads` gives no others"
            layers[read.layer] = Turn(read.layer, read.weights, own, read.reading.checksums, following)
        return RingTurns(layers, self._ring, reads)
