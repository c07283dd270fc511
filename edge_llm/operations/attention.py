"""Causal grouped attention over the keys and values of a sequence, behind rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from edge_llm.config import RopeScaling
from edge_llm.operations.arithmetic import rms_norm, rms_norm_gradient, rotate
from edge_llm.operations.base import (
    NUMPY,
    PAGES,
    Arithmetic,
    Back,
    Buffers,
    FloatRun,
    Folding,
    Gain,
    HeadTurns,
    HostCall,
    Op,
    Operation,
    Passes,
    Place,
    Vector,
)

if TYPE_CHECKING:
    from edge_llm.operations.layer import Layer

KEY_OFFSET = "k_offset"
"""Per layer the mean key [kv heads, head_dim], which is subtracted from every key before it is stored."""
KEYS, VALUES = "keys", "values"
"""Places: keys [kv heads, head_dim / 2], with one factor for a rotation pair, and values [kv heads, head_dim]."""
_QUERY_BLOCK = 256
"""Queries per attention block: bounds the score matrix to [heads, 256, tokens]."""


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of heads of ``dim`` channels (Su et al., 2021, arXiv 2104.09864)."""

    dim: int
    theta: float
    scaling: RopeScaling | None = None


@dataclass(frozen=True)
class Attention(Operation):
    """Causal grouped attention of ``reads`` [tokens, q | k | v] after q/k norms and rotation."""

    KIND: ClassVar[str] = "attention"
    CHOSEN: ClassVar[tuple[str, ...]] = ("turn", "value_turn")

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    reads: str
    writes: str
    q_norm: Gain | None = None
    """Gain of an RMS norm of every query head, before the rotation."""
    k_norm: Gain | None = None
    eps: float = 0.0
    """Of these norms."""
    turn: int = 0
    """Block of a head's channels that are turned in queries and keys, behind the rotation; 0: none.  Scores grow by it."""
    value_turn: int = 0
    """Block of a head's channels in which the stored weight turns values; its reader's columns have the inverse."""

    def __post_init__(self) -> None:
        if min(self.heads, self.kv_heads, self.head_dim) < 1 or self.heads % self.kv_heads or self.head_dim % 2:
            raise ValueError(f"an attention of {self.heads} heads, {self.kv_heads} key heads and {self.head_dim} channels")
        if not 0 < self.rope.dim <= self.head_dim or self.rope.theta <= 0:
            raise ValueError(f"a rotation of {self.rope.dim} channels by theta {self.rope.theta:g}")
        if (self.q_norm is None) != (self.k_norm is None):
            raise ValueError("an attention norms both its queries and its keys, or neither")

    @property
    def q_size(self) -> int:
        """Width of all queries, and of the result."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all keys, and of all values."""
        return self.kv_heads * self.head_dim

    @property
    def read_width(self) -> int:
        return self.q_size + 2 * self.kv_size

    @property
    def write_width(self) -> int:
        return self.q_size

    @property
    def attentions(self) -> tuple[Attention, ...]:
        return (self,)

    @property
    def gains(self) -> tuple[Gain, ...]:
        return tuple(gain for gain in (self.q_norm, self.k_norm) if gain is not None)

    @property
    def vectors(self) -> tuple[Vector, ...]:
        return (*super().vectors, Vector(KEY_OFFSET, (self.kv_heads, self.head_dim)))

    def with_turns(self, turn_of: Callable[[str], int], heads: HeadTurns) -> Self:
        return replace(self, turn=heads.keys, value_turn=heads.values)

    # -- float ---------------------------------------------------------------------------------------------------------

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        """Over all tokens that ``run.past`` holds and these."""
        qkv = buffers[self.reads]
        if run.mix is not None:
            return run.mix(self, run.weights.gains, qkv)
        past = run.past if run.past is not None else FloatKV(self)
        start = past.length
        cos, sin = (table[start : start + len(qkv)] for table in run.tables[self.rope])
        q, k, v = split_heads(self, run.weights.gains, qkv, cos, sin)
        keys, values = past.append(*run.rounding(k, v))
        return attend(q, keys, values, start, run.arithmetic).reshape(len(qkv), -1)

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        qkv, arithmetic = buffers[self.reads], run.arithmetic
        tokens, dim, groups = len(qkv), self.head_dim, self.heads // self.kv_heads
        cos, sin = (table[:tokens] for table in run.tables[self.rope])
        before_q, before_k, v = self._heads_of(qkv)
        norms = [None if gain is None else run.weights.gains[gain.name] for gain in (self.q_norm, self.k_norm)]
        q, k = (
            rotate(x if gain is None else rms_norm(x, gain, self.eps), cos, sin)
            for x, gain in zip((before_q, before_k), norms, strict=True)
        )
        scale = np.float32(1.0 / math.sqrt(dim))
        q = np.ascontiguousarray(q.transpose(1, 0, 2)).reshape(self.kv_heads, groups, tokens, dim)
        k, v = (np.ascontiguousarray(x.transpose(1, 0, 2))[:, None] for x in (k, v))  # [Hkv, 1, T, D]
        scores = arithmetic.product(q, k) * scale
        scores[..., np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        weights = arithmetic.exp(scores)
        weights /= weights.sum(axis=-1, keepdims=True)  # [Hkv, G, T, T]
        mixed = arithmetic.product(weights, _transposed(v))
        out = mixed.transpose(2, 0, 1, 3).reshape(tokens, -1)

        def back(gradient: np.ndarray) -> list[tuple[str, np.ndarray]]:
            at_mixed = gradient.reshape(tokens, self.kv_heads, groups, dim).transpose(1, 2, 0, 3)
            at_mixed = np.ascontiguousarray(at_mixed)
            at_v = arithmetic.product(_transposed(weights), _transposed(at_mixed)).sum(axis=1)
            at_weights = arithmetic.product(at_mixed, v)
            at_scores = weights * (at_weights - (at_weights * weights).sum(axis=-1, keepdims=True)) * scale
            at_q = arithmetic.product(at_scores, _transposed(k)).reshape(self.heads, tokens, dim)
            at_k = arithmetic.product(_transposed(at_scores), _transposed(q)).sum(axis=1)
            found = [rotate(x.transpose(1, 0, 2), cos, -sin) for x in (at_q, at_k)]
            for number, (x, gain) in enumerate(zip((before_q, before_k), norms, strict=True)):
                if gain is not None:
                    found[number] = rms_norm_gradient(x, gain, self.eps, found[number])
            return [(self.reads, np.concatenate([*found, at_v.transpose(1, 0, 2)], axis=1).reshape(tokens, -1))]

        return out, back

    def _heads_of(self, qkv: np.ndarray) -> list[np.ndarray]:
        """Queries, keys and values [T, heads, head_dim] of [T, q | k | v]."""
        heads = qkv.reshape(len(qkv), -1, self.head_dim)
        return np.split(heads, [self.heads, self.heads + self.kv_heads], axis=1)

    # -- devices -------------------------------------------------------------------------------------------------------

    def host_parts(self, layer: Layer, passes: Passes) -> Iterable[tuple[str, Op]]:
        return [
            ("keys", Op("rope_append", (self.reads,), (self.reads, PAGES), self)),
            ("attention", Op("attention", (self.reads, PAGES), (self.writes,), self)),
        ]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.q_size} if op.kind == "attention" else {}

    def add_call(self, call: HostCall) -> None:
        if call.op.kind == "rope_append":
            self._add_append(call)
        else:
            self._add_attend(call)

    def _add_append(self, call: HostCall) -> None:
        gains, pages = call.gains, call.pages
        q_gain, k_gain = (gains[gain.name] if gain else None for gain in (self.q_norm, self.k_norm))
        call.native.rope_append(
            call.buffers[call.op.reads[0]],
            self.heads,
            self.kv_heads,
            self.head_dim,
            *call.tables[self.rope],
            q_gain,
            k_gain,
            self.eps,
            # The same vector off every key of a head changes no softmax, and leaves less to quantize.
            gains[KEY_OFFSET],
            pages.k,
            pages.k_scale,
            pages.v,
            pages.v_scale,
            turn=self.turn,
        )

    def _add_attend(self, call: HostCall) -> None:
        pages, shape = call.pages, (-1, self.heads, self.head_dim)
        q = call.buffers[call.op.reads[0]][:, : self.q_size].reshape(shape)
        out = call.buffers[call.op.writes[0]].reshape(shape)
        scale = self.head_dim**-0.5 / max(1, self.turn)
        call.native.paged_attention(q, pages.k, pages.k_scale, pages.v, pages.v_scale, scale, out=out)

    # -- folds ---------------------------------------------------------------------------------------------------------

    @property
    def evens_its_input(self) -> bool:
        return True

    def places(self, layer: Layer) -> Iterator[Place]:
        yield Place(KEYS, self, (), (self.kv_heads, self.head_dim // 2))
        if readers := layer.multipliers(self):
            yield Place(VALUES, self, readers, (self.kv_heads, self.head_dim))

    def fold(self, layer: Layer, place: Place, factors: np.ndarray, folding: Folding) -> None:
        """Keys are divided and queries multiplied, by their gains where they are normed; values are divided."""
        projection = layer.projection.name
        rows = folding.rows.setdefault(projection, np.ones(self.read_width, np.float32))
        if place.name == VALUES:
            rows[self.q_size + self.kv_size :] = 1 / factors.ravel()
            return
        keys = np.concatenate([factors, factors], axis=1)  # both halves of a rotation pair
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm.name, self.k_norm.name
            folding.gains[q], folding.gains[k] = folding.gains[q] * keys[0], folding.gains[k] / keys[0]
        else:
            rows[: self.q_size] = for_query_heads(keys, self)
            rows[self.q_size : self.q_size + self.kv_size] = 1 / keys.ravel()

    def for_columns(self, place: Place, factors: np.ndarray) -> np.ndarray:
        return for_query_heads(factors, self)


def for_query_heads(factors: np.ndarray, attention: Attention) -> np.ndarray:
    """[kv heads, head_dim] -> [heads * head_dim]: every query head finds the factors of its key head."""
    return np.repeat(factors, attention.heads // attention.kv_heads, axis=0).ravel()


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


def _transposed(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.swapaxes(-1, -2))
