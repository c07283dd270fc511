"""The weights of a model that lies on a card: layers, last norm and output matrix; the embedding stays with the host."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edge_llm.ascend.devices.card.layers import CardLayer, CardLinear, FloatLinear
from edge_llm.ascend.devices.card.linears import (
    Loader,
    NpuBlock,
    NpuLinear,
    Send,
    Stage,
    StagedLayer,
    StagedLinear,
    keep_pinned,
    load_through,
    traffic_of,
)
from edge_llm.ascend.devices.card.pinned import Pinned
from edge_llm.ascend.devices.card_weights import CardSlot, CardWeights, output_blocks
from edge_llm.ascend.npu.calls import Calls
from edge_llm.ascend.npu.chips import FRACTAL, ChipLaw, scales_rows
from edge_llm.ascend.npu.runtime import run
from edge_llm.errors import DeviceError
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.models.layer import Decoder
from edge_llm.operations.attention import KEY_OFFSET
from edge_llm.operations.glu import GLU
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.operations.norm import Norm
from edge_llm.quant.scheme import LIMIT
from edge_llm.quant.turning import turned
from edge_llm.schemes.base import BlockWeights, Weight
from edge_llm.schemes.expanding import expanded
from edge_llm.schemes.float16 import Float16Weight
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.weights.base import Weights

LARGEST = 65504
"""Of float16."""
AROUND = ("reciprocal", "hot_index", "hot_weight", "offset", "turn", "row_step")
"""Arrays of a linear that are as its `CardLinear` calls them."""


def stage_whole(loader: Loader, layers: Sequence[Layer]) -> Stage:
    """Stages all of each of ``layers``."""

    def stage(host: Weights, index: int, pinned: Pinned) -> StagedLayer:
        block, law = expanded(host.use(index)), loader.calls.law
        inputs = {linear.name: input_of(layers[index], linear, law) for linear in layers[index].linears}
        linears = {name: _stage(loader, pinned, name, linear, inputs[name]) for name, linear in block.linears.items()}
        gains = {name: loader.stage(pinned, name, gain) for name, gain in _gains(layers[index], block).items()}
        return StagedLayer(pinned, linears, gains)

    return stage


def send_whole(loader: Loader) -> Send:
    """Sends all of a layer."""

    def send(layer: StagedLayer, slot: CardSlot[NpuLinear]) -> NpuBlock:
        traffic = traffic_of(slot)

        def work() -> None:
            traffic.layer = None  # its memory is free for the next
            made = {name: _made(loader, staged) for name, staged in layer.linears.items()}
            traffic.layer = CardLayer(made, {name: loader.copied(gain) for name, gain in layer.gains.items()})

        traffic.loaded = loader.runtime.load(work, after=traffic.used)
        return NpuBlock({}, {}, traffic=traffic)

    return send


@dataclass(frozen=True)
class Input:
    """How a linear's rows come and become INT8."""

    is_float16: bool
    """They are float16 before they are rounded, else float32."""
    may_scale_rows: bool
    """Each has a scale of its own where the bundle has those."""


def input_of(layer: Layer, linear: Linear, law: ChipLaw) -> Input:
    """That of ``linear`` on a chip of ``law``."""
    writer = layer.writer(linear.reads, linear)
    rows = scales_rows(law, behind_swiglu=writer is not None and writer.KIND == GLU.KIND)
    behind_norm = writer is not None and writer.KIND == Norm.KIND
    return Input(bool(linear.turn) or not behind_norm, rows)


def _gains(layer: Layer, block: BlockWeights) -> dict[str, np.ndarray]:
    """Those of heads in float16, in which heads are."""
    of_heads = {gain.name for gain in layer.attention.gains}
    gains = {name: gain for name, gain in block.gains.items() if name != KEY_OFFSET}
    return {name: gain.astype(np.float16) if name in of_heads else gain for name, gain in gains.items()}


def _for_card(linear: Weight, given: Input) -> Weight:
    """``linear`` for a card, which adds no residual, and scales no rows of some."""
    if not isinstance(linear, Int8Weight):
        return linear
    if linear.row_scales and given.may_scale_rows:
        return linear
    return replace(linear, row_scales=False).clipped


def _stage(loader: Loader, pinned: Pinned, name: str, weight: Weight, given: Input) -> StagedLinear:
    """The arrays of a linear in pinned memory."""
    linear = _for_card(weight, given)
    if isinstance(linear, Float16Weight):
        arrays = {"weight": linear.weight} | ({} if linear.bias is None else {"bias": linear.bias.astype(np.float16)})
        staged = {kind: loader.stage(pinned, f"{name}.{kind}", array) for kind, array in arrays.items()}
        return StagedLinear(staged, linear.rows, linear.columns, by_rows=False)
    if not isinstance(linear, Int8Weight):
        raise DeviceError(f"the card placement has no linears of the scheme of `{name}`; use --placement split")
    linear, around = around_product(linear, given, loader.calls)
    return loader.stage_linear(pinned, name, linear, around)


def around_product(linear: Int8Weight, given: Input, calls: Calls) -> tuple[Int8Weight, dict[str, np.ndarray]]:
    """``linear`` with the scales that its product is given, and the arrays beside that."""
    arrays: dict[str, np.ndarray] = {"turn": turn_matrix(linear.turn)} if linear.turn else {}
    divisor = np.float32(_turn_divisor(linear.turn))
    if linear.row_scales:
        if linear.bias is not None:
            arrays["row_bias"] = linear.bias.astype(np.float16)
        linear = replace(linear, weight_scale=linear.weight_scale * divisor)
        step = np.float32(1 if calls.law.multiplies_rows else row_step(linear))
        arrays |= {} if step == 1 else {"row_step": np.array([step])}
        return replace(linear, weight_scale=linear.weight_scale / step), arrays
    arrays["reciprocal"] = found = reciprocal(linear, np.float16 if given.is_float16 else np.float32)
    if given.is_float16 and (kept := found[found > 0]).size:  # the scale is what its float16 reciprocal stands for
        linear = replace(linear, input_scale=float(divisor / np.float32(kept[0])))
    if linear.input_offset:
        arrays["offset"] = np.full(linear.columns, linear.input_offset, found.dtype)
    if len(linear.hot_index):
        arrays |= hot_arrays(linear, calls.law)
    return linear, arrays


def row_step(linear: Int8Weight) -> float:
    """The power of two by which the products of ``linear`` with rows of -127 to 127 are too large for float16, at least 1.

    A product that leaves float16 becomes the largest number in silence, and its row's scale would make it a smaller one.
    """
    sums = np.abs(linear.tiles).sum(axis=(1, 3), dtype=np.int64).reshape(-1)[: linear.rows]
    largest = LIMIT * float((sums * linear.weight_scale).max())
    return 2.0 ** max(0, math.ceil(math.log2(largest / LARGEST))) if largest else 1.0


def hot_arrays(linear: Int8Weight, law: ChipLaw) -> dict[str, np.ndarray]:
    """Hot channels, filled up with zeros to what a chip multiplies: the rows with channels that are there already."""
    multiple = FRACTAL if law.weights_are_nz else 1
    missing = -len(linear.hot_index) % multiple
    _, rows = law.padded(linear.columns, linear.rows)
    weight = np.pad(linear.hot_weight, ((0, missing), (0, rows - linear.rows)))
    return {"hot_index": np.pad(linear.hot_index, (0, missing), mode="edge"), "hot_weight": weight}


def _made(loader: Loader, staged: StagedLinear) -> CardLinear | FloatLinear:
    """The linear on the card; inside of work."""
    if "scale" in staged.arrays:
        return _made_int8(loader, staged)
    bias = loader.copied(staged.arrays["bias"]) if "bias" in staged.arrays else None
    return FloatLinear(loader.calls.to_multiply(loader.copied(staged.arrays["weight"])), bias)


def _made_int8(loader: Loader, staged: StagedLinear) -> CardLinear:
    calls, arrays = loader.calls, staged.arrays
    others = {name: loader.copied(arrays[name]) for name in AROUND if name in arrays}
    others |= {name: calls.to_multiply(others[name]) for name in ("hot_weight", "turn") if name in others}
    others |= {"bias": loader.copied(arrays["row_bias"])} if "row_bias" in arrays else {}
    return CardLinear(loader.linear(staged), by_rows=staged.by_rows, **others)


def reciprocal(linear: Int8Weight, kind: Any = np.float32) -> np.ndarray:
    """1 / input scale of every channel behind `turn_matrix`, 0 of hot ones: [K]."""
    inverse = np.float32(_turn_divisor(linear.turn)) / np.float32(linear.input_scale)
    values = np.full(linear.columns, inverse, kind)
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
        norm = loader.stage(loader.pinned(), "final_norm", host.head.gains["final_norm"])
        self.gains = {"final_norm": run(loader.runtime, lambda: loader.copied(norm))}
        host.forget_tables()
        stage, send = stage_whole(loader, decoder.layers), send_whole(loader)
        super().__init__(host, load_through(loader, stage, send), len(decoder.layers), keep_pinned(loader, stage, send))


def _output_matrix(loader: Loader, decoder: Decoder, runs: Iterator[tuple[slice, Int8Weight]]) -> CardLinear:
    """The output matrix, which comes in runs of rows."""
    law = loader.calls.law
    by_rows = scales_rows(law, behind_swiglu=False) and law.multiplies_rows  # else each of its runs had a step of its own
    given = Input(bool(decoder.output.turn), by_rows)
    columns, rows = law.padded(decoder.output.columns, decoder.output.rows)
    weight, scale = np.zeros((rows, columns), np.int8), np.zeros(rows, np.float32)
    vectors: dict[str, np.ndarray] = {}
    hot_weight: list[np.ndarray] = []
    beside: dict[str, np.ndarray] = {}
    for at, stored in runs:
        part = _for_card(stored, given)
        assert isinstance(part, Int8Weight)
        part, beside = around_product(part, given, loader.calls)
        last = part
        weight[at, : part.columns] = unpack_tiles(part.tiles, part.rows, part.columns)
        scale[at] = part.rounding.scale
        hot_weight.append(part.hot_weight.copy())
        found = {"bias": loader.int32_bias(part, part.rows), "row_bias": beside.get("row_bias")}
        for name, array in found.items():
            if array is not None:
                vectors.setdefault(name, np.zeros(rows, array.dtype))[at] = array
    whole = replace(last, rows=decoder.output.rows, hot_weight=np.concatenate(hot_weight, axis=1))
    arrays = beside | {"weight": weight, "scale": scale} | vectors
    if "hot_index" in arrays:
        arrays |= hot_arrays(whole, law)
    if "row_bias" in arrays:
        arrays["row_bias"] = arrays["row_bias"][: whole.rows]
    pinned = loader.pinned()
    held = {name: loader.stage(pinned, f"output.{name}", array) for name, array in arrays.items()}
    staged = StagedLinear(held, whole.rows, whole.columns, whole.row_scales)
    return run(loader.runtime, lambda: _made_int8(loader, staged))
