"""What attention makes of queries, keys and values in float32: scores, softmax, sums; and keys and values that are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edge_llm.operations.arithmetic import soft_cap
from edge_llm.operations.base import NUMPY, Arithmetic

_QUERY_BLOCK = 256
"""Queries per attention block: bounds the score matrix to [heads, 256, tokens]."""


@dataclass(frozen=True)
class Scores:
    """What becomes of scores, beyond the causal mask and the softmax."""

    scale: float = 0.0
    """What products of queries and keys are multiplied with; 0: 1 / sqrt(head_dim)."""
    window: int = 0
    """A token sees so many, itself among them; 0: all before it."""
    cap: float = 0.0
    """Scores s are ``cap * tanh(s / cap)``; 0: no cap."""

    def __post_init__(self) -> None:
        if self.scale < 0 or self.window < 0 or self.cap < 0:
            raise ValueError(f"scores of the scale {self.scale:g}, in a window of {self.window}, with the cap {self.cap:g}")


PLAIN = Scores()


class FloatKV:
    """Keys (after rotation) and values of one layer, float32 [kv heads, length, head_dim]; grows by doubling."""

    def __init__(self, kv_heads: int, head_dim: int) -> None:
        self.length = 0
        self._data = np.empty((2, kv_heads, 0, head_dim), np.float32)

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


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    past: int,
    arithmetic: Arithmetic = NUMPY,
    scores: Scores = PLAIN,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """Causal grouped attention: q [T, Hq, D] at positions past.., k and v [Hkv, past + T, D] -> [T, Hq, D].

    ``sinks`` [Hq] are one more logit of each head, whose value is 0.
    """
    scale = float(np.float32(scores.scale or 1.0 / math.sqrt(q.shape[-1])))
    in_one = arithmetic.attention if sinks is None and not (scores.window or scores.cap) else None
    out = np.empty_like(q)
    for start in range(0, len(q), _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, len(q))
        block, keys, values = q[start:stop], k[:, : past + stop], v[:, : past + stop]
        if in_one is not None:
            out[start:stop] = in_one(block, keys, values, scale)
        else:
            out[start:stop] = _attend_last(arithmetic, block, keys, values, scale, scores, sinks)
    return out


def _attend_last(
    arithmetic: Arithmetic,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    scores: Scores,
    sinks: np.ndarray | None,
) -> np.ndarray:
    """q [T, Hq, D] at the last T of the positions of k and v [Hkv, S, D] -> [T, Hq, D]."""
    (tokens, heads, dim), (kv_heads, seen, _) = q.shape, k.shape
    grouped = q.reshape(tokens, kv_heads, heads // kv_heads, dim).transpose(1, 2, 0, 3)  # [Hkv, G, T, D]
    products = arithmetic.product(grouped, k[:, None]) * np.float32(scale)
    weights = softmax(products, seen - tokens, arithmetic, scores, sinks)
    weighed = arithmetic.product(weights, v[:, None].swapaxes(-1, -2))
    return weighed.transpose(2, 0, 1, 3).reshape(tokens, heads, dim)


def softmax(
    products: np.ndarray, past: int, arithmetic: Arithmetic, scores: Scores, sinks: np.ndarray | None
) -> np.ndarray:
    """The weights of products of queries and keys [Hkv, G, T, S], scaled, where query t is at position past + t."""
    tokens, seen = products.shape[-2:]
    capped = soft_cap(products, scores.cap, arithmetic)
    ahead = np.arange(seen) - np.arange(past, past + tokens)[:, None]
    hidden = ahead > 0 if not scores.window else (ahead > 0) | (ahead <= -scores.window)
    capped = np.where(hidden, np.float32(-np.inf), capped)
    largest = capped.max(axis=-1, keepdims=True)
    if sinks is None:
        weights = arithmetic.exp(capped - largest)
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
    logits = sinks.reshape(*products.shape[:2], 1, 1)
    largest = np.maximum(largest, logits)
    weights = arithmetic.exp(capped - largest)
    return np.asarray(weights / (weights.sum(axis=-1, keepdims=True) + arithmetic.exp(logits - largest)))
