"""What a model takes of a card's memory, and which of its layers are streamed to the card where it does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edge_llm.devices.base import Room
from edge_llm.devices.card_arrays import HEAD_ROWS
from edge_llm.devices.chips import ChipLaw, MatmulRoute
from edge_llm.devices.model import activation_bytes
from edge_llm.errors import UsageError
from edge_llm.formats.layout import TensorRange
from edge_llm.kv.pages import PAGE_TOKENS, page_bytes, pages_for
from edge_llm.models.layer import Decoder, Layer, Linear
from edge_llm.subgraphs.ops import CARD_LANE
from edge_llm.subgraphs.placement import CARD_SCHEMES, Placement
from edge_llm.weights.plan import SLOTS, spread

FLOAT_BYTES = 4
SMALL_BYTES = 1 << 20
"""Enough for all arrays that are small."""


@dataclass(frozen=True)
class CardNeeds:
    """Bytes of card memory, as its allocator counts them."""

    layers: tuple[int, ...]
    fixed: int
    """Of all but the layers: workspaces of products and, where the card does everything, tables, keys, values, activations."""

    @property
    def total(self) -> int:
        return self.fixed + sum(self.layers)

    def streamed(self, ceiling: int) -> tuple[int, ...]:
        """The layers that are streamed through `SLOTS` slots so that all fits below ``ceiling`` bytes; () if it does anyway.

        Raises `UsageError` that names the least that works.
        """
        if self.total <= ceiling:
            return ()
        count = len(self.layers)
        plans = [spread(streamed, count) for streamed in range(SLOTS + 1, count + 1)]
        fitting = (layers for layers in plans if self.held(layers) <= ceiling)
        found = next(fitting, None)
        if found is None:
            least = min((self.held(layers) for layers in plans), default=self.total)
            raise UsageError(
                f"{ceiling} bytes of card memory are too little for this model; the least that works is {least} bytes "
                f"({math.ceil(least / 2**20)}MiB); a shorter --ctx or --chunk takes less",
                param="card_memory",
            )
        return found

    def held(self, streamed: Sequence[int]) -> int:
        """Bytes in all when these layers are streamed."""
        if not streamed:
            return self.total
        largest = max(self.layers[index] for index in streamed)
        return self.total - sum(self.layers[index] for index in streamed) + SLOTS * largest


def card_needs(
    decoder: Decoder,
    tensors: Mapping[str, TensorRange],
    placement: Placement,
    law: ChipLaw,
    route: MatmulRoute,
    room: Room,
) -> CardNeeds:
    """What ``decoder``, whose bundle has ``tensors``, takes of a card of ``law`` under ``placement``."""
    kinds = {layer.operations: layer for layer in decoder.layers}.values()
    products = [linear for layer in kinds for linear in _products(layer)]
    workspace = sum(_product_bytes(law, route, linear, rows) for linear in products for rows in room.lengths)
    alone = placement.decode.lane == CARD_LANE
    names = [f"layers.{index}." for index in range(len(decoder.layers))]
    layers = tuple(
        sum(_linear_bytes(law, linear) for linear in _products(layer))
        + (sum(_beside(law, tensors, layer, prefix)) if alone else 0)
        for prefix, layer in zip(names, decoder.layers, strict=True)
    )
    return CardNeeds(layers, workspace + (_whole_bytes(decoder, tensors, placement, law, route, room) if alone else 0))


def _products(layer: Layer) -> list[Linear]:
    return [linear for linear in layer.linears if linear.scheme in CARD_SCHEMES]


def _linear_bytes(law: ChipLaw, linear: Linear) -> int:
    """Tiles, scales, row sums and bias of an INT8 linear."""
    columns, outputs = law.padded(linear.columns, linear.rows)
    return law.allocation(columns * outputs) + (3 if linear.bias else 2) * law.allocation(4 * outputs)


def _beside(law: ChipLaw, tensors: Mapping[str, TensorRange], layer: Layer, prefix: str) -> Iterable[int]:
    """Of a layer that lies on the card as a whole: its tensors, but for tiles that its products share."""
    shared = {f"{prefix}{linear.name}.tiles" for linear in _products(layer) if _fits(law, linear)}
    own = (tensor for name, tensor in tensors.items() if name.startswith(prefix) and name not in shared)
    return (law.allocation(tensor.nbytes) for tensor in own)


def _fits(law: ChipLaw, linear: Linear) -> bool:
    """Whether the tiles of ``linear`` need no zeros beside them."""
    return law.padded(linear.columns, linear.rows) == (-(-linear.columns // 4) * 4, -(-linear.rows // 16) * 16)


def _product_bytes(law: ChipLaw, route: MatmulRoute, linear: Linear, rows: int) -> int:
    """Workspace of one static product: rows in, accumulator, rows out."""
    columns, outputs = law.padded(linear.columns, linear.rows)
    results = 2 * law.allocation(4 * rows * outputs) if route.exact else law.allocation(2 * rows * outputs)
    return law.allocation(rows * columns) + results


def _whole_bytes(
    decoder: Decoder,
    tensors: Mapping[str, TensorRange],
    placement: Placement,
    law: ChipLaw,
    route: MatmulRoute,
    room: Room,
) -> int:
    """Tables, keys and values, rotary tables, activations and the output matrix's workspace."""
    tables = [tensor for name, tensor in tensors.items() if name.split(".")[0] in ("embedding", "output", "final_norm")]
    matrices = sum(tensor.name.endswith(".tiles") for tensor in tables)
    columns, outputs = law.padded(decoder.hidden_size, decoder.vocab_size)
    vectors = sum(law.allocation(tensor.nbytes) for tensor in tables if not tensor.name.endswith(".tiles"))
    pages = pages_for(room.tokens, law.page_tokens) * law.page_tokens // PAGE_TOKENS
    ropes = {attention.rope for attention in decoder.attentions}
    rows = max(length for length in room.lengths if length <= HEAD_ROWS)
    return (
        matrices * law.allocation(columns * outputs)
        + 2 * vectors  # those of the output matrix lie beside each of its runs as well
        + pages * page_bytes(decoder.attentions)
        + sum(room.positions * rope.dim * FLOAT_BYTES for rope in ropes)
        + activation_bytes(decoder, placement, room.lengths[-1], room.window)
        + room.lengths[-1] * decoder.hidden_size * FLOAT_BYTES  # states
        + 2 * _product_bytes(law, route, decoder.output, rows)
        + 3 * rows * decoder.vocab_size * FLOAT_BYTES
        + SMALL_BYTES
    )
