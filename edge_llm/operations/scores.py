"""What attention makes of queries, keys and values in float32: scores, softmax, sums."""

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
    """What becomes of scores, beyond the mask and the softmax."""

    scale: float = 0.0
    """What products of queries and keys are multiplied with; 0: 1 / sqrt(head_dim)."""
    window: int = 0
    """A token sees so many, itself among them; 0: all before it.  With ``ahead`` it sees as many on both sides."""
    cap: float = 0.0
    """Scores s are ``cap * tanh(s / cap)``; 0: no cap."""
    ahead: bool = False
    """Whether a token sees those behind it too, as in encoders; then a whole text is computed at once."""

    def __post_init__(self) -> None:
        if self.scale < 0 or self.window < 0 or self.cap < 0:
            raise ValueError(f"scores of the scale {self.scale:g}, in a window of {self.window}, with the cap {self.cap:g}")


PLAIN = Scores()


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    past: int,
    arithmetic: Arithmetic = NUMPY,
    scores: Scores = PLAIN,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """Grouped attention: q [T, Hq, D] at positions past.., k and v [Hkv, past + T, D] -> [T, Hq, D].

    ``sinks`` [Hq] are one more logit of each head, whose value is 0.
    """
    scale = float(np.float32(scores.scale or 1.0 / math.sqrt(q.shape[-1])))
    in_one = arithmetic.attention if sinks is None and not (scores.window or scores.cap or scores.ahead) else None
    out = np.empty_like(q)
    for start in range(0, len(q), _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, len(q))
        first, end = _seen_by(past + start, past + stop, k.shape[1], scores)
        block, keys, values = q[start:stop], k[:, first:end], v[:, first:end]
        if in_one is not None:
            out[start:stop] = in_one(block, keys, values, scale)
        else:
            out[start:stop] = _attend_block(arithmetic, block, keys, values, past + start - first, scale, scores, sinks)
    return out


def _seen_by(first: int, end: int, keys: int, scores: Scores) -> tuple[int, int]:
    """The ``keys`` that queries at the positions [first, end) see between them: the first, and one past the last."""
    if not scores.ahead:
        return 0, end
    return (max(0, first - scores.window + 1), min(keys, end + scores.window - 1)) if scores.window else (0, keys)


def _attend_block(
    arithmetic: Arithmetic,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    past: int,
    scale: float,
    scores: Scores,
    sinks: np.ndarray | None,
) -> np.ndarray:
    """q [T, Hq, D] at positions past.. of those of k and v [Hkv, S, D] -> [T, Hq, D]."""
    (tokens, heads, dim), kv_heads = q.shape, len(k)
    grouped = q.reshape(tokens, kv_heads, heads // kv_heads, dim).transpose(1, 2, 0, 3)  # [Hkv, G, T, D]
    products = arithmetic.product(grouped, k[:, None]) * np.float32(scale)
    weights = softmax(products, past, arithmetic, scores, sinks)
    weighed = arithmetic.product(weights, v[:, None].swapaxes(-1, -2))
    return weighed.transpose(2, 0, 1, 3).reshape(tokens, heads, dim)


def softmax(
    products: np.ndarray, past: int, arithmetic: Arithmetic, scores: Scores, sinks: np.ndarray | None
) -> np.ndarray:
    """The weights of products of queries and keys [Hkv, G, T, S], scaled, where query t is at position past + t."""
    tokens, seen = products.shape[-2:]
    capped = soft_cap(products, scores.cap, arithmetic)
    if (hidden := _hidden(tokens, seen, past, scores)) is not None:
        capped = np.where(hidden, np.float32(-np.inf), capped)
    largest = capped.max(axis=-1, keepdims=True)
    if sinks is None:
        weights = arithmetic.exp(capped - largest)
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
    logits = sinks.reshape(*products.shape[:2], 1, 1)
    largest = np.maximum(largest, logits)
    weights = arithmetic.exp(capped - largest)
    return np.asarray(weights / (weights.sum(axis=-1, keepdims=True) + arithmetic.exp(logits - largest)))


def _hidden(tokens: int, seen: int, past: int, scores: Scores) -> np.ndarray | None:
    """Which keys [S] each query [T] does not see; None: all see all."""
    if scores.ahead and not scores.window:
        return None
    ahead = np.arange(seen) - np.arange(past, past + tokens)[:, None]
    if scores.ahead:
        return np.abs(ahead) >= scores.window
    return ahead > 0 if not scores.window else (ahead > 0) | (ahead <= -scores.window)
