"""INT8 linears in the memory of a card, and how they get there: at once, or streamed through slots beside the computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_llm.ascend.devices.card.pinned import Pinned, Staged
from edge_llm.ascend.devices.card_weights import Bring, CardBlock, CardSlot, Keep, Load, int8_linears, rounded_linears
from edge_llm.ascend.npu.calls import Calls
from edge_llm.ascend.npu.runtime import Completion, Runtime
from edge_llm.errors import NumericError
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.weights.base import Weights

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class NpuLinear:
    """What a card needs to multiply a linear, padded with zeros; unpadded, N is ``rows`` and K is ``columns``."""

    weight: Tensor
    """int8 [K, N]."""
    scale: Tensor
    """[N]: input_scale * weight_scale, packed in int64; weight_scale float32 where the product is given scales of rows."""
    bias: Tensor | None
    """int32 [N]; float32 beside scales of rows."""
    rows: int
    columns: int


@dataclass
class Traffic:
    """What goes to and from the card memory of a slot, and the layer there."""

    loaded: Completion | None = None
    """What is in it is there."""
    used: Completion | None = None
    """The last work that reads it."""
    pinned: Pinned | None = None
    """What its contents pass through."""
    layer: Any = None
    """The `CardLayer` in it, once work has made it; None where a slot holds products alone."""


@dataclass(frozen=True)
class NpuBlock(CardBlock[NpuLinear]):
    """A layer's weights on both sides."""

    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True)
class StagedLinear:
    """The arrays of a linear in pinned memory."""

    arrays: Mapping[str, Staged]
    rows: int
    """As many outputs as it has without padding, and ``columns`` inputs."""
    columns: int
    by_rows: bool
    """Whether its rows have scales of their own."""


class Loader:
    """Copies arrays to a card; ``calls`` are those of its chip."""

    def __init__(self, runtime: Runtime, calls: Calls) -> None:
        import torch

        self.runtime = runtime
        self.calls = calls
        self._torch = torch

    def pinned(self) -> Pinned:
        """New pinned memory, without an array."""
        return Pinned(self.runtime)

    def stage(self, pinned: Pinned, name: str, array: np.ndarray) -> Staged:
        """``array`` in ``pinned`` memory.

        Raises `NumericError` for what is not finite: the card's products of INT8 would not show it.
        """
        _check_finite(name, array)
        return pinned.put(array)

    def copied(self, staged: Staged) -> Tensor:
        """A pinned array in new memory of the card; inside of work."""
        card = self._torch.empty(staged.shape, dtype=staged.dtype, device=self.runtime.device)
        staged.copy_to(self.runtime, card)
        return card

    def stage_linear(
        self, pinned: Pinned, name: str, linear: Int8Weight, beside: Mapping[str, np.ndarray] = MappingProxyType({})
    ) -> StagedLinear:
        """The arrays of a linear, padded, and those ``beside`` it in pinned memory."""
        columns, rows = self.calls.law.padded(linear.columns, linear.rows)
        weight = np.zeros((rows, columns), np.int8)
        weight[: linear.rows, : linear.columns] = unpack_tiles(linear.tiles, linear.rows, linear.columns)
        arrays = {"weight": weight, "scale": _padded(linear.rounding.scale, rows, np.float32)}
        if linear.bias is not None:
            _check_finite(f"{name}.bias", linear.bias)
        bias = self.int32_bias(linear, rows)
        arrays |= {} if bias is None else {"bias": bias}
        staged = {kind: self.stage(pinned, f"{name}.{kind}", array) for kind, array in {**arrays, **beside}.items()}
        return StagedLinear(staged, linear.rows, linear.columns, linear.row_scales)

    def int32_bias(self, linear: Int8Weight, rows: int) -> np.ndarray | None:
        """What a product adds to its sums, padded to ``rows``; None where it adds nothing."""
        if linear.bias is not None and not linear.row_scales:
            assert linear.rounding.bias is not None
            return _padded(linear.rounding.bias, rows, np.int32)
        return np.zeros(rows, np.int32) if self.calls.law.zero_bias else None

    def linear(self, staged: StagedLinear) -> NpuLinear:
        """The linear on the card; inside of work."""
        arrays = staged.arrays
        weight = self.calls.to_matmul(self.copied(arrays["weight"]))
        scale = self.copied(arrays["scale"])
        if not (staged.by_rows and self.calls.law.multiplies_rows):
            scale = self.calls.pack_scale(scale)
        bias = self.copied(arrays["bias"]) if "bias" in arrays else None
        return NpuLinear(weight, scale, bias, staged.rows, staged.columns)


def _check_finite(name: str, array: np.ndarray) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise NumericError(f"`{name}` of the model's weights is not finite, or not in the range of float16")


def _padded(values: np.ndarray, length: int, kind: Any) -> np.ndarray:
    padded = np.zeros(length, kind)
    padded[: len(values)] = values
    return padded


@dataclass(frozen=True)
class StagedLayer:
    """A layer in pinned memory as a card takes it, and what the host keeps of it."""

    pinned: Pinned
    linears: Mapping[str, StagedLinear]
    gains: Mapping[str, Staged] = field(default_factory=dict)
    here: BlockWeights = field(default_factory=lambda: BlockWeights({}, {}))


Stage = Callable[[Weights, int, Pinned], StagedLayer]
"""Lays a layer, which is in the host's memory, out in pinned memory: (weights, index, pinned memory) -> the layer there."""
Send = Callable[[StagedLayer, CardSlot[NpuLinear]], NpuBlock]
"""Gives the copies of a layer into a slot to the card, behind the last use of what was there."""


def load_through(loader: Loader, stage: Stage, send: Send) -> Load[NpuLinear]:
    """Puts layers into slots by way of pinned memory of the slot."""

    def load(host: Weights, index: int, slot: CardSlot[NpuLinear]) -> NpuBlock:
        traffic = traffic_of(slot)
        if traffic.loaded is not None:
            traffic.loaded()  # its pinned memory may be written to now
        pinned = traffic.pinned = traffic.pinned or loader.pinned()
        pinned.restart()
        block = send(stage(host, index, pinned), slot)
        if index not in host.streamed and traffic.loaded is not None:  # what stays needs no pinned memory
            traffic.loaded()
            traffic.loaded = traffic.pinned = None
        return block

    return load


def keep_pinned(loader: Loader, stage: Stage, send: Send) -> Keep[NpuLinear]:
    """Keeps layers in pinned memory of their own."""

    def keep(host: Weights, index: int) -> Bring[NpuLinear]:
        return partial(send, stage(host, index, loader.pinned()))

    return keep


def traffic_of(slot: CardSlot[NpuLinear]) -> Traffic:
    """That of ``slot``."""
    traffic: Traffic = slot.tensors.setdefault("traffic", Traffic())
    return traffic


def stage_products(loader: Loader) -> Stage:
    """Stages the INT8 linears of a layer; the host keeps the rest, and rounds what it multiplies as the card does."""

    def stage(host: Weights, index: int, pinned: Pinned) -> StagedLayer:
        linears = int8_linears(host.use(index))
        staged = {name: loader.stage_linear(pinned, name, linear) for name, linear in linears.items()}
        here = host.host_part(index)
        return StagedLayer(pinned, staged, here=replace(here, linears=rounded_linears(here.linears)))

    return stage


def send_products(loader: Loader) -> Send:
    """Sends INT8 linears."""

    def send(layer: StagedLayer, slot: CardSlot[NpuLinear]) -> NpuBlock:
        traffic = traffic_of(slot)

        def work() -> None:
            slot.linears.clear()
            for name, staged in layer.linears.items():
                slot.linears[name] = loader.linear(staged)

        traffic.loaded = loader.runtime.load(work, after=traffic.used)
        here = layer.here
        return NpuBlock(here.linears, here.gains, experts=here.experts, card=slot.linears, traffic=traffic)

    return send
