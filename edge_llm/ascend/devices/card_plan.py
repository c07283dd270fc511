"""What a model takes of a card's memory, and which of its layers are streamed to the card where it does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edge_llm.ascend.devices.card_arrays import HEAD_ROWS
from edge_llm.ascend.npu.chips import ChipLaw, MatmulRoute
from edge_llm.devices.base import Room
from edge_llm.devices.model import activation_bytes
from edge_llm.errors import UsageError
from edge_llm.formats.layout import TensorRange
from edge_llm.kernels.types import TILE_CHANNELS, TILE_DEPTH
from edge_llm.kv.pages import PAGE_TOKENS, page_bytes, pages_for
from edge_llm.models.layer import Decoder
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.schemes.expanding import tile_bytes
from edge_llm.schemes.int8_weight import holds_integers
from edge_llm.schemes.joint import is_multiplied_as_int8
from edge_llm.subgraphs.placement import Placement
from edge_llm.weights.base import SLOTS
from edge_llm.weights.plan import spread

FLOAT_BYTES = 4
SMALL_BYTES = 1 << 20
"""For all small arrays together."""


@dataclass(frozen=True)
class CardNeeds:
    """Bytes of card memory, as its allocator counts them."""

    layers: tuple[int, ...]
    fixed: int
    """Of all but the layers: workspaces of products and, where the card does everything, tables, keys, values, activations."""
    tables: int = 0
    """Those of `fixed` that are weights."""
    pinned: tuple[int, ...] | None = None
    """Bytes of pinned main memory that each layer takes on its way to the card; None where it takes none."""

    @property
    def total(self) -> int:
        return self.fixed + sum(self.layers)

    def streamed(self, most: Callable[[int], int]) -> tuple[int, ...]:
        """The layers that are streamed through `SLOTS` slots so that all fits; () if it does anyway.

        ``most`` says how many bytes all may take, by how many of them are resident weights.  Raises `UsageError` that names
        the least that works.
        """
        if self.total <= most(self.weights(())):
            return ()
        count = len(self.layers)
        plans = [spread(streamed, count) for streamed in range(SLOTS + 1, count + 1)]
        fitting = (layers for layers in plans if self.held(layers) <= most(self.weights(layers)))
        found = next(fitting, None)
        if found is None:
            least = min((self.held(layers) for layers in plans), default=self.total)
            ceiling = most(self.weights(range(count)))
            raise UsageError(
                f"{ceiling} bytes of card memory are too little for this model; the least that works is {least} bytes "
                f"({math.ceil(least / 2**20)}MiB); a shorter --ctx or --chunk, or a smaller --kv-memory, takes less",
                param="card_memory",
            )
        return found

    def weights(self, streamed: Sequence[int]) -> int:
        """Bytes of weights that lie on the card for good when these layers are streamed."""
        return self.tables + sum(nbytes for index, nbytes in enumerate(self.layers) if index not in streamed)

    def held(self, streamed: Sequence[int]) -> int:
        """Bytes in all when these layers are streamed."""
        if not streamed:
            return self.total
        largest = max(self.layers[index] for index in streamed)
        return self.total - sum(self.layers[index] for index in streamed) + SLOTS * largest


@dataclass(frozen=True)
class CardPlan:
    """A model on a card: ``decoder``, whose bundle has ``tensors``, on a chip of ``law`` that multiplies by ``route``."""

    decoder: Decoder
    tensors: Mapping[str, TensorRange]
    placement: Placement
    law: ChipLaw
    route: MatmulRoute
    room: Room

    def needs(self) -> CardNeeds:
        """What it takes of the card's memory."""
        kinds = {layer.operations: layer for layer in self.decoder.layers}.values()
        products = [linear for layer in kinds for linear in _products(layer)]
        workspace = sum(self._workspace(linear, rows) for linear in products for rows in self.room.lengths)
        layers = tuple(self._layer(index, layer) for index, layer in enumerate(self.decoder.layers))
        if not self.placement.alone:
            return CardNeeds(layers, workspace)
        tables = self._tables()
        return CardNeeds(layers, workspace + tables + self._arrays(), tables)

    def _layer(self, index: int, layer: Layer) -> int:
        """The INT8 linears of a layer; where the card does everything, its other tensors as well."""
        linears = sum(self._linear(linear) for linear in _products(layer))
        return linears + (self._beside(f"layers.{index}.", layer) if self.placement.alone else 0)

    def _linear(self, linear: Linear) -> int:
        """Tiles, scales, row sums and bias of an INT8 linear."""
        columns, outputs = self.law.padded(linear.columns, linear.rows)
        vectors = 3 if linear.bias or self.route.needs_bias else 2
        return self.law.allocation(columns * outputs) + vectors * self.law.allocation(4 * outputs)

    def _beside(self, prefix: str, layer: Layer) -> int:
        """The tensors of a layer, codes as the tiles that they are expanded to, but for tiles that its products share."""
        linears = _products(layer)
        own = (tensor for name, tensor in self.tensors.items() if name.startswith(prefix) and not holds_integers(name))
        tiles = (tile_bytes(linear) for linear in linears if not self._shares_tiles(linear))
        return sum(self.law.allocation(tensor.nbytes) for tensor in own) + sum(self.law.allocation(one) for one in tiles)

    def _shares_tiles(self, linear: Linear) -> bool:
        """Whether the chip multiplies the bundle's tiles of ``linear`` as they are, without zeros beside them."""
        whole_tiles = -(-linear.columns // TILE_DEPTH) * TILE_DEPTH, -(-linear.rows // TILE_CHANNELS) * TILE_CHANNELS
        return self.law.padded(linear.columns, linear.rows) == whole_tiles

    def _workspace(self, linear: Linear, rows: int) -> int:
        """Of one static product: rows in, accumulator, rows out."""
        columns, outputs = self.law.padded(linear.columns, linear.rows)
        allocation = self.law.allocation
        results = 2 * allocation(4 * rows * outputs) if self.route.exact else allocation(2 * rows * outputs)
        return allocation(rows * columns) + results

    def _tables(self) -> int:
        """Embedding, output matrix and last norm; beside its tensors the output matrix has vectors as products want them."""
        decoder, law = self.decoder, self.law
        tables = [one for name, one in self.tensors.items() if name.split(".")[0] in ("embedding", "output", "final_norm")]
        columns, outputs = law.padded(decoder.hidden_size, decoder.vocab_size)
        tensors = sum(law.allocation(tensor.nbytes) for tensor in tables if not holds_integers(tensor.name))
        return (1 if decoder.tied else 2) * law.allocation(columns * outputs) + tensors + 3 * law.allocation(4 * outputs)

    def _arrays(self) -> int:
        """Keys and values, rotary tables, activations and the output matrix's workspace."""
        decoder, law, room = self.decoder, self.law, self.room
        pages = pages_for(room.tokens, law.page_tokens) * law.page_tokens // PAGE_TOKENS
        ropes = {attention.rope for attention in decoder.attentions}
        rows = max(length for length in room.lengths if length <= HEAD_ROWS)
        return (
            pages * page_bytes(decoder.attentions)
            + sum(room.positions * rope.dim * FLOAT_BYTES for rope in ropes)
            + activation_bytes(decoder, self.placement, room.lengths[-1], room.window)
            + room.lengths[-1] * decoder.hidden_size * FLOAT_BYTES  # states
            + 2 * self._workspace(decoder.output, rows)
            + 3 * rows * decoder.vocab_size * FLOAT_BYTES
            + SMALL_BYTES
        )


def _products(layer: Layer) -> list[Linear]:
    return [linear for linear in layer.for_cards if is_multiplied_as_int8(linear.scheme)]
