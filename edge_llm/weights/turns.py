"""Streamed layers in the hands of a program, which awaits each one and asks for the next without Python.

A layer that is read into the same buffer again is what it was there: the same read, the same checksums, the same opened
weights.  So a program that is made once for the buffers that layers fall into stays right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from edge_llm.schemes.base import BlockWeights
from edge_llm.weights.base import Turn
from edge_llm.weights.ring import Ring

if TYPE_CHECKING:
    from edge_llm.formats.block_reader import BlockReading


class Read(NamedTuple):
    """A read of a streamed layer into a buffer that it was in before."""

    layer: int
    place: int
    """The number of the buffer."""
    reading: BlockReading
    weights: BlockWeights
    """What the layer is there."""


@dataclass(frozen=True, eq=False)
class RingTurns:
    """Turns of layers in the buffers of ``ring``, which is lent to who takes them."""

    layers: Mapping[int, Turn]
    ring: Ring[int, BlockWeights]
    reads: Sequence[Read]
    """Those of the step, and those for the next one that it begins."""

    def lend(self) -> None:
        places = range(len(self.ring))
        self.ring.lend([_Writers([read.reading for read in self.reads if read.place == place]) for place in places])

    def give_back(self, layer: int | None) -> None:
        first = len(self.layers) if layer is None else list(self.layers).index(layer)
        for read in self.reads[first : first + len(self.ring)]:
            self.ring.put(read.place, read.layer, read.reading)


@dataclass(frozen=True)
class _Writers:
    """All that may write to a buffer that is lent."""

    readings: Sequence[BlockReading]

    def wait(self) -> None:
        """What comes is for somebody else."""

    def settle(self) -> None:
        for reading in self.readings:
            reading.settle()


class LayerTurns:
    """Makes the turns of steps over the layers ``streamed``, of which there are more than buffers of ``ring``.

    ``kept(layer, buffer)`` is how a layer is read into a buffer and what it is there, or None before it was opened there.
    """

    def __init__(
        self,
        ring: Ring[int, BlockWeights],
        streamed: Sequence[int],
        kept: Callable[[int, np.ndarray], tuple[BlockReading, BlockWeights] | None],
    ) -> None:
        self._ring = ring
        self._streamed = streamed
        self._kept = kept
        self._made: dict[tuple[int, ...], RingTurns] = {}

    def begin(self) -> RingTurns | None:
        """Those of a step that begins now; None while a layer has not been where it will be, or reads need Python."""
        ahead = self._streamed[: len(self._ring)]
        for layer in ahead:
            self._ring.request(layer)
        places = self._ring.places(ahead)
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
            kept = self._kept(layer, self._ring.buffer(place))
            if kept is None or kept[0].range.native is None:
                return None
            reads.append(Read(layer, place, *kept))
        return reads

    def _make(self, reads: Sequence[Read]) -> RingTurns:
        layers: dict[int, Turn] = {}
        for read, after in zip(reads, reads[len(self._ring) :], strict=False):
            own, following = read.reading.range.native, after.reading.range.native
            assert own is not None and following is not None, "they were looked at"
            layers[read.layer] = Turn(read.layer, read.weights, own, read.reading.checksums, following)
        return RingTurns(layers, self._ring, reads)
