"""Weights for a device with a card: what the host keeps of each layer, and beside it what lies in card memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from edge_llm.models.layer import Decoder
from edge_llm.operations.experts import is_of_expert
from edge_llm.schemes.base import BlockWeights, Weight
from edge_llm.schemes.expanding import expanded
from edge_llm.schemes.int8_weight import Int8Product, Int8Weight
from edge_llm.schemes.tables import Table, expanded_runs
from edge_llm.weights.base import SLOTS, FlashCounts, Weights
from edge_llm.weights.pools import BufferPool
from edge_llm.weights.ring import Ring

CardLinearT = TypeVar("CardLinearT")


class Card(Protocol[CardLinearT]):
    """What multiplies INT8 linears in its own memory."""

    @property
    def rounds(self) -> bool:
        """Whether its products end in float16, as `Int8Weight.rounding` says."""
        ...

    def load(self, linear: Int8Weight) -> CardLinearT:
        """Copy a linear into new card memory."""
        ...

    def reload(self, linear: Int8Weight, card: CardLinearT) -> CardLinearT:
        """Copy a linear over ``card`` if that has the same shape, else into new memory in its stead."""
        ...


@dataclass(frozen=True)
class CardBlock(BlockWeights, Generic[CardLinearT]):
    """A layer's weights on both sides: ``linears`` and ``gains`` for all that is float, ``card`` for INT8 products."""

    card: Mapping[str, CardLinearT] = field(default_factory=dict)


@dataclass
class CardSlot(Generic[CardLinearT]):
    """Card memory for one layer: what lies in it, by name; empty at first."""

    linears: dict[str, CardLinearT] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)


Load = Callable[[Weights, int, "CardSlot[CardLinearT]"], "CardBlock[CardLinearT]"]
"""Copies layer ``index``, which is in the host's memory, into a slot: (weights, index, slot) -> the layer there."""


Bring = Callable[[CardSlot[CardLinearT]], CardBlock[CardLinearT]]
"""Copies a layer that is kept into a slot: slot -> the layer there."""
Keep = Callable[[Weights, int], Bring[CardLinearT]]
"""Keeps layer ``index``, which is in the host's memory, as a card takes it: (weights, index) -> how it comes into a slot."""


def load_products(card: Card[CardLinearT]) -> Load[CardLinearT]:
    """Puts the INT8 linears of a layer on ``card``; the host keeps the rest, and rounds what it multiplies as ``card`` does."""

    def load(host: Weights, index: int, slot: CardSlot[CardLinearT]) -> CardBlock[CardLinearT]:
        return _put(card, int8_linears(host.use(index)), host.host_part(index), slot)

    return load


def keep_products(card: Card[CardLinearT]) -> Keep[CardLinearT]:
    """Keeps the INT8 linears of a layer for `load_products`, and what that leaves to the host."""

    def keep(host: Weights, index: int) -> Bring[CardLinearT]:
        return partial(_put, card, int8_linears(copied(expanded(host.use(index)))), host.host_part(index))

    return keep


def _put(
    card: Card[CardLinearT], int8: Mapping[str, Int8Weight], here: BlockWeights, slot: CardSlot[CardLinearT]
) -> CardBlock[CardLinearT]:
    for name, linear in int8.items():
        before = slot.linears.pop(name, None)  # gone if its copy fails
        slot.linears[name] = card.load(linear) if before is None else card.reload(linear, before)
    linears = rounded_linears(here.linears) if card.rounds else here.linears
    return CardBlock(linears, here.gains, experts=here.experts, card=slot.linears)


def copied(block: BlockWeights) -> BlockWeights:
    """``block`` in memory of its own."""
    return block.moved({name: array.copy() for name, array in block.tensors.items()})


def int8_linears(block: BlockWeights) -> dict[str, Int8Weight]:
    """Those that a card multiplies; codes are expanded."""
    linears = {name: linear for name, linear in block.linears.items() if not is_of_expert(name)}
    found = expanded(replace(block, linears=linears)).linears
    return {name: linear for name, linear in found.items() if isinstance(linear, Int8Weight)}


def rounded_linears(linears: Mapping[str, Weight]) -> dict[str, Weight]:
    """``linears`` for a host beside a card that rounds: those that it has multiply as it does."""
    rounded = {name: one.rounded for name, one in linears.items() if isinstance(one, Int8Product) and not is_of_expert(name)}
    return {**linears, **rounded}


def output_blocks(host: Weights, decoder: Decoder) -> Iterator[tuple[slice, Int8Weight]]:
    """The output matrix in runs of rows, in tiles; of tied embeddings it is the embedding."""
    if decoder.tied:
        return embedding_runs(host)
    return expanded_runs(_outputs(host))


def embedding_runs(host: Weights) -> Iterator[tuple[slice, Int8Weight]]:
    """The embedding in runs of rows, in tiles."""
    return expanded_runs(host.embedding_blocks())


def _outputs(host: Weights) -> Iterator[tuple[slice, Table]]:
    for rows, block in host.head_blocks():
        output = block.linears["output"]
        assert isinstance(output, Table)
        yield rows, output


@dataclass
class _Arrival:
    """A streamed layer on its way to the card by way of the host."""

    host: Weights | None
    """None where it is there."""
    index: int

    def wait(self) -> None:
        if self.host is not None:
            self.host.wait(self.index)

    def hurry(self) -> None:
        """The host's requests have their order."""

    def drop(self) -> None:
        """No layer is guessed."""

    def settle(self) -> int:
        """Nobody but the caller of `wait` writes to card memory."""
        return 0


class CardWeights(Generic[CardLinearT]):
    """The layers of ``host`` as ``load`` puts them on a card; the embedding and the head stay with the host.

    All layers but those that the host streams are copied at once, so that a model too large for the card is refused before it
    is used.  A streamed layer is copied when it has been read, over the layer that was requested the longest ago.  Every
    request goes to the host as well, so that both have the same layers in their slots; but layers that the host keeps, as
    ``keep`` lays them out, come from there.  `wait` has one caller at a time; lanes may use layers meanwhile.
    """

    def __init__(
        self, host: Weights, load: Load[CardLinearT], layers: int, keep: Keep[CardLinearT] | None = None
    ) -> None:
        self.head = host.head
        self.streamed = host.streamed
        self.streamed_bytes = host.streamed_bytes
        self.hosted = host.hosted
        self.token_bytes = host.token_bytes
        self.slots = (host.slots or SLOTS) if self.streamed else 0
        self._host = host
        self._resident: dict[int, CardBlock[CardLinearT]] = {}
        self._kept: dict[int, _Kept[CardLinearT]] = {}
        for index in _arrivals(host, [index for index in range(layers) if index in host.hosted or index not in host.streamed]):
            if index not in host.hosted:
                self._resident[index] = load(host, index, CardSlot())
            else:
                assert keep is not None, "the device keeps no layers in main memory"
                self._kept[index] = _Kept(keep(host, index), host.hosted[index])
        self._from_flash = tuple(index for index in self.streamed if index not in host.hosted)
        self._ring = _card_ring(host, load, self._kept, self.slots)
        self._loaded_bytes = host.read_bytes
        if not self._from_flash:
            host.forget_layers()

    @property
    def flash_tables(self) -> frozenset[str]:
        return self._host.flash_tables

    @property
    def nbytes(self) -> int:
        return self._host.nbytes

    @property
    def read_bytes(self) -> int:
        return self._host.read_bytes - self._loaded_bytes

    @property
    def experts(self) -> FlashCounts | None:
        return self._host.experts

    @property
    def sent_bytes(self) -> int:
        return sum(kept.nbytes * kept.times for kept in self._kept.values())

    def use(self, index: int) -> BlockWeights:
        return self._resident[index] if index in self._resident else self._ring.use(index)

    def request(self, index: int) -> None:
        if index in self._from_flash:
            self._host.request(index)
        if index in self.streamed:
            self._ring.request(index)

    def wait(self, index: int) -> None:
        """Bring streamed layer ``index`` into the host's memory and the card's; nothing to do when it is there."""
        if index in self.streamed:
            self._ring.wait(index)
        if index in self._from_flash and self._kept:  # the disk reads while layers come out of main memory
            place = self._from_flash.index(index)
            for later in range(1, self._host.slots + 1):
                self._host.request(self._from_flash[(place + later) % len(self._from_flash)])

    def turns(self) -> None:
        """None: layers are copied to the card on the way."""

    def host_part(self, index: int) -> BlockWeights:
        return self._host.host_part(index)

    def forget_layers(self) -> None:
        self._ring.release()
        self._host.forget_layers()

    def forget_tables(self) -> None:
        self._host.forget_tables()

    def embedding_blocks(self) -> Iterator[tuple[slice, Table]]:
        return self._host.embedding_blocks()

    def embedding_rows(self, tokens: np.ndarray) -> tuple[Table, np.ndarray]:
        return self._host.embedding_rows(tokens)

    def head_blocks(self) -> Iterator[tuple[slice, BlockWeights]]:
        return self._host.head_blocks()


@dataclass
class _Kept(Generic[CardLinearT]):
    """A layer that stays in main memory, of ``nbytes`` in the bundle."""

    bring: Bring[CardLinearT]
    nbytes: int
    times: int = 0
    """How often it was copied to the card."""

    def put(self, slot: CardSlot[CardLinearT]) -> CardBlock[CardLinearT]:
        self.times += 1
        return self.bring(slot)


def _arrivals(host: Weights, layers: Sequence[int]) -> Iterator[int]:
    """Each of ``layers`` in the host's memory until the next is taken, which is read meanwhile."""
    for index, following in zip(layers, [*layers[1:], None], strict=False):
        host.request(index)
        if following is not None and host.slots > 1:
            host.request(following)
        host.wait(index)
        yield index


def _card_ring(
    host: Weights, load: Load[CardLinearT], kept: Mapping[int, _Kept[CardLinearT]], slots: int
) -> Ring[int, CardBlock[CardLinearT]]:
    """Card memory for ``slots`` streamed layers, of which those that are ``kept`` need no read."""

    def start(index: int, slot: CardSlot[CardLinearT], urgent: bool) -> _Arrival:
        return _Arrival(None if index in kept else host, index)

    def open_(index: int, slot: CardSlot[CardLinearT], waited: None) -> CardBlock[CardLinearT]:
        return kept[index].put(slot) if index in kept else load(host, index, slot)

    return Ring(BufferPool([CardSlot() for _ in range(slots)]), start, open_)
