"""What a model takes of an Ascend card's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edge_llm.ascend.devices.card.model import HEAD_ROWS
from edge_llm.ascend.devices.card.pinned import pinned_bytes
from edge_llm.ascend.devices.card_plan import CardNeeds
from edge_llm.ascend.npu.calls import MASK_SIZE
from edge_llm.ascend.npu.chips import FRACTAL, ChipLaw
from edge_llm.ascend.npu.law import CHUNK_ATTENTION_V2, chunk_attention
from edge_llm.ascend.npu.runtime import GRAPH_ROWS
from edge_llm.devices.base import Room
from edge_llm.formats.layout import TensorRange
from edge_llm.kv.pages import pages_for
from edge_llm.models.layer import Decoder
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.schemes.joint import is_multiplied_as_int8

FLOAT_BYTES = 4
FLOAT16_BYTES = 2
SCALE_BYTES = 8
"""Of a packed scale."""
MASK_BYTES = 2 * FLOAT16_BYTES + 1
"""Of a score: what is compared, the same in float16, and times what it is lowered by."""
LIVE = 3
"""Float32 copies of a row that an operator's input, its result and what was cast between them take at a time."""


def key_bytes(law: ChipLaw, decoder: Decoder, tokens: int, value_bytes: int) -> int:
    """Of the keys and values of ``tokens`` tokens in the card's blocks, one of them spare; a value takes ``value_bytes``."""
    held = (pages_for(tokens, law.page_tokens) + 1) * law.page_tokens
    return sum(2 * law.allocation(value_bytes * held * one.kv_size) for one in decoder.attentions)


@dataclass(frozen=True)
class AscendPlan:
    """``decoder``, whose bundle has ``tensors``, on a chip of ``law``, ``alone`` or beside the CPU.

    A value of the keys and values takes ``value_bytes``.
    """

    decoder: Decoder
    tensors: Mapping[str, TensorRange]
    law: ChipLaw
    room: Room
    alone: bool
    value_bytes: int

    def needs(self) -> CardNeeds:
        layers = tuple(self._layer(f"layers.{index}.", layer) for index, layer in enumerate(self.decoder.layers))
        pinned = tuple(map(pinned_bytes, layers))  # the card's allocator takes no less for any of its arrays
        if not self.alone:
            return CardNeeds(layers, self._rows(), pinned=pinned)
        return CardNeeds(layers, self._output() + self._beside_weights(), self._output(), pinned)

    def key_bytes(self) -> int:
        """Of keys and values on the card."""
        return key_bytes(self.law, self.decoder, self.room.tokens, self.value_bytes) if self.alone else 0

    def _layer(self, prefix: str, layer: Layer) -> int:
        linears = sum(self._linear(prefix, one) for one in layer.for_cards if self.alone or is_multiplied_as_int8(one.scheme))
        return linears + (sum(self.law.allocation(FLOAT_BYTES * gain.size) for gain in layer.gains) if self.alone else 0)

    def _linear(self, prefix: str, linear: Linear) -> int:
        allocation = self.law.allocation
        if not is_multiplied_as_int8(linear.scheme):
            return allocation(FLOAT16_BYTES * linear.columns * linear.rows) + allocation(FLOAT16_BYTES * linear.rows)
        columns, rows = self.law.padded(linear.columns, linear.rows)
        product = allocation(columns * rows) + allocation(SCALE_BYTES * rows)
        product += allocation(FLOAT_BYTES * rows) if linear.bias or self.law.zero_bias else 0
        if not self.alone:
            return product
        around = allocation(FLOAT_BYTES * linear.columns) + self._turn(linear)
        return product + around + self._hot(self.tensors[f"{prefix}{linear.name}.hot_index"].shape[0], rows)

    def _hot(self, channels: int, rows: int) -> int:
        """Hot channels and their weights, filled up."""
        filled = -(-channels // FRACTAL) * FRACTAL
        return self.law.allocation(FLOAT_BYTES * filled) + self.law.allocation(FLOAT16_BYTES * filled * rows) if channels else 0

    def _turn(self, linear: Linear) -> int:
        """What its rows are turned by."""
        return self.law.allocation(FLOAT16_BYTES * linear.turn**2) if linear.turn else 0

    def _rows(self) -> int:
        """Rows on their way through products whose rows come from the host."""
        kinds = {(one.columns, one.rows) for layer in self.decoder.layers for one in layer.for_cards}
        padded = [self.law.padded(*kind) for kind in kinds]
        held = sum(self.law.allocation(rows * columns) for columns, _ in padded for rows in self.room.lengths)
        return held + max(FLOAT16_BYTES * self.room.lengths[-1] * outputs for _, outputs in padded)

    def _output(self) -> int:
        """The output matrix."""
        decoder = self.decoder
        table = "embedding" if decoder.tied else "output"
        columns, rows = self.law.padded(decoder.output.columns, decoder.output.rows)
        product = self.law.allocation(columns * rows) + self.law.allocation((SCALE_BYTES + FLOAT_BYTES) * rows)
        return product + self._hot(self.tensors[f"{table}.hot_index"].shape[0], rows) + self._turn(decoder.output)

    def _masks(self) -> int:
        """Of attention over chunks: one mask for all, or one for each chunk with what it is made of."""
        if chunk_attention(self.law) == CHUNK_ATTENTION_V2:
            return FLOAT16_BYTES * MASK_SIZE**2
        return MASK_BYTES * self.room.window * self.room.lengths[-1] * self.room.positions

    def _beside_weights(self) -> int:
        """Keys, tables, activations and graphs."""
        decoder, room = self.decoder, self.room
        ropes = {attention.rope for attention in decoder.attentions}
        tables = sum(2 * FLOAT16_BYTES * room.positions * rope.dim for rope in ropes) + self._masks()
        blocks = pages_for(room.positions, self.law.page_tokens)
        inputs = FLOAT_BYTES * (decoder.hidden_size + blocks + 4) * (room.lengths[-1] * room.window + sum(GRAPH_ROWS))
        widest = max(width for layer in decoder.layers for width in layer.widths.values())
        activations = LIVE * FLOAT_BYTES * widest * (room.lengths[-1] + sum(GRAPH_ROWS))
        logits = FLOAT16_BYTES * decoder.vocab_size * 2 * (HEAD_ROWS + sum(GRAPH_ROWS))
        return self.key_bytes() + tables + inputs + activations + logits
