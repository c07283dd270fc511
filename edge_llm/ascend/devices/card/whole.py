"""The weights of a model that lies on a card: layers, last norm and output matrix; the embedding stays with the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edge_llm.ascend.devices.card.layers import CardLayer, CardLinear, FloatLinear
from edge_llm.ascend.devices.card.linears import Loader, NpuBlock, NpuLinear, begin, finish
from edge_llm.ascend.devices.card_weights import CardSlot, CardWeights, Load, output_blocks
from edge_llm.ascend.npu.runtime import run
from edge_llm.errors import DeviceError
from edge_llm.formats.layout import KEY_OFFSET
from edge_llm.models.layer import Decoder
from edge_llm.quant.turning import turned
from edge_llm.schemes.base import Weight
from edge_llm.schemes.expanding import expanded
from edge_llm.schemes.float16 import Float16Weight
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.weights.base import Weights
from kernels.layout import unpack_tiles

if TYPE_CHECKING:
    from torch import Tensor


def load_whole(loader: Loader) -> Load[NpuLinear]:
    """Puts all of a layer on the card."""

    def load(host: Weights, index: int, slot: CardSlot[NpuLinear]) -> NpuBlock:
        traffic = begin(slot)
        block = expanded(host.use(index))
        linears = {name: _clipped(linear) for name, linear in block.linears.items()}
        staged = {name: _stage(loader, traffic.staging, name, linear) for name, linear in linears.items()}
        gains = {name: loader.stage(traffic.staging, name, gain) for name, gain in block.gains.items() if name != KEY_OFFSET}

        def work() -> None:
            traffic.layer = None  # its memory is free for the next
            made = {name: _made(loader, staged[name], linear) for name, linear in linears.items()}
            traffic.layer = CardLayer(made, {name: loader.copied(gain) for name, gain in gains.items()})

        finish(loader.runtime, traffic, work, streamed=index in host.streamed)
        return NpuBlock({}, {}, traffic=traffic)

    return load


def _clipped(linear: Weight) -> Weight:
    """``linear`` for a card, which adds no residual."""
    return linear.clipped if isinstance(linear, Int8Weight) else linear


def _stage(loader: Loader, staging: dict[str, Tensor], name: str, linear: Weight) -> dict[str, Tensor]:
    """The arrays of a linear in pinned memory."""
    if isinstance(linear, Float16Weight):
        arrays = {"weight": linear.weight} | ({} if linear.bias is None else {"bias": linear.bias.astype(np.float16)})
        return {kind: loader.stage(staging, f"{name}.{kind}", array) for kind, array in arrays.items()}
    if not isinstance(linear, Int8Weight):
        raise DeviceError(f"the card placement has no linears of the scheme of `{name}`; use --placement split")
    around = {"reciprocal": reciprocal(linear)}
    if linear.input_offset:
        around |= {"offset": np.full(linear.columns, linear.input_offset, np.float32)}
    if linear.turn:
        around |= {"turn": turn_matrix(linear.turn)}
    if len(linear.hot_index):
        around |= {"hot_index": linear.hot_index, "hot_weight": linear.hot_weight}
    beside = {kind: loader.stage(staging, f"{name}.{kind}", array) for kind, array in around.items()}
    return {**loader.stage_linear(staging, name, linear), **beside}


def _made(loader: Loader, staged: Mapping[str, Tensor], linear: Weight) -> CardLinear | FloatLinear:
    """The linear on the card; inside of work."""
    if isinstance(linear, Int8Weight):
        return _made_int8(loader, staged, linear)
    bias = loader.copied(staged["bias"]) if "bias" in staged else None
    return FloatLinear(loader.copied(staged["weight"]), bias)


def _made_int8(loader: Loader, staged: Mapping[str, Tensor], linear: Int8Weight) -> CardLinear:
    others = {name: loader.copied(staged[name]) for name in ("hot_index", "hot_weight", "offset", "turn") if name in staged}
    return CardLinear(loader.linear(staged, linear), loader.copied(staged["reciprocal"]), **others)


def reciprocal(linear: Int8Weight) -> np.ndarray:
    """1 / input scale of every channel behind `turn_matrix`, 0 of hot ones: float32 [K]."""
    inverse = np.float32(_turn_divisor(linear.turn)) / np.float32(linear.input_scale)
    values = np.full(linear.columns, inverse, np.float32)
    values[linear.hot_index] = 0
    return values


def turn_matrix(block: int) -> np.ndarray:
    """What a block of channels is multiplied with: float16 [block, block], the turn over a power of two near sqrt(block).

    So turned channels are about as large as the channels were, and stay in the range of float16.
    """
    return np.asarray(turned(np.eye(block, dtype=np.float32), block) / _turn_divisor(block), np.float16)


def _turn_divisor(block: int) -> float:
    return 2.0 ** (max(block, 1).bit_length() // 2)


class WholeWeights(CardWeights[NpuLinear]):
    """All weights of ``decoder`` on a card, but for the embedding."""

    def __init__(self, host: Weights, loader: Loader, decoder: Decoder) -> None:
        self.output = _output_matrix(loader, decoder, output_blocks(host, decoder))
        norm = loader.stage({}, "final_norm", host.head.gains["final_norm"])
        self.gains = {"final_norm": run(loader.runtime, lambda: loader.copied(norm))}
        host.forget_tables()
        super().__init__(host, load_whole(loader), len(decoder.layers))


def _output_matrix(loader: Loader, decoder: Decoder, runs: Iterator[tuple[slice, Int8Weight]]) -> CardLinear:
    """The output matrix, which comes in runs of rows."""
    columns, rows = loader.calls.law.padded(decoder.output.columns, decoder.output.rows)
    weight, scale, bias = np.zeros((rows, columns), np.int8), np.zeros(rows, np.float32), np.zeros(rows, np.int32)
    hot_weight: list[np.ndarray] = []
    for at, stored in runs:
        last = part = stored.clipped
        weight[at, : part.columns] = unpack_tiles(part.tiles, part.rows, part.columns)
        scale[at] = part.rounding.scale
        hot_weight.append(part.hot_weight.copy())
        if part.rounding.bias is not None:
            bias[at] = part.rounding.bias
    arrays: dict[str, np.ndarray] = {"weight": weight, "scale": scale, "reciprocal": reciprocal(last)}
    arrays |= {} if last.bias is None else {"bias": bias}
    arrays |= {"offset": np.full(last.columns, last.input_offset, np.float32)} if last.input_offset else {}
    arrays |= {"turn": turn_matrix(last.turn)} if last.turn else {}
    if len(last.hot_index):
        arrays |= {"hot_index": last.hot_index.copy(), "hot_weight": np.concatenate(hot_weight, axis=1)}
    pinned = {name: loader.stage({}, f"output.{name}", array) for name, array in arrays.items()}
    whole = replace(last, rows=decoder.output.rows)
    return run(loader.runtime, lambda: _made_int8(loader, pinned, whole))
