"""The experts of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from edge_llm.kernels.reference.numeric import into
from edge_llm.kernels.types import F32, I64


class OneExpert(Protocol):
    def __call__(self, x: F32) -> F32:
        """down(gated(gate_up(x))) -> [M, K] of some rows x[M, K]."""
        ...


def choose_experts(scores: F32, used: int) -> I64:
    """The numbers of the `used` largest of scores[M, E], ascending in every row, the lower one of two that are equal."""
    return np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :used], axis=1)


def experts(
    x: F32, chosen: I64, shares: F32, weights: Mapping[int, OneExpert], *, add: F32 | None = None, out: F32 | None = None
) -> F32:
    """From 0, for a row's experts ascending y = y + expert(x) * share, then add + y -> [M, K].

    `chosen` i64[M, used] ascends in every row; `shares` f32[M, used] belong to it.
    """
    y = np.zeros_like(x)
    for number in np.unique(chosen):
        rows, place = np.nonzero(chosen == number)
        y[rows] += weights[int(number)](x[rows]) * shares[rows, place][:, None]
    return into(out, y if add is None else add + y)
