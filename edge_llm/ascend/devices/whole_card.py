"""A model that lies on an emulated card as a whole: layers, embedding, output matrix and rotary tables in card memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain

import numpy as np

from edge_llm.ascend.devices.card_memory import CardArray, CardMemory
from edge_llm.ascend.devices.card_weights import (
    CardBlock,
    CardSlot,
    CardWeights,
    Keep,
    Load,
    copied,
    embedding_runs,
    output_blocks,
)
from edge_llm.ascend.devices.emulated_chip import CardLinear, EmulatedChip
from edge_llm.kernels.types import TILE_CHANNELS, TILE_DEPTH
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables, rope_tables
from edge_llm.operations.attention import Rope
from edge_llm.operations.linear import Linear
from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.expanding import expanded
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.weights.base import Weights


class CardRope(RopeTables):
    """The rotary tables of ``ropes`` in card memory."""

    def __init__(self, positions: int, ropes: Iterable[Rope], memory: CardMemory) -> None:
        super().__init__(positions)
        for rope in ropes:
            cos, sin = rope_tables(rope, positions)
            self._tables[rope] = memory.upload(cos).values, memory.upload(sin).values


def load_whole(chip: EmulatedChip) -> Load[CardLinear]:
    """Puts all of a layer into the memory of ``chip``."""

    def load(host: Weights, index: int, slot: CardSlot[CardLinear]) -> CardBlock[CardLinear]:
        return _put(chip, expanded(host.use(index)), slot)

    return load


def keep_whole(chip: EmulatedChip) -> Keep[CardLinear]:
    """Keeps all of a layer for `load_whole`."""
    return lambda host, index: partial(_put, chip, copied(expanded(host.use(index))))


def _put(chip: EmulatedChip, block: BlockWeights, slot: CardSlot[CardLinear]) -> CardBlock[CardLinear]:
    _clear(chip, slot, but=block.tensors)
    for name, array in block.tensors.items():
        slot.tensors[name] = chip.memory.renewed(slot.tensors.get(name), array)
    moved = block.moved({name: array.values for name, array in slot.tensors.items()})
    for name, linear in moved.linears.items():
        if isinstance(linear, Int8Weight):
            slot.linears[name] = chip.load(linear, slot.tensors[f"{name}.tiles"].view())
    return CardBlock(moved.linears, moved.gains, card=dict(slot.linears))


def _clear(chip: EmulatedChip, slot: CardSlot[CardLinear], but: Mapping[str, np.ndarray]) -> None:
    """Free what the layer before had in ``slot``, but for tensors of the names in ``but``, over which the next are copied."""
    for card in slot.linears.values():
        chip.free(card)
    slot.linears.clear()
    for name in [name for name in slot.tensors if name not in but]:
        chip.memory.free(slot.tensors.pop(name))


class WholeCardWeights(CardWeights[CardLinear]):
    """All weights of ``decoder`` in the memory of ``chip``; ``host`` is not needed any more unless layers are streamed."""

    def __init__(self, host: Weights, chip: EmulatedChip, decoder: Decoder) -> None:
        self._embedding = output = _table(chip, decoder.output, embedding_runs(host))
        host.forget_tables()  # the runs of the output matrix take their memory
        if not decoder.tied:
            output = _table(chip, decoder.output, output_blocks(host, decoder))
        norm = {name: chip.memory.upload(vector).values for name, vector in host.head.gains.items()}
        on_chip = chip.load(output, CardArray(output.tiles, 0))
        self._output = slice(0, output.rows), CardBlock({"output": output}, norm, card={"output": on_chip})
        host.forget_tables()
        super().__init__(host, load_whole(chip), len(decoder.layers), keep_whole(chip))
        self.head = BlockWeights({}, norm)

    @property
    def nbytes(self) -> int:
        return super().nbytes if self.streamed else 0

    def embedding_rows(self, tokens: np.ndarray) -> tuple[Int8Weight, np.ndarray]:
        return self._embedding, tokens

    def head_blocks(self) -> Iterator[tuple[slice, BlockWeights]]:
        return iter([self._output])  # as a whole: what limits K of a product does not limit N


def _table(chip: EmulatedChip, table: Linear, parts: Iterator[tuple[slice, Int8Weight]]) -> Int8Weight:
    """The matrix ``table``, which comes in runs of rows, in card memory."""
    memory, rows = chip.memory, table.rows
    columns, outputs = chip.law.padded(table.columns, rows)
    tiles = memory.allocate((outputs // TILE_CHANNELS, columns // TILE_DEPTH, TILE_CHANNELS, TILE_DEPTH), np.int8)
    _, first = begun = next(parts)
    hot = len(first.hot_index)
    weight_scale, row_sum = memory.allocate((rows,), np.float32), memory.allocate((rows,), np.int32)
    hot_weight = memory.allocate((hot, rows), np.float16)
    bias = None if first.bias is None else memory.allocate((rows,), np.float32)
    for at, part in chain([begun], parts):
        panel = at.start // TILE_CHANNELS
        memory.copy_in(part.tiles, tiles.view(slice(panel, panel + len(part.tiles))))
        memory.copy_in(part.weight_scale, weight_scale.view(at))
        memory.copy_in(part.row_sum, row_sum.view(at))
        memory.copy_in(part.hot_weight, hot_weight.view((slice(None), at)))
        if bias is not None and part.bias is not None:
            memory.copy_in(part.bias, bias.view(at))
    return Int8Weight(
        tiles.values,
        rows=rows,
        columns=table.columns,
        input_scale=first.input_scale,
        weight_scale=weight_scale.values,
        row_sum=row_sum.values,
        hot_index=memory.upload(first.hot_index).values,
        hot_weight=hot_weight.values,
        bias=None if bias is None else bias.values,
        residual=first.residual,
        turn=first.turn,
        input_offset=first.input_offset,
    )
