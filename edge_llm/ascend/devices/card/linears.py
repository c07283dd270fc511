"""INT8 linears in the memory of a card, and how they get there: at once, or streamed through slots beside the computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_llm.ascend.devices.card_weights import CardBlock, CardSlot, Load, int8_linears, rounded_linears
from edge_llm.ascend.npu.calls import Calls
from edge_llm.ascend.npu.runtime import Completion, Runtime
from edge_llm.errors import NumericError
from edge_llm.kernels.layout import unpack_tiles
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
    staging: dict[str, Tensor] = field(default_factory=dict)
    """Pinned arrays that its contents pass through."""
    layer: Any = None
    """The `CardLayer` in it, once work has made it; None where a slot holds products alone."""


@dataclass(frozen=True)
class NpuBlock(CardBlock[NpuLinear]):
    """A layer's weights on both sides."""

    traffic: Traffic = field(default_factory=Traffic)


class Loader:
    """Copies arrays to a card; ``calls`` are those of its chip."""

    def __init__(self, runtime: Runtime, calls: Calls) -> None:
        import torch

        self.runtime = runtime
        self.calls = calls
        self._torch = torch

    def stage(self, staging: dict[str, Tensor], name: str, array: np.ndarray) -> Tensor:
        """``array`` in pinned memory: that of the array which had this name, type and shape before, or new.

        Raises `NumericError` for what is not finite: the card's products of INT8 would not show it.
        """
        _check_finite(name, array)
        kind = self._torch.from_numpy(np.empty(0, array.dtype)).dtype
        held = staging.get(name)
        if held is None or tuple(held.shape) != array.shape or held.dtype != kind:
            held = staging[name] = self.runtime.pinned(array.shape, kind)
        held.numpy()[...] = array
        return held

    def pinned(self, array: np.ndarray) -> Tensor:
        """``array`` in pinned memory of its own."""
        return self.stage({}, "", array)

    def copied(self, host: Tensor) -> Tensor:
        """A pinned array in new memory of the card; inside of work."""
        card = self._torch.empty(tuple(host.shape), dtype=host.dtype, device=self.runtime.device)
        self.runtime.copy_in(card, host)
        return card

    def stage_linear(self, staging: dict[str, Tensor], name: str, linear: Int8Weight) -> dict[str, Tensor]:
        """The arrays of a linear, padded, in pinned memory."""
        columns, rows = self.calls.law.padded(linear.columns, linear.rows)
        weight = np.zeros((rows, columns), np.int8)
        weight[: linear.rows, : linear.columns] = unpack_tiles(linear.tiles, linear.rows, linear.columns)
        arrays = {"weight": weight, "scale": _padded(linear.rounding.scale, rows, np.float32)}
        if linear.bias is not None:
            _check_finite(f"{name}.bias", linear.bias)
        bias = self.int32_bias(linear, rows)
        arrays |= {} if bias is None else {"bias": bias}
        return {kind: self.stage(staging, f"{name}.{kind}", array) for kind, array in arrays.items()}

    def int32_bias(self, linear: Int8Weight, rows: int) -> np.ndarray | None:
        """What a product adds to its sums, padded to ``rows``; None where it adds nothing."""
        if linear.bias is not None and not linear.row_scales:
            assert linear.rounding.bias is not None
            return _padded(linear.rounding.bias, rows, np.int32)
        return np.zeros(rows, np.int32) if self.calls.law.zero_bias else None

    def linear(self, staged: Mapping[str, Tensor], linear: Int8Weight) -> NpuLinear:
        """The linear on the card; inside of work."""
        weight = self.calls.to_matmul(self.copied(staged["weight"]))
        scale = self.copied(staged["scale"])
        if not (linear.row_scales and self.calls.law.multiplies_rows):
            scale = self.calls.pack_scale(scale)
        bias = self.copied(staged["bias"]) if "bias" in staged else None
        return NpuLinear(weight, scale, bias, linear.rows, linear.columns)


def _check_finite(name: str, array: np.ndarray) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise NumericError(f"`{name}` of the model's weights is not finite, or not in the range of float16")


def _padded(values: np.ndarray, length: int, kind: Any) -> np.ndarray:
    padded = np.zeros(length, kind)
    padded[: len(values)] = values
    return padded


def load_products(loader: Loader) -> Load[NpuLinear]:
    """Puts the INT8 linears of a layer on the card; the host keeps the rest, and rounds what it multiplies as the card does."""

    def load(host: Weights, index: int, slot: CardSlot[NpuLinear]) -> NpuBlock:
        traffic = begin(slot)
        linears = int8_linears(host.use(index))
        staged = {name: loader.stage_linear(traffic.staging, name, linear) for name, linear in linears.items()}

        def work() -> None:
            slot.linears.clear()
            for name, linear in linears.items():
                slot.linears[name] = loader.linear(staged[name], linear)

        finish(loader.runtime, traffic, work, streamed=index in host.streamed)
        here = host.host_part(index)
        return NpuBlock(rounded_linears(here.linears), here.gains, card=slot.linears, traffic=traffic)

    return load


def begin(slot: CardSlot[NpuLinear]) -> Traffic:
    """The traffic of ``slot``, whose pinned arrays may be written to now."""
    traffic: Traffic = slot.tensors.setdefault("traffic", Traffic())
    if traffic.loaded is not None:
        traffic.loaded()
    return traffic


def finish(runtime: Runtime, traffic: Traffic, work: Any, *, streamed: bool) -> None:
    """Give the copies of a slot to the card, behind the last use of what was there; what stays needs no pinned memory."""
    traffic.loaded = runtime.load(work, after=traffic.used)
    if not streamed:
        traffic.loaded()
        traffic.loaded = None
        traffic.staging.clear()
