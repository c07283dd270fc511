"""Grouped attention over the keys and values of a sequence, behind rotary position embedding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from edge_llm.kernels import floats
from edge_llm.operations.arithmetic import rms_norm, rms_norm_gradient, rotate, tanh
from edge_llm.operations.base import (
    PAGES,
    Arithmetic,
    Back,
    Buffers,
    FloatRun,
    Folding,
    Gain,
    HeadTurns,
    Op,
    Operation,
    Passes,
    Place,
    Vector,
)
from edge_llm.operations.both_ways import add_both_ways
from edge_llm.operations.float_kv import FloatKV
from edge_llm.operations.keeps import Kept, Pages, Window
from edge_llm.operations.rope_kinds import Rope
from edge_llm.operations.scores import PLAIN, Scores, attend, softmax

if TYPE_CHECKING:
    from edge_llm.operations.host_call import HostCall
    from edge_llm.operations.questions import AllTables, AnyLayer

KEY_OFFSET = "k_offset"
"""Per layer the mean key [kv heads, head_dim], which is subtracted from every key before it is stored."""
KEYS, VALUES = "keys", "values"
"""Places: keys [kv heads, head_dim / 2], with one factor for a rotation pair, and values [kv heads, head_dim]."""


@dataclass(frozen=True)
class QueryGrowth:
    """Queries grow with their position p: times ``1 + beta ln(1 + floor(p / original_context))``."""

    beta: float
    original_context: int

    def __post_init__(self) -> None:
        if self.original_context < 1:
            raise ValueError(f"queries that grow every {self.original_context} tokens")

    def factors(self, positions: np.ndarray) -> np.ndarray:
        """Of queries at ``positions``, float32."""
        folds = positions // self.original_context
        return np.asarray(1.0 + self.beta * floats.log64(1.0 + folds), np.float32)


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
    """Gain of an RMS norm of every query head [head_dim], or of all queries together [heads * head_dim]."""
    k_norm: Gain | None = None
    eps: float = 0.0
    """Of these norms."""
    norm_last: bool = False
    """Whether heads are normed behind the rotation, not before it."""
    scores: Scores = PLAIN
    sinks: Gain | None = None
    """[heads]: of each head one more logit in the softmax, whose value is 0."""
    growth: QueryGrowth | None = None
    """None: queries do not grow."""
    turn: int = 0
    """Block of a head's channels that are turned in queries and keys, behind the rotation; 0: none.  Scores grow by it."""
    value_turn: int = 0
    """Block of a head's channels in which the stored weight turns values; its reader's columns have the inverse."""

    def __post_init__(self) -> None:
        if min(self.heads, self.kv_heads, self.head_dim) < 1 or self.heads % self.kv_heads or self.head_dim % 2:
            raise ValueError(f"an attention of {self.heads} heads, {self.kv_heads} key heads and {self.head_dim} channels")
        if not 0 <= self.rope.dim <= self.head_dim or self.rope.dim % 2 or self.rope.theta <= 0:
            raise ValueError(f"a rotation of {self.rope.dim} of {self.head_dim} channels by theta {self.rope.theta:g}")
        if (self.q_norm is None) != (self.k_norm is None):
            raise ValueError("an attention norms both its queries and its keys, or neither")
        for gain, heads in ((self.q_norm, self.heads), (self.k_norm, self.kv_heads)):
            if gain is not None and gain.size != (heads * self.head_dim if self.norms_all else self.head_dim):
                raise ValueError(f"the norm `{gain.name}` of {gain.size} channels fits no head of {self.head_dim}")
        if self.norms_all and self.norm_last:
            raise ValueError("all queries are normed before the rotation, not behind it")
        if self.sinks is not None and self.sinks.size != self.heads:
            raise ValueError(f"{self.heads} heads have {self.sinks.size} sinks")

    @property
    def q_size(self) -> int:
        """Width of all queries, and of the result."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all keys, and of all values."""
        return self.kv_heads * self.head_dim

    @property
    def norms_all(self) -> bool:
        """Whether all queries are normed together, and all keys."""
        return self.q_norm is not None and self.q_norm.size != self.head_dim

    @property
    def scale(self) -> float:
        """What products of queries and keys are multiplied with."""
        return self.scores.scale or self.head_dim**-0.5

    @property
    def is_plain(self) -> bool:
        """Whether it is Llama's: whole heads are rotated, and nothing becomes of scores but the softmax."""
        more = self.sinks or self.growth or self.norm_last or self.norms_all
        return self.scores == PLAIN and not more and self.rope.dim == self.head_dim

    @property
    def read_width(self) -> int:
        return self.q_size + 2 * self.kv_size

    @property
    def write_width(self) -> int:
        return self.q_size

    @property
    def keeps(self) -> tuple[Kept, ...]:
        return (Window(self.scores.window) if self.scores.window and not self.scores.ahead else Pages(),)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        return (self,)

    @property
    def gains(self) -> tuple[Gain, ...]:
        return tuple(gain for gain in (self.q_norm, self.k_norm, self.sinks) if gain is not None)

    @property
    def vectors(self) -> tuple[Vector, ...]:
        return (*super().vectors, Vector(KEY_OFFSET, (self.kv_heads, self.head_dim)))

    def with_turns(self, turn_of: Callable[[str], int], heads: HeadTurns) -> Self:
        return replace(self, turn=heads.keys, value_turn=heads.values)

    # -- float ---------------------------------------------------------------------------------------------------------

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        """Over all tokens that ``run.past`` holds and these."""
        qkv, gains = buffers[self.reads], run.weights.gains
        if run.mix is not None:
            return run.mix(self, gains, qkv)
        past = run.past if run.past is not None else self.float_kv()
        start = past.length
        q, k, v = self.split(gains, qkv, run.tables, np.arange(start, start + len(qkv)))
        keys, values = past.append(*run.rounding(k, v))
        return self.attend(gains, q, keys, values, start, run.arithmetic).reshape(len(qkv), -1)

    def float_kv(self) -> FloatKV:
        """What it keeps of a sequence in float32, empty."""
        return FloatKV(self.kv_heads, self.head_dim)

    def split(
        self, gains: Mapping[str, np.ndarray], qkv: np.ndarray, tables: AllTables, positions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Queries, keys (both after their norm and rotation) and values [T, heads, head_dim] of qkv [T, q | k | v]."""
        q, k, v = self._heads_of(qkv)
        angles = tuple(table[positions] for table in tables[self.rope])
        q, k = (self._ready(x, gain, gains, *angles)[0] for x, gain in ((q, self.q_norm), (k, self.k_norm)))
        return self._grown(q, positions), k, v

    def attend(
        self, gains: Mapping[str, np.ndarray], q: np.ndarray, k: np.ndarray, v: np.ndarray, past: int, arithmetic: Arithmetic
    ) -> np.ndarray:
        """What it makes of q [T, Hq, D] at positions past.., and k and v [Hkv, past + T, D]: [T, Hq, D]."""
        sinks = None if self.sinks is None else gains[self.sinks.name]
        return attend(q, k, v, past, arithmetic, self.scores, sinks)

    def _heads_of(self, qkv: np.ndarray) -> list[np.ndarray]:
        """Queries, keys and values [T, heads, head_dim] of [T, q | k | v]."""
        heads = qkv.reshape(len(qkv), -1, self.head_dim)
        return np.split(heads, [self.heads, self.heads + self.kv_heads], axis=1)

    def _grown(self, q: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Queries [T, heads, head_dim], or the gradient at them, grown with their positions."""
        return q if self.growth is None else q * self.growth.factors(positions)[:, None, None]

    def _ready(
        self, x: np.ndarray, gain: Gain | None, gains: Mapping[str, np.ndarray], cos: np.ndarray, sin: np.ndarray
    ) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Heads [T, heads, head_dim] behind norm and rotation, and the way back of gradients."""
        if gain is None:
            return rotate(x, cos, sin), lambda gradient: rotate(gradient, cos, -sin)
        vector, eps = gains[gain.name], self.eps
        together = (len(x), -1, gain.size)

        def normed(x: np.ndarray) -> np.ndarray:
            return rms_norm(x.reshape(together), vector, eps).reshape(x.shape)

        def through(x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
            return rms_norm_gradient(x.reshape(together), vector, eps, gradient.reshape(together)).reshape(x.shape)

        if self.norm_last:
            rotated = rotate(x, cos, sin)
            return normed(rotated), lambda gradient: rotate(through(rotated, gradient), cos, -sin)
        return rotate(normed(x), cos, sin), lambda gradient: through(x, rotate(gradient, cos, -sin))

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        qkv, arithmetic, gains = buffers[self.reads], run.arithmetic, run.weights.gains
        tokens, dim, groups = len(qkv), self.head_dim, self.heads // self.kv_heads
        cos, sin = (table[:tokens] for table in run.tables[self.rope])
        q, k, v = self._heads_of(qkv)
        q, q_back = self._ready(q, self.q_norm, gains, cos, sin)
        k, k_back = self._ready(k, self.k_norm, gains, cos, sin)
        q = np.ascontiguousarray(self._grown(q, np.arange(tokens)).transpose(1, 0, 2))
        q = q.reshape(self.kv_heads, groups, tokens, dim)
        k, v = (np.ascontiguousarray(x.transpose(1, 0, 2))[:, None] for x in (k, v))  # [Hkv, 1, T, D]
        scale = np.float32(self.scale)
        products = arithmetic.product(q, k) * scale
        sinks = None if self.sinks is None else gains[self.sinks.name]
        weights = softmax(products, 0, arithmetic, self.scores, sinks)  # [Hkv, G, T, T]
        mixed = arithmetic.product(weights, _transposed(v))
        out = mixed.transpose(2, 0, 1, 3).reshape(tokens, -1)

        def back(gradient: np.ndarray) -> list[tuple[str, np.ndarray]]:
            at_mixed = gradient.reshape(tokens, self.kv_heads, groups, dim).transpose(1, 2, 0, 3)
            at_mixed = np.ascontiguousarray(at_mixed)
            at_v = arithmetic.product(_transposed(weights), _transposed(at_mixed)).sum(axis=1)
            at_weights = arithmetic.product(at_mixed, v)
            at_scores = weights * (at_weights - (at_weights * weights).sum(axis=-1, keepdims=True)) * scale
            if self.scores.cap:
                at_scores *= 1 - np.square(tanh(products / np.float32(self.scores.cap), arithmetic))
            at_q = arithmetic.product(at_scores, _transposed(k)).reshape(self.heads, tokens, dim).transpose(1, 0, 2)
            at_k = arithmetic.product(_transposed(at_scores), _transposed(q)).sum(axis=1).transpose(1, 0, 2)
            found = [q_back(self._grown(at_q, np.arange(tokens))), k_back(at_k), at_v.transpose(1, 0, 2)]
            return [(self.reads, np.concatenate(found, axis=1).reshape(tokens, -1))]

        return out, back

    def normed(self, q: np.ndarray, k: np.ndarray, gains: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Queries and keys [T, heads, head_dim] behind their norms, without rotation."""
        return self._behind(q, self.q_norm, gains), self._behind(k, self.k_norm, gains)

    def _behind(self, x: np.ndarray, gain: Gain | None, gains: Mapping[str, np.ndarray]) -> np.ndarray:
        """Heads [T, heads, head_dim] behind a norm; the same without one."""
        normed = None if gain is None else rms_norm(x.reshape(len(x), -1, gain.size), gains[gain.name], self.eps)
        return x if normed is None else normed.reshape(x.shape)

    def mean_key(self, keys: np.ndarray, gains: Mapping[str, np.ndarray], cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        """The mean key over the rows of ``keys`` [T, kv heads * head_dim] and all positions, [kv heads, head_dim].

        ``keys`` are those of the projection; cos and sin [P, rope.dim / 2] are the positions'.  A norm behind the rotation is
        taken before it, which is a little off where the two channels of a rotation pair have gains of their own.  It is 0 where
        scores are capped or there are sinks: a vector off all keys would change the softmax.
        """
        if not len(keys) or self.scores.cap or self.sinks is not None:
            return np.zeros((self.kv_heads, self.head_dim), np.float32)
        heads = self._behind(keys.reshape(-1, self.kv_heads, self.head_dim), self.k_norm, gains)
        mean = heads.mean(axis=0, dtype=np.float64)[None]
        rotated = rotate(mean, cos.mean(axis=0, dtype=np.float64)[None], sin.mean(axis=0, dtype=np.float64)[None])
        return np.ascontiguousarray(rotated[0], np.float32)

    # -- devices -------------------------------------------------------------------------------------------------------

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        norms = [("norms", Op("head_norms", (self.reads,), (self.reads,), self))] if self.norms_all else []
        return [
            *norms,
            ("keys", Op("rope_append", (self.reads,), (self.reads, PAGES), self)),
            ("attention", Op("attention", (self.reads, PAGES), (self.writes,), self)),
        ]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.q_size} if op.kind == "attention" else {}

    def add_call(self, call: HostCall) -> None:
        add = {"head_norms": self._add_norms, "rope_append": self._add_append, "attention": self._add_attend}
        add[call.op.kind](call)

    def _add_norms(self, call: HostCall) -> None:
        """All queries together, and all keys, in place."""
        qkv, end = call.buffers[self.reads], self.q_size + self.kv_size
        for gain, columns in ((self.q_norm, qkv[:, : self.q_size]), (self.k_norm, qkv[:, self.q_size : end])):
            assert gain is not None
            call.native.rms_norm(columns, call.gains[gain.name], self.eps, out=columns)

    def _add_append(self, call: HostCall) -> None:
        gains, pages = call.gains, call.pages
        of_heads = (None, None) if self.norms_all else (self.q_norm, self.k_norm)
        q_gain, k_gain = (gains[gain.name] if gain else None for gain in of_heads)
        cos, sin = call.tables[self.rope]
        call.native.rope_append(
            call.buffers[call.op.reads[0]],
            self.heads,
            self.kv_heads,
            self.head_dim,
            cos,
            sin,
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
            norm_last=self.norm_last,
            q_scale=None if self.growth is None else self.growth.factors(np.arange(len(cos))),
        )

    def _add_attend(self, call: HostCall) -> None:
        scale = self.scale / max(1, self.turn)
        sinks = None if self.sinks is None else call.gains[self.sinks.name]
        if self.scores.ahead:
            scores = replace(self.scores, scale=scale)
            of_text = partial(_attend_text, scores, sinks)
            add_both_ways(call, self.heads, self.kv_heads, scores, sinks, of_text)
            return
        pages, shape = call.pages, (-1, self.heads, self.head_dim)
        q = call.buffers[call.op.reads[0]][:, : self.q_size].reshape(shape)
        out = call.buffers[call.op.writes[0]].reshape(shape)
        window, cap = self.scores.window, self.scores.cap
        call.native.paged_attention(
            q, pages.k, pages.k_scale, pages.v, pages.v_scale, scale, out=out, window=window, cap=cap, sinks=sinks
        )

    # -- folds ---------------------------------------------------------------------------------------------------------

    @property
    def evens_its_input(self) -> bool:
        return True

    def places(self, layer: AnyLayer) -> Iterator[Place]:
        yield Place(KEYS, self, (), (self.kv_heads, self.head_dim // 2))
        if readers := layer.multipliers(self):
            yield Place(VALUES, self, readers, (self.kv_heads, self.head_dim))

    def fold(self, layer: AnyLayer, place: Place, factors: np.ndarray, folding: Folding) -> None:
        """Keys are divided and queries multiplied, by their gains where they are normed; values are divided."""
        rows = folding.rows.setdefault(layer.projection.name, np.ones(self.read_width, np.float32))
        if place.name == VALUES:
            rows[self.q_size + self.kv_size :] = 1 / factors.ravel()
            return
        keys = self.channels_of(factors)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm.name, self.k_norm.name
            of_queries, of_keys = (for_query_heads(keys, self), keys.ravel()) if self.norms_all else (keys[0], keys[0])
            folding.gains[q], folding.gains[k] = folding.gains[q] * of_queries, folding.gains[k] / of_keys
        else:
            rows[: self.q_size] = for_query_heads(keys, self)
            rows[self.q_size : self.q_size + self.kv_size] = 1 / keys.ravel()

    def channels_of(self, pairs: np.ndarray) -> np.ndarray:
        """[kv heads, head_dim / 2], one factor for two channels that turn together -> [kv heads, head_dim].

        Where a part of a head is rotated, its pairs come first, and then neighbours that nothing turns.
        """
        half = self.rope.dim // 2
        turning, still = pairs[:, :half], np.repeat(pairs[:, half:], 2, axis=1)
        return np.concatenate([turning, turning, still], axis=1)

    def pair_energy(self, x: np.ndarray) -> np.ndarray:
        """Squares of x [..., head_dim], of two channels that turn together in one: [..., head_dim / 2]."""
        squares, turning = np.square(x, dtype=np.float64), self.rope.dim
        still = squares[..., turning::2] + squares[..., turning + 1 :: 2]
        return np.concatenate([squares[..., : turning // 2] + squares[..., turning // 2 : turning], still], axis=-1)

    def for_columns(self, place: Place, factors: np.ndarray) -> np.ndarray:
        return for_query_heads(factors, self)


def for_query_heads(factors: np.ndarray, attention: Attention) -> np.ndarray:
    """[kv heads, head_dim] -> [heads * head_dim]: every query head finds the factors of its key head."""
    return np.repeat(factors, attention.heads // attention.kv_heads, axis=0).ravel()


def _attend_text(
    scores: Scores, sinks: np.ndarray | None, q: np.ndarray, k: np.ndarray, v: np.ndarray, arithmetic: Arithmetic
) -> np.ndarray:
    return attend(q, k, v, 0, arithmetic, scores, sinks)


def _transposed(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.swapaxes(-1, -2))
