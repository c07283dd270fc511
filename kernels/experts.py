"""The experts of a layer: gated MLPs of which every row meets a few, all in one call.

    y = sum over a row's experts, in their order, of share * down(gated(gate_up(x), gate)) (+ add)

Each share is multiplied, then added, from 0.  Rows are rounded once and go to the places that their experts read, and one call
shares the panels of many experts out among the threads.  `kernels.reference.experts` defines the result, which does not depend
on the other rows, on threads or on the instruction set.  All raise ValueError, naming the argument, for a wrong type, shape or
value, and for an activation that is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edge_llm.kernels import _native
from edge_llm.kernels._native import BlockLinear, Expert, Int8Linear, ThreadPool
from edge_llm.kernels.activation import Activation, numbers
from edge_llm.kernels.types import F32, I64

__all__ = ["Expert", "InExperts", "choose_experts", "expert_of", "experts"]


class InExperts(NamedTuple):
    """A linear of an expert: all of its rows in one part, and no outliers beside."""

    linear: Int8Linear | BlockLinear
    turn: int = 0
    """Of the linear."""
    bias: F32 | None = None
    """Of a `BlockLinear`; an `Int8Linear` has its own."""

    def is_like(self, other: InExperts) -> bool:
        """Whether both may be the same linear of two experts of a call."""
        return type(self.linear) is type(other.linear) and self.turn == other.turn


def expert_of(gate_up: InExperts, down: InExperts) -> Expert:
    """The expert of both."""
    return Expert(gate_up.linear, down.linear, gate_up.bias, down.bias)


def choose_experts(scores: F32, used: int) -> I64:
    """The numbers of the `used` largest of scores[M, E], ascending in every row, the lower one of two that are equal."""
    return _native.choose_experts(scores, used)


def experts(
    x: F32,
    chosen: I64,
    shares: F32,
    weights: Sequence[Expert | None],
    pool: ThreadPool,
    *,
    gate: Activation,
    add: F32 | None = None,
    out: F32 | None = None,
) -> F32:
    """x[M, K] through the experts ``chosen`` i64[M, used], ascending in every row, that count as ``shares`` f32[M, used] say.

    ``weights`` has an `Expert` for each number that is chosen, all of one shape, one turn and one type of each linear; those
    that nobody chose may be None.  `out` may be `x` or `add`; when an activation is not finite, it is left as it was.
    """
    return _native.experts(x, chosen, shares, list(weights), pool, *numbers(gate), add, out)
