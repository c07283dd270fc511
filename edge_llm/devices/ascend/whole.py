"""The weights of a model that lies on a card: layers, last norm and output matrix; the embedding stays with the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_llm.devices.ascend.layers import CardLayer, CardLinear, FloatLinear
from edge_llm.devices.ascend.linears import Loader, NpuBlock, NpuLinear, begin, finish
from edge_llm.devices.card_weights import CardSlot, CardWeights, Load
from edge_llm.errors import DeviceError
from edge_llm.formats.layout import KEY_OFFSET
from edge_llm.models.layer import Decoder
from edge_llm.npu.runtime import made, run
from edge_llm.schemes.base import Weight
from edge_llm.schemes.float16 import Float16Weight
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.weights.base import Weights
from kernels.layout import unpack_tiles

if TYPE_CHECKING:
    from torch import Tensor

LAYER = "layer"
"""What the arrays of a block call the layer on the card."""


def load_whole(loader: Loader) -> Load[NpuLinear]:
    """Puts all of a layer on the card."""

    def load(host: Weights, index: int, slot: CardSlot[NpuLinear]) -> NpuBlock:
        traffic = begin(slot)
        block = host.use(index)
        staged = {name: _stage(loader, traffic.staging, name, linear) for name, linear in block.linears.items()}
        gains = {name: loader.stage(traffic.staging, name, gain) for name, gain in block.gains.items() if name != KEY_OFFSET}
        linears, arrays = dict(block.linears), slot.tensors.setdefault("arrays", {})

        def work() -> None:
            arrays.clear()
            made = {name: _made(loader, staged[name], linear) for name, linear in linears.items()}
            arrays[LAYER] = CardLayer(made, {name: loader.copied(gain) for name, gain in gains.items()})

        finish(loader.runtime, traffic, work, streamed=index in host.streamed)
        return NpuBlock({}, {}, arrays=arrays, traffic=traffic)

    return load


def _stage(loader: Loader, staging: dict[str, Tensor], name: str, linear: Weight) -> dict[str, Tensor]:
    """The arrays of a linear in pinned memory."""
    if isinstance(linear, Float16Weight):
        arrays = {"weight": linear.weight} | ({} if linear.bias is None else {"bias": linear.bias.astype(np.float16)})
        return {kind: loader.stage(staging, f"{name}.{kind}", array) for kind, array in arrays.items()}
    if not isinstance(linear, Int8Weight):
        raise DeviceError(f"the card placement has no linears of the scheme of `{name}`; use --placement split")
    around = {"reciprocal": reciprocal(linear)}
    if len(linear.hot_index):
        around |= {"hot_index": linear.hot_index, "hot_weight": linear.hot_weight}
    beside = {kind: loader.stage(staging, f"{name}.{kind}", array) for kind, array in around.items()}
    return {**loader.stage_linear(staging, name, linear), **beside}


def _made(loader: Loader, staged: Mapping[str, Tensor], linear: Weight) -> CardLinear | FloatLinear:
    """The linear on the card; inside of work."""
    if not isinstance(linear, Int8Weight):
        bias = loader.copied(staged["bias"]) if "bias" in staged else None
        return FloatLinear(loader.copied(staged["weight"]), bias)
    hot = {name: loader.copied(staged[name]) for name in ("hot_index", "hot_weight") if name in staged}
    return CardLinear(loader.linear(staged, linear), loader.copied(staged["reciprocal"]), **hot)


def reciprocal(linear: Int8Weight) -> np.ndarray:
    """1 / input scale of every channel, 0 of hot ones: float32 [K]."""
    values = np.full(linear.columns, np.float32(1) / np.float32(linear.input_scale), np.float32)
    values[linear.hot_index] = 0
    return values


class WholeWeights(CardWeights[NpuLinear]):
    """All weights of ``decoder`` on a card, but for the embedding."""

    def __init__(self, host: Weights, loader: Loader, decoder: Decoder) -> None:
        runs = host.embedding_blocks() if decoder.tied else ((rows, _output(block)) for rows, block in host.head_blocks())
        self.output = _output_matrix(loader, decoder, runs)
        self.gains: dict[str, Tensor] = {}
        norm = loader.stage({}, "final_norm", host.head.gains["final_norm"])
        run(loader.runtime, lambda: self.gains.update(final_norm=loader.copied(norm)))
        host.forget_tables()
        super().__init__(host, load_whole(loader), len(decoder.layers))


def _output(head: Any) -> Int8Weight:
    output = head.linears["output"]
    assert isinstance(output, Int8Weight)
    return output


def _output_matrix(loader: Loader, decoder: Decoder, runs: Iterator[tuple[slice, Int8Weight]]) -> CardLinear:
    """The output matrix, which comes in runs of rows."""
    columns, rows = loader.calls.law.padded(decoder.output.columns, decoder.output.rows)
    weight, scale, bias = np.zeros((rows, columns), np.int8), np.zeros(rows, np.float32), np.zeros(rows, np.int32)
    hot_weight: list[np.ndarray] = []
    for at, part in runs:
        last = part
        weight[at, : part.columns] = unpack_tiles(part.tiles, part.rows, part.columns)
        scale[at] = part.rounding.scale
        hot_weight.append(part.hot_weight.copy())
        if part.rounding.bias is not None:
            bias[at] = part.rounding.bias
    staged: dict[str, np.ndarray] = {"weight": weight, "scale": scale, "reciprocal": reciprocal(last)}
    staged |= {} if last.bias is None else {"bias": bias}
    if len(last.hot_index):
        staged |= {"hot_index": last.hot_index.copy(), "hot_weight": np.concatenate(hot_weight, axis=1)}
    pinned: dict[str, Tensor] = {}
    for name, array in staged.items():
        loader.stage(pinned, name, array)
    whole = Int8Weight(
        last.tiles, decoder.output.rows, decoder.output.columns, last.input_scale, last.weight_scale, last.row_sum,
        last.hot_index, last.hot_weight, last.bias,
    )  # fmt: skip
    output = made(loader.runtime, lambda: _made(loader, pinned, whole))
    assert isinstance(output, CardLinear)
    return output
