"""The whole decoder in NumPy float32: the oracle for every faster path, and what calibration runs.

Naive on purpose and read top-down; the fast paths are compared with it, never the other way round.  The same
functions serve the importer a layer at a time (`layer_forward` with ``observe``) and ``--float`` (`FloatModel`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.errors import ContextOverflow, UsageError
from edge_llm.models.rope import rope_tables
from edge_llm.models.weights import (
    LayerWeights,
    WeightSource,
    check_tensors,
    read_embedding,
    read_final_norm,
    read_layer,
    read_output,
)

Observe = Callable[[str, np.ndarray], None]

_QUERY_BLOCK = 256
"""Queries per attention block: bounds the score matrix to [heads, 256, tokens]."""


class FloatKV:
    """Keys (after rotation) and values of one layer, float32 [kv heads, length, head_dim]; grows by doubling."""

    def __init__(self, config: ModelConfig) -> None:
        self.length = 0
        self._data = np.empty((2, config.num_kv_heads, 0, config.head_dim), np.float32)

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

    def __init__(self, config: ModelConfig) -> None:
        self.layers = [FloatKV(config) for _ in range(config.num_layers)]

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


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + exp(-x)), without overflow."""
    with np.errstate(over="ignore"):
        return x / (1.0 + np.exp(-x))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, past: int) -> np.ndarray:
    """Causal grouped attention: q [T, Hq, D] at positions past.., k and v [Hkv, past + T, D] -> [T, Hq, D]."""
    tokens, heads, dim = q.shape
    kv_heads = k.shape[0]
    out = np.empty_like(q)
    grouped = q.reshape(tokens, kv_heads, heads // kv_heads, dim).transpose(1, 2, 0, 3)  # [Hkv, G, T, D]
    result = out.reshape(tokens, kv_heads, heads // kv_heads, dim).transpose(1, 2, 0, 3)
    scale = np.float32(1.0 / math.sqrt(dim))
    for start in range(0, tokens, _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, tokens)
        seen = past + stop
        scores = grouped[:, :, start:stop] @ k[:, None, :seen].swapaxes(-1, -2) * scale
        hidden = np.arange(seen) > past + np.arange(start, stop)[:, None]
        scores[:, :, hidden] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        result[:, :, start:stop] = scores @ v[:, None, :seen]
    return out


def layer_forward(
    x: np.ndarray,
    layer: LayerWeights,
    config: ModelConfig,
    cos: np.ndarray,
    sin: np.ndarray,
    past: FloatKV | None = None,
    observe: Observe | None = None,
) -> np.ndarray:
    """One decoder layer on x [T, hidden] -> [T, hidden].

    ``past`` holds the tokens before x and takes x's keys and values; None starts a sequence.  cos and sin cover at
    least past + T positions.  ``observe(name, input)`` sees the float input of qkv, o, gate_up and down.
    """
    see = observe or _nothing
    tokens = x.shape[0]
    kv = past if past is not None else FloatKV(config)
    start = kv.length

    a = rms_norm(x, layer.attention_norm, config.norm_eps)
    see("qkv", a)
    q, k, v = project_heads(a, layer, config, cos[start : start + tokens], sin[start : start + tokens])
    keys, values = kv.append(k, v)
    attention = attend(q, keys, values, start).reshape(tokens, -1)
    see("o", attention)
    x = x + _linear(attention, layer.o, layer.o_bias)

    m = rms_norm(x, layer.mlp_norm, config.norm_eps)
    see("gate_up", m)
    gate, up = np.split(_linear(m, layer.gate_up, layer.gate_up_bias), 2, axis=1)
    product = silu(gate) * up
    see("down", product)
    return x + _linear(product, layer.down, layer.down_bias)


def project_heads(
    a: np.ndarray, layer: LayerWeights, config: ModelConfig, cos: np.ndarray, sin: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys (both after their rotation) and values [T, heads, head_dim] of a normed input a [T, hidden].

    cos and sin [T, head_dim / 2] are those of the positions of a.
    """
    qkv = _linear(a, layer.qkv, layer.qkv_bias).reshape(len(a), -1, config.head_dim)
    q, k, v = np.split(qkv, [config.num_heads, config.num_heads + config.num_kv_heads], axis=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q = rms_norm(q, layer.q_norm, config.norm_eps)
        k = rms_norm(k, layer.k_norm, config.norm_eps)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def _linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    y: np.ndarray = x @ weight.T
    return y if bias is None else y + bias


def _nothing(name: str, values: np.ndarray) -> None:
    pass


class FloatModel:
    """All weights in memory, every linear in float32; agrees with transformers to rounding."""

    def __init__(self, source: WeightSource, config: ModelConfig) -> None:
        check_tensors(source, config)
        self.config = config
        self.embedding = read_embedding(source, config)
        self.layers = [read_layer(source, config, index) for index in range(config.num_layers)]
        self.final_norm = read_final_norm(source, config)
        self.output = self.embedding if config.tied_embeddings else read_output(source, config)
        self._cos, self._sin = rope_tables(config, min(config.context, 4096))

    def open_cache(self) -> FloatCache:
        """An empty cache for one sequence."""
        return FloatCache(self.config)

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
        cos, sin = self._tables(end)
        x = self.embedding[ids]
        for layer, past in zip(self.layers, cache.layers, strict=True):
            x = layer_forward(x, layer, self.config, cos, sin, past)
        return rms_norm(x, self.final_norm, self.config.norm_eps)

    def _tables(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        if length > len(self._cos):
            self._cos, self._sin = rope_tables(self.config, min(self.config.context, 2 * length))
        return self._cos, self._sin
