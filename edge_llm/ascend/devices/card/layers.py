"""A decoder on a card: each operation of a layer's description as calls of the chip's operators.

The residual stream is float32; products, attention and SwiGLU are float16, as the chip gives them.  A linear is

    quantized = round(turn(x) * reciprocal);  y = quant_matmul(quantized) + x[:, hot] @ hot_weight

where a turn is a product with a matrix of blocks; queries and keys are not turned, which changes no score.  Hot channels
stay in float16.  What else exceeds the input scale, a wider one than where the residual is added back, is cut off, and counted
in prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge_llm.ascend.devices.card.key_forms import Attend, KeyForm, LayerKeys
from edge_llm.ascend.devices.card.linears import NpuLinear
from edge_llm.ascend.npu.calls import Calls
from edge_llm.models.layer import HIDDEN, Attention, Layer, Linear, Norm, Rope, SwiGLU

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 127.5
"""Of an input over its scale, what INT8 holds."""


@dataclass(frozen=True)
class CardLinear:
    """A linear on a card: the INT8 product, and what goes around it; unpadded, N rows and K columns."""

    product: NpuLinear
    reciprocal: Tensor
    """float32 [K]: 1 / input scale, 0 for hot channels and padding."""
    hot_index: Tensor | None = None
    """int32 [J]."""
    hot_weight: Tensor | None = None
    """float16 [J, N]."""
    offset: Tensor | None = None
    """float32 [K]: steps that are added to the rounded input."""
    turn: Tensor | None = None
    """float16 [p, p]: what blocks of p channels are multiplied with first; `reciprocal` is of the result."""


@dataclass(frozen=True)
class FloatLinear:
    """A linear that stays in float16: weight [K, N], bias [N]."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class CardLayer:
    """A layer's weights on a card, by the names of its description."""

    linears: Mapping[str, CardLinear | FloatLinear]
    gains: Mapping[str, Tensor]
    """float32."""


@dataclass(frozen=True)
class Tokens:
    """The rows that go through a layer."""

    angles: Mapping[Rope, tuple[Tensor, Tensor]]
    """cos and sin of every row, for each rotary embedding: float16 [T, D]."""
    slots: Tensor
    """int32 [T]."""
    attend: Attend


Count = Callable[["Tensor", "Tensor"], None]
"""Sees x float32 [T, K] and the reciprocals [K] of every linear, to count what is cut off."""


def count_nothing(x: Tensor, reciprocal: Tensor) -> None:
    """For steps, where counting would launch several operators more for every linear."""


class Clipped:
    """How many inputs of linears were cut off; ``total`` is int64 [1] on the card."""

    def __init__(self, total: Tensor) -> None:
        self.total = total

    def add(self, x: Tensor, reciprocal: Tensor) -> None:
        """Count those of x float32 [T, K]; inside of work."""
        self.total += (x * reciprocal).abs().gt(LARGEST).sum()


@dataclass(frozen=True)
class Layers:
    """Runs layers with ``calls``."""

    calls: Calls
    keys: KeyForm
    ropes: Mapping[Rope, tuple[Tensor, Tensor]]
    """cos and sin of every position: float16 [positions, D]."""
    shadow: bool = True
    count: Count = count_nothing

    def angles(self, positions: Tensor) -> dict[Rope, tuple[Tensor, Tensor]]:
        """Those of rows at ``positions`` int32 [T]; inside of work."""
        ropes = self.ropes.items()
        return {rope: (cos.index_select(0, positions), sin.index_select(0, positions)) for rope, (cos, sin) in ropes}

    def run(self, layer: Layer, weights: CardLayer, hidden: Tensor, keys: LayerKeys, tokens: Tokens) -> Tensor:
        """The hidden states float32 [T, hidden size] behind ``layer``."""
        buffers = {HIDDEN: hidden}
        for operation in layer.operations:
            if isinstance(operation, Norm):
                buffers[operation.writes] = self.norm(operation, weights.gains, buffers[operation.reads])
            elif isinstance(operation, Linear):
                buffers[operation.writes] = self._linear(operation, weights, buffers)
            elif isinstance(operation, Attention):
                qkv = _float16(buffers[operation.reads])
                buffers[operation.writes] = self._attention(operation, weights, qkv, keys, tokens)
            elif isinstance(operation, SwiGLU):
                buffers[operation.writes] = self.calls.swiglu(_float16(buffers[operation.reads]))
        return buffers[HIDDEN]

    def norm(self, norm: Norm, gains: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """float32 [T, K]."""
        return self.calls.rms_norm(_float32(x), gains[norm.gain.name], norm.eps)

    def product(self, weight: CardLinear | FloatLinear, x: Tensor) -> Tensor:
        """float16 [T, N] of x [T, K]."""
        if isinstance(weight, FloatLinear):
            y = _float16(x) @ weight.weight
            return y if weight.bias is None else y + weight.bias
        y = self._int8(weight, _float32(x))
        if weight.hot_index is None or weight.hot_weight is None or not self.shadow:
            return y
        return y.addmm(_float16(x.index_select(1, weight.hot_index)), weight.hot_weight)

    def _int8(self, weight: CardLinear, x: Tensor) -> Tensor:
        product = weight.product
        if weight.turn is not None:
            x = _float32((_float16(x).reshape(-1, len(weight.turn)) @ weight.turn).reshape(x.shape))
        if weight.offset is None:  # what an offset moves is another tool's choice
            self.count(x, weight.reciprocal)
        quantized = self.calls.quantize(x, weight.reciprocal, weight.offset)
        missing = product.weight.shape[0] - product.columns
        if missing:
            quantized = _pad(quantized, missing)
        y = self.calls.quant_matmul(quantized, product.weight, product.scale, product.bias)
        return y if y.shape[1] == product.rows else y[:, : product.rows]

    def _linear(self, linear: Linear, weights: CardLayer, buffers: Mapping[str, Tensor]) -> Tensor:
        y = self.product(weights.linears[linear.name], buffers[linear.reads])
        return y if not linear.adds else _float32(buffers[linear.adds]) + _float32(y)

    def _attention(
        self, attention: Attention, weights: CardLayer, qkv: Tensor, keys: LayerKeys, tokens: Tokens
    ) -> Tensor:
        q_size, kv_size, size = attention.q_size, attention.kv_size, attention.head_dim
        q, k, v = (part.contiguous() for part in qkv.split((q_size, kv_size, kv_size), dim=1))
        if attention.q_norm is not None and attention.k_norm is not None:
            q = self._head_norm(q, weights.gains[attention.q_norm.name], attention)
            k = self._head_norm(k, weights.gains[attention.k_norm.name], attention)
        rows = len(q)
        q, k = q.view(rows, attention.heads, size), k.view(rows, attention.kv_heads, size)
        q, k = self.calls.rotate(q, k, *tokens.angles[attention.rope])
        self.keys.write(keys, k, v.view(k.shape), tokens.slots)
        return tokens.attend(q, keys, attention).reshape(rows, q_size)

    def _head_norm(self, x: Tensor, gain: Tensor, attention: Attention) -> Tensor:
        heads = _float32(x).view(-1, attention.head_dim)
        return _float16(self.calls.rms_norm(heads, gain, attention.eps)).view(x.shape)


def _pad(x: Tensor, columns: int) -> Tensor:
    """``x`` [T, K] with ``columns`` columns of zeros behind."""
    import torch

    return torch.cat((x, torch.zeros((len(x), columns), dtype=x.dtype, device=x.device)), dim=1)


def _float16(x: Any) -> Any:
    import torch

    return x.to(torch.float16)


def _float32(x: Any) -> Any:
    import torch

    return x.to(torch.float32)
