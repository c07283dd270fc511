"""Weights for a device with a card: the host's own, and beside them the INT8 linears in card memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.weights.base import Weights

CardLinearT = TypeVar("CardLinearT")


class Card(Protocol[CardLinearT]):
    """A card that can copy weights into its memory."""

    def load(self, linear: Int8Weight) -> CardLinearT:
        """Copy a linear into new card memory."""
        ...

    def reload(self, linear: Int8Weight, card: CardLinearT) -> None:
        """Copy a linear of the same shape over ``card``."""
        ...


@dataclass(frozen=True)
class CardBlock(BlockWeights, Generic[CardLinearT]):
    """A layer's weights on both sides: ``linears`` and ``gains`` for the CPU, ``card`` for the card."""

    card: Mapping[str, CardLinearT]


@dataclass
class _Slot(Generic[CardLinearT]):
    """Card memory for one streamed layer at a time: its linears, and the layer that they belong to."""

    linears: dict[str, CardLinearT]
    layer: int | None = None


class CardWeights(Generic[CardLinearT]):
    """Puts every INT8 linear of every layer on the card; others, the embedding and the head stay with the CPU.

    Resident layers are copied at once, so that a model too large for the card is refused before it is used.  A streamed layer
    is copied when it has been read, over the layer that was read the longest ago.  The host overwrites the same one, so nobody
    uses it any more.  `read` has one caller at a time; lanes may ask for layers meanwhile.
    """

    def __init__(self, host: Weights, card: Card[CardLinearT], layers: int) -> None:
        self.head = host.head
        self.nbytes = host.nbytes
        self.streamed = host.streamed
        self.streamed_bytes = host.streamed_bytes
        self.slots = host.slots
        self._host = host
        self._card = card
        resident = [index for index in range(layers) if index not in host.streamed]
        self._blocks = {index: self._both(host.use(index), {}) for index in resident}
        self._card_slots: list[_Slot[CardLinearT]] = [_Slot({}) for _ in range(host.slots)]

    def use(self, index: int) -> BlockWeights:
        return self._blocks[index]

    def embedding_rows(self, tokens: np.ndarray) -> tuple[Int8Weight, np.ndarray]:
        return self._host.embedding_rows(tokens)

    def head_blocks(self) -> Iterator[tuple[slice, BlockWeights]]:
        return self._host.head_blocks()

    def request(self, index: int) -> None:
        self._host.request(index)

    def wait(self, index: int) -> None:
        """Bring streamed layer ``index`` into the host's memory and the card's; nothing to do when it is there."""
        self._host.wait(index)
        if index not in self.streamed:
            return
        slot = next((slot for slot in self._card_slots if slot.layer == index), self._card_slots[0])
        if slot.layer != index:
            self._fill(slot, index)
        host = self._host.use(index)  # after an interrupted sweep it may lie in another buffer
        self._blocks[index] = CardBlock(host.linears, host.gains, slot.linears)
        self._card_slots.remove(slot)  # the slot that was read last stands last
        self._card_slots.append(slot)

    def _fill(self, slot: _Slot[CardLinearT], index: int) -> None:
        if slot.layer is not None:
            self._blocks.pop(slot.layer, None)
            slot.layer = None
        slot.linears.update(self._both(self._host.use(index), slot.linears).card)
        slot.layer = index

    def _both(self, block: BlockWeights, place: Mapping[str, CardLinearT]) -> CardBlock[CardLinearT]:
        """``block`` on both sides, its linears copied over those of the same name in ``place``, else into new memory."""
        int8 = {name: linear for name, linear in block.linears.items() if isinstance(linear, Int8Weight)}
        for name, linear in int8.items():
            if name in place:
                self._card.reload(linear, place[name])
        card = {name: place[name] if name in place else self._card.load(linear) for name, linear in int8.items()}
        return CardBlock(block.linears, block.gains, card)
