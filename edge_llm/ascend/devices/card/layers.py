"""A decoder on a card: each operation of a layer's description as calls of the chip's operators.

The residual stream is float32; products, attention and SwiGLU are float16, as the chip gives them.  A linear is one of

    quantized = round(turn(x) * reciprocal);  y = quant_matmul(quantized) + x[:, hot] @ hot_weight
    quantized = round(turn(x) / s);           y = quant_matmul(quantized) * s          s = the largest of each row / 127

where a turn is a product with a matrix of blocks; queries and keys are not turned, which changes no score.  Which one is said
by the chip's law.  Of the first, hot channels stay in float16; what else exceeds the input scale, a wider one than where the
residual is added back, is cut off, and counted in some chunks of prompts.  Of the second, nothing is cut off.

What is added to the residual stream waits for the norm that reads the sum: one operator does both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge_llm.ascend.devices.card.key_forms import Attend, KeyForm, LayerKeys
from edge_llm.ascend.devices.card.linears import NpuLinear
from edge_llm.ascend.npu.calls import Calls
from edge_llm.models.layer import Decoder
from edge_llm.operations.attention import Attention, Rope
from edge_llm.operations.base import HIDDEN, Operation
from edge_llm.operations.glu import GLU
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.operations.norm import Norm

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 127.5
"""Of an input over its scale, what INT8 holds."""


@dataclass(frozen=True)
class CardLinear:
    """A linear on a card: the INT8 product, and what goes around it; unpadded, N rows and K columns."""

    product: NpuLinear
    reciprocal: Tensor | None = None
    """[K]: 1 / input scale, 0 for hot channels; None where rows have scales.  float32 for rows of norms that are not turned,
    else float16, as the rows are."""
    hot_index: Tensor | None = None
    """int32 [J]."""
    hot_weight: Tensor | None = None
    """float16 [J, N], N padded as the product's."""
    offset: Tensor | None = None
    """[K], of the type of `reciprocal`: steps that are added to the rounded input."""
    turn: Tensor | None = None
    """float16 [p, p]: what blocks of p channels are multiplied with first; `reciprocal` is of the result."""
    by_rows: bool = False
    """Every row has a scale of its own, which the product's scale leaves out."""
    row_step: Tensor | None = None
    """float32 [1]: what the scales of rows are multiplied with, where the product is divided by it to stay in float16."""
    bias: Tensor | None = None
    """float16 [N], added behind the row's scale where the product cannot."""


@dataclass(frozen=True)
class FloatLinear:
    """A linear that stays in float16: weight [K, N], in fractals where the chip multiplies those, bias [N]."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class CardLayer:
    """A layer's weights on a card, by the names of its description."""

    linears: Mapping[str, CardLinear | FloatLinear]
    gains: Mapping[str, Tensor]
    """float32; those of heads float16, as heads are."""


@dataclass(frozen=True)
class Sum:
    """A residual stream, and what is to be added to it: both float32 [T, hidden size]."""

    stream: Tensor
    added: Tensor


Stream = Any
"""The residual stream: an array float32 [T, hidden size], or a `Sum`."""


@dataclass(frozen=True)
class Tokens:
    """The rows that go through a layer."""

    angles: Mapping[Rope, tuple[Tensor, Tensor]]
    """cos and sin of every row, for each rotary embedding: float16 [T, D]."""
    slots: Tensor
    """int32 [T]."""
    attend: Attend


Count = Callable[["Tensor", "Tensor"], None]
"""Sees x [T, K] and the reciprocals [K] of every linear that has one scale for all rows, to count what is cut off."""


def count_nothing(x: Tensor, reciprocal: Tensor) -> None:
    """For steps, where counting would launch several operators more for every linear."""


def look_at_nothing(x: Tensor) -> None:
    """The same, and for chips whose infinities show in the last hidden states."""


LAST_BUT_ONE = 65472
"""Of the numbers of float16; the one behind it is what a larger number becomes where a chip saturates."""


COUNTED = 8
"""Of so many chunks of prompts one is looked at, the first among them: counting takes five operators for every linear."""


class Clipped:
    """How many inputs of linears were cut off; ``total`` is int64 [1] on the card, of the chunks that were looked at."""

    def __init__(self, total: Tensor) -> None:
        self.total = total
        self._chunks = 0
        self._rows = 0
        self._rows_seen = 0

    def looks_at(self, rows: int) -> bool:
        """Whether the next chunk, which has so many rows, is to be counted."""
        looks = self._chunks % COUNTED == 0
        self._chunks += 1
        self._rows += rows
        self._rows_seen += rows if looks else 0
        return looks

    def in_all(self, counted: int) -> int:
        """Of all chunks, where ``counted`` were found in those that were looked at."""
        return round(counted * self._rows / max(1, self._rows_seen))

    def add(self, x: Tensor, reciprocal: Tensor) -> None:
        """Count those of x [T, K]; inside of work."""
        self.total += (x * reciprocal).abs().gt(LARGEST).sum()

    def look(self, x: Tensor) -> None:
        """Count what float16 has no number for: of x float32 that will be cast, or float16 that has been cut off already."""
        self.total += x.abs().gt(LAST_BUT_ONE).sum()


@dataclass(frozen=True)
class Layers:
    """Runs layers with ``calls``."""

    calls: Calls
    keys: KeyForm
    ropes: Mapping[Rope, tuple[Tensor, Tensor]]
    """cos and sin of every position: float16 [positions, D]."""
    shadow: bool = True
    count: Count = count_nothing
    look: Callable[[Tensor], None] = look_at_nothing
    """Sees what goes into linears and what comes out of them, where the chip shows no infinity."""

    def angles(self, positions: Tensor) -> dict[Rope, tuple[Tensor, Tensor]]:
        """Those of rows at ``positions`` int32 [T]; inside of work."""
        ropes = self.ropes.items()
        return {rope: (cos.index_select(0, positions), sin.index_select(0, positions)) for rope, (cos, sin) in ropes}

    def run(self, layer: Layer, weights: CardLayer, hidden: Stream, keys: LayerKeys, tokens: Tokens) -> Stream:
        """The hidden states behind ``layer``."""
        at = _At(self, weights, keys, tokens, {HIDDEN: hidden})
        for operation in layer.operations:
            at.buffers[operation.writes] = _RUN[type(operation)](operation, at)
        return at.buffers[HIDDEN]

    def norm(self, norm: Norm, gains: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """float32 [T, K]."""
        return self.normed(norm, gains[norm.gain.name], x)[1]

    def product(self, weight: CardLinear | FloatLinear, x: Tensor, wide: bool = False) -> Tensor:
        """[T, N] of x [T, K]: float32 where ``wide``, else float16."""
        self.look(x)
        y = self._product(weight, x, wide)
        self.look(y)
        return y

    def _product(self, weight: CardLinear | FloatLinear, x: Tensor, wide: bool) -> Tensor:
        if isinstance(weight, FloatLinear):
            y = self.calls.multiply(_float16(x), weight.weight)
            y = y if weight.bias is None else y + weight.bias
            return _float32(y) if wide else y
        if weight.by_rows:
            return self._by_rows(weight, x, wide)
        y = self._static(weight, x)
        if weight.hot_index is not None and weight.hot_weight is not None and self.shadow:
            hot = _float16(x.index_select(1, weight.hot_index))
            y = _sum(y, self.calls.multiply(hot, weight.hot_weight), wide)
        y = y if y.shape[1] == weight.product.rows else y[:, : weight.product.rows]
        return _float32(y) if wide else y

    def _static(self, weight: CardLinear, x: Tensor) -> Tensor:
        """float16 [T, padded N] under the one scale of all rows."""
        assert weight.reciprocal is not None
        x = self._turned(weight, x).to(weight.reciprocal.dtype)
        if weight.offset is None:  # what an offset moves is another tool's choice
            self.count(x, weight.reciprocal)
        quantized = _filled(weight.product, self.calls.quantize(x, weight.reciprocal, weight.offset))
        return self._int8(weight.product, quantized)

    def _by_rows(self, weight: CardLinear, x: Tensor, wide: bool) -> Tensor:
        """The same under a scale of each row."""
        quantized, scales = self.calls.quantize_rows(_filled(weight.product, self._turned(weight, _float16(x))))
        if self.calls.law.multiplies_rows:
            y = self._int8(weight.product, quantized, scales)[:, : weight.product.rows]
            y = y if weight.bias is None else y + weight.bias
            return _float32(y) if wide else y
        scales = scales if weight.row_step is None else scales * weight.row_step
        # of a row of zeros 0, which makes its product 0 whatever became of 0 / 0
        y = self._int8(weight.product, quantized)[:, : weight.product.rows]
        self.look(y)  # float16, and smaller behind the scales of rows
        y = _product(y, scales[:, None], wide)
        return y if weight.bias is None else y + weight.bias

    def _turned(self, weight: CardLinear, x: Tensor) -> Tensor:
        if weight.turn is None:
            return x
        return self.calls.multiply(_float16(x).reshape(-1, len(weight.turn)), weight.turn).reshape(x.shape)

    def _int8(self, product: NpuLinear, quantized: Tensor, row_scales: Tensor | None = None) -> Tensor:
        return self.calls.quant_matmul(quantized, product.weight, product.scale, product.bias, row_scales)

    def normed(self, norm: Norm, gain: Tensor, x: Stream) -> tuple[Tensor, Tensor]:
        """What is normed, and its norm: float32 [T, K]."""
        if isinstance(x, Sum):
            return self.calls.add_rms_norm(x.stream, x.added, gain, norm.eps)
        return x, self.calls.rms_norm(_float32(x), gain, norm.eps)

    def attention(
        self, attention: Attention, weights: CardLayer, qkv: Tensor, keys: LayerKeys, tokens: Tokens
    ) -> Tensor:
        """[T, heads * head_dim] of qkv float16 [T, q | k | v]."""
        q_size, kv_size, size = attention.q_size, attention.kv_size, attention.head_dim
        q, k, v = _split(qkv, (q_size, kv_size, kv_size))
        if attention.q_norm is not None and attention.k_norm is not None:
            q = self._head_norm(q, weights.gains[attention.q_norm.name], attention)
            k = self._head_norm(k, weights.gains[attention.k_norm.name], attention)
        rows = len(q)
        q, k = q.view(rows, attention.heads, size), k.view(rows, attention.kv_heads, size)
        q, k = self.calls.rotate(q, k, *tokens.angles[attention.rope])
        self.keys.write(keys, k, v.view(k.shape), tokens.slots)
        return tokens.attend(q, keys, attention).reshape(rows, q_size)

    def _head_norm(self, x: Tensor, gain: Tensor, attention: Attention) -> Tensor:
        return self.calls.rms_norm(x.view(-1, attention.head_dim), gain, attention.eps).view(x.shape)


@dataclass(frozen=True)
class _At:
    """A layer that runs: what its operations find."""

    layers: Layers
    weights: CardLayer
    keys: LayerKeys
    tokens: Tokens
    buffers: dict[str, Any]


def _norm(norm: Norm, at: _At) -> Tensor:
    at.buffers[norm.reads], normed = at.layers.normed(norm, at.weights.gains[norm.gain.name], at.buffers[norm.reads])
    return normed


def _linear(linear: Linear, at: _At) -> Stream:
    y = at.layers.product(at.weights.linears[linear.name], at.buffers[linear.reads], wide=bool(linear.adds))
    return Sum(_float32(settled(at.buffers[linear.adds])), y) if linear.adds else y


def _attention(attention: Attention, at: _At) -> Tensor:
    return at.layers.attention(attention, at.weights, _float16(at.buffers[attention.reads]), at.keys, at.tokens)


def _swiglu(swiglu: GLU, at: _At) -> Tensor:
    return at.layers.calls.swiglu(_float16(at.buffers[swiglu.reads]))


_RUN: Mapping[type[Operation], Callable[[Any, _At], Any]] = {
    Norm: _norm, Linear: _linear, Attention: _attention, GLU: _swiglu,
}  # fmt: skip
"""How a card does each kind of operation."""


def missing(decoder: Decoder) -> str | None:
    """What a card cannot do of ``decoder``, in a few words; None: it can do all."""
    found = (_missing(operation) for layer in decoder.layers for operation in (*layer.operations, decoder.norm))
    return next((what for what in found if what is not None), None)


def _missing(operation: Operation) -> str | None:
    if type(operation) not in _RUN:
        return f"a card does no `{operation.KIND}`"
    if isinstance(operation, Norm) and not operation.fits_linears:
        return "a card does no norms that are added, or that take the mean off"
    if isinstance(operation, GLU) and operation.activation != "silu":
        return f"a card does no gate `{operation.activation}`"
    if isinstance(operation, Attention) and not operation.is_plain:
        return "a card does no attention with windows, caps, sinks, scales or norms of its own"
    return None



def settled(hidden: Stream) -> Tensor:
    """The residual stream as one array."""
    return hidden.stream + hidden.added if isinstance(hidden, Sum) else hidden


def _split(x: Tensor, widths: tuple[int, ...]) -> list[Tensor]:
    """Columns of x [T, K], each as an array of its own: those of one row lie so already, of more one operator copies all."""
    import torch

    if len(x) == 1:
        return list(x.split(widths, dim=1))
    parts = [torch.empty((len(x), width), dtype=x.dtype, device=x.device) for width in widths]
    torch.split_with_sizes_copy(x, widths, dim=1, out=parts)
    return parts


def _sum(x: Tensor, y: Tensor, wide: bool) -> Tensor:
    """x + y of float16 arrays, by one operator also where the result is float32."""
    import torch

    return torch.add(x, y, out=torch.empty(x.shape, dtype=torch.float32, device=x.device)) if wide else x + y


def _product(x: Tensor, rows: Tensor, wide: bool) -> Tensor:
    """x float16 [T, N] times rows float32 [T, 1], by one operator whatever the type of the result."""
    import torch

    kind = torch.float32 if wide else torch.float16
    return torch.mul(x, rows, out=torch.empty(x.shape, dtype=kind, device=x.device))


def _filled(product: NpuLinear, x: Tensor) -> Tensor:
    """x [T, K] with columns of zeros behind, as many as ``product`` has more."""
    import torch

    missing = product.weight.shape[0] - product.columns
    return torch.cat((x, torch.zeros((len(x), missing), dtype=x.dtype, device=x.device)), dim=1) if missing else x


def _float16(x: Any) -> Any:
    import torch

    return x.to(torch.float16)


def _float32(x: Any) -> Any:
    import torch

    return x.to(torch.float32)
