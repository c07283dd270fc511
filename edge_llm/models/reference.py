"""The whole decoder in NumPy float32: the oracle for every faster path, and what calibration runs.

Naive on purpose and read top-down; the fast paths are compared with it, never the other way round.  The same
functions serve the importer a layer at a time (`layer_forward` with ``observe``) and ``--float`` (`FloatModel`).  The importer
has them multiply in a fixed order (`SAME_BITS`), so that a bundle does not depend on the processor that it was made on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.errors import ContextOverflow, UsageError
from edge_llm.models import describe
from edge_llm.models.layer import HIDDEN, Attention, Decoder, Layer, Linear, Norm
from edge_llm.models.rope import RopeTables, Tables
from edge_llm.models.weights import (
    FloatLinear,
    LayerWeights,
    WeightSource,
    check_tensors,
    read_embedding,
    read_final_norm,
    read_layer,
    read_output,
)
from kernels import floats

Observe = Callable[[str, np.ndarray], None]

_QUERY_BLOCK = 256
"""Queries per attention block: bounds the score matrix to [heads, 256, tokens]."""


@dataclass(frozen=True)
class Arithmetic:
    """What processors do differently, in float32."""

    product: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """x [..., M, K], weight [..., N, K] -> [..., M, N]."""
    exp: Callable[[np.ndarray], np.ndarray]
    attention: Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray] | None = None
    """q [T, Hq, D] at the last T positions, k and v [Hkv, S, D], scale -> [T, Hq, D]; None: made of the two above."""


NUMPY = Arithmetic(lambda x, weight: x @ weight.swapaxes(-1, -2), np.exp)
"""By all cores; the last bits are the processor's."""
SAME_BITS = Arithmetic(floats.product, floats.exp, floats.attention)
"""By the calling thread; the same bits on every processor."""


class FloatKV:
    """Keys (after rotation) and values of one layer, float32 [kv heads, length, head_dim]; grows by doubling."""

    def __init__(self, attention: Attention) -> None:
        self.length = 0
        self._data = np.empty((2, attention.kv_heads, 0, attention.head_dim), np.float32)

    def append(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add tokens [T, kv heads, head_dim]; returns all keys and values so far."""
        end = self.length + k.shape[0]
        if end > self._data.shape[2]:
            _, heads, room, dim = self._data.shape
            grown = np.empty((2, heads, max(end, 2 * room), dim), np.float32)
            grown[:, :, : self.length] = self._data[:, :, : self.length]
            self._data = grown
        self._data[0, :, self.length : end] = k.transpose(1, 0, 2)
        self._data[1, :, self.length : end] = v.transpose(1, 0, 2)
        self.length = end
        return self._data[0, :, :end], self._data[1, :, :end]

    def truncate(self, length: int) -> None:
        """Forget all tokens from ``length`` on."""
        self.length = min(self.length, length)


class FloatCache:
    """What `FloatModel` remembers of one sequence."""

    def __init__(self, decoder: Decoder) -> None:
        self.layers = [FloatKV(layer.attention) for layer in decoder.layers]

    @property
    def length(self) -> int:
        """Tokens held."""
        return self.layers[0].length

    def truncate(self, length: int) -> None:
        """Forget all tokens from ``length`` on."""
        for layer in self.layers:
            layer.truncate(length)


def rms_norm(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * gain over the last axis."""
    scale = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32) + np.float32(eps))
    return x * scale * gain


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotary embedding in the half-split layout: x [T, heads, D], cos and sin [T, D / 2]."""
    half = x.shape[-1] // 2
    x1, x2 = x[..., :half], x[..., half:]
    c, s = cos[:, None, :], sin[:, None, :]
    return np.concatenate([x1 * c - x2 * s, x2 * c + x1 * s], axis=-1)


def silu(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """x / (1 + exp(-x)), without overflow."""
    with np.errstate(over="ignore"):
        return x / (1.0 + arithmetic.exp(-x))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, past: int, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """Causal grouped attention: q [T, Hq, D] at positions past.., k and v [Hkv, past + T, D] -> [T, Hq, D]."""
    attend_last = arithmetic.attention or partial(_attend_last, arithmetic)
    scale = float(np.float32(1.0 / math.sqrt(q.shape[-1])))
    out = np.empty_like(q)
    for start in range(0, len(q), _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, len(q))
        seen = past + stop
        out[start:stop] = attend_last(q[start:stop], k[:, :seen], v[:, :seen], scale)
    return out


def _attend_last(arithmetic: Arithmetic, q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    """q [T, Hq, D] at the last T of the positions of k and v [Hkv, S, D] -> [T, Hq, D]."""
    (tokens, heads, dim), (kv_heads, seen, _) = q.shape, k.shape
    grouped = q.reshape(tokens, kv_heads, heads // kv_heads, dim).transpose(1, 2, 0, 3)  # [Hkv, G, T, D]
    scores = arithmetic.product(grouped, k[:, None]) * np.float32(scale)
    hidden = np.arange(seen) > np.arange(seen - tokens, seen)[:, None]
    scores[:, :, hidden] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    scores = arithmetic.exp(scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    weighed = arithmetic.product(scores, v[:, None].swapaxes(-1, -2))
    return weighed.transpose(2, 0, 1, 3).reshape(tokens, heads, dim)


ApplyLinear = Callable[[Linear, FloatLinear, np.ndarray], np.ndarray]
"""What a linear makes of its input [T, K], without what is added to it: [T, N]."""
KVRounding = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""What a cache gives back of keys (rotated) and values, each [T, kv heads, head_dim]."""

Mix = Callable[[Attention, Mapping[str, np.ndarray], np.ndarray], np.ndarray]
"""What attention with the layer's gains makes of qkv [T, q | k | v]: [T, heads * head_dim]."""


def apply_float(weights: FloatLinear, x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """x @ W.T (+ bias)."""
    y = arithmetic.product(x, weights.weight)
    return y if weights.bias is None else y + weights.bias


def unrounded(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values as they are."""
    return keys, values


def layer_forward(
    x: np.ndarray,
    layer: Layer,
    weights: LayerWeights,
    tables: RopeTables,
    past: FloatKV | None = None,
    observe: Observe | None = None,
    *,
    apply: ApplyLinear | None = None,
    rounding: KVRounding = unrounded,
    mix: Mix | None = None,
    arithmetic: Arithmetic = NUMPY,
) -> np.ndarray:
    """One decoder layer on x [T, hidden] -> [T, hidden].

    ``past`` holds the tokens before x and takes x's keys and values; None starts a sequence.  The tables cover at least
    past + T positions.  ``observe(name, input)`` sees the float input of every linear.  ``apply`` computes
    the linears' products (default: by ``arithmetic``); ``rounding`` says what is read back of keys and values.  Where rows are
    not one sequence, ``mix`` is their attention.
    """
    kv = past if past is not None else FloatKV(layer.attention)
    buffers = {HIDDEN: x}
    for operation in layer.operations:
        y = buffers[operation.reads]
        if isinstance(operation, Norm):
            y = rms_norm(y, weights.gains[operation.gain.name], operation.eps)
        elif isinstance(operation, Linear):
            if observe is not None:
                observe(operation.name, y)
            linear = weights.linears[operation.name]
            y = apply_float(linear, y, arithmetic) if apply is None else apply(operation, linear, y)
            y = buffers[operation.adds] + y if operation.adds else y
        elif isinstance(operation, Attention):
            if mix is None:
                y = _attention(operation, weights.gains, y, tables[operation.rope], kv, rounding, arithmetic)
            else:
                y = mix(operation, weights.gains, y)
        else:
            gate, up = np.split(y, 2, axis=1)
            y = silu(gate, arithmetic) * up
        buffers[operation.writes] = y
    return buffers[HIDDEN]


def _attention(
    attention: Attention,
    gains: Mapping[str, np.ndarray],
    qkv: np.ndarray,
    rope: Tables,
    past: FloatKV,
    rounding: KVRounding,
    arithmetic: Arithmetic,
) -> np.ndarray:
    """[T, q | k | v] -> [T, heads * head_dim], over all tokens that ``past`` holds and these."""
    start = past.length
    cos, sin = (table[start : start + len(qkv)] for table in rope)
    q, k, v = split_heads(attention, gains, qkv, cos, sin)
    keys, values = past.append(*rounding(k, v))
    return attend(q, keys, values, start, arithmetic).reshape(len(qkv), -1)


def split_heads(
    attention: Attention, gains: Mapping[str, np.ndarray], qkv: np.ndarray, cos: np.ndarray, sin: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys (both after their norm and rotation) and values [T, heads, head_dim] of qkv [T, q | k | v].

    cos and sin [T, head_dim / 2] are those of the positions of qkv.
    """
    heads = qkv.reshape(len(qkv), -1, attention.head_dim)
    q, k, v = np.split(heads, [attention.heads, attention.heads + attention.kv_heads], axis=1)
    if attention.q_norm is not None:
        q = rms_norm(q, gains[attention.q_norm.name], attention.eps)
    if attention.k_norm is not None:
        k = rms_norm(k, gains[attention.k_norm.name], attention.eps)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


class FloatModel:
    """All weights in memory, every linear in float32; agrees with transformers to rounding."""

    def __init__(self, source: WeightSource, config: ModelConfig) -> None:
        self.config = config
        self.decoder = decoder = describe(config)
        check_tensors(source, decoder)
        self.embedding = read_embedding(source, decoder)
        self.layers = [read_layer(source, layer) for layer in decoder.layers]
        self.final_norm = read_final_norm(source, decoder)
        self.output = self.embedding if decoder.tied else read_output(source, decoder)
        self._roundings: Sequence[KVRounding] = [unrounded] * len(decoder.layers)
        self._tables = RopeTables(min(config.context, 4096))

    def with_kv_rounding(self, roundings: Sequence[KVRounding]) -> FloatModel:
        """The same model, whose layers read keys and values back as ``roundings`` say, one each."""
        other = copy(self)
        other._roundings = roundings
        return other

    def open_cache(self) -> FloatCache:
        """An empty cache for one sequence."""
        return FloatCache(self.decoder)

    def forward(
        self, tokens: Sequence[int] | np.ndarray, cache: FloatCache | None = None, *, last_only: bool = False
    ) -> np.ndarray:
        """Logits float32 [T, vocab] of ``tokens`` that follow what ``cache`` holds; ``last_only`` gives [1, vocab].

        Raises `ContextOverflow` past the model's context, `UsageError` for a token id outside the vocabulary.
        """
        states = self.states(tokens, cache if cache is not None else self.open_cache())
        logits: np.ndarray = (states[-1:] if last_only else states) @ self.output.T
        return logits

    def states(self, tokens: Sequence[int] | np.ndarray, cache: FloatCache) -> np.ndarray:
        """Normed last hidden states float32 [T, hidden] of ``tokens`` that follow what ``cache`` holds; see `forward`."""
        ids = np.asarray(tokens, np.int64)
        if ids.ndim != 1 or ids.size == 0:
            raise UsageError("forward needs at least one token", param="tokens")
        if ids.min() < 0 or ids.max() >= self.config.vocab_size:
            bad = int(ids[(ids < 0) | (ids >= self.config.vocab_size)][0])
            raise UsageError(f"token id `{bad}` is outside the vocabulary of {self.config.vocab_size} tokens", param="tokens")
        end = cache.length + ids.size
        if end > self.config.context:
            raise ContextOverflow(end, self.config.context)
        if end > self._tables.positions:
            self._tables = RopeTables(min(self.config.context, 2 * end))
        x = self.embedding[ids]
        for layer, weights, rounding, past in zip(self.decoder.layers, self.layers, self._roundings, cache.layers, strict=True):
            x = layer_forward(x, layer, weights, self._tables, past, rounding=rounding)
        return rms_norm(x, self.final_norm, self.decoder.norm.eps)
