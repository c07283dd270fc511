"""What chooses experts: scores of a float32 product, the best of them, and how much each of those counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edge_llm.kernels.experts import choose_experts
from edge_llm.operations.arithmetic import sigmoid
from edge_llm.operations.base import Arithmetic, Gain

SOFTMAX, SIGMOID, CHOSEN = "softmax", "sigmoid", "softmax_of_chosen"
"""How products become scores: over all experts, of each alone, over those that are chosen by their products."""
SCORES = (SOFTMAX, SIGMOID, CHOSEN)
_BEST_OF_GROUP = 2
"""A group of experts counts as much as the sum of so many of its best."""


class Routes(NamedTuple):
    """Which experts rows go to."""

    experts: np.ndarray
    """int64 [T, used], ascending in every row."""
    weights: np.ndarray
    """float32 [T, used]: what each of these gives is multiplied with."""

    def by_expert(self) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Every expert that any row goes to, ascending: its number, its rows int64 [R] ascending, their weights [R, 1]."""
        flat = self.experts.reshape(-1)
        order = np.argsort(flat, kind="stable")
        numbers, starts = np.unique(flat[order], return_index=True)
        rows, weights = order // self.experts.shape[1], self.weights.reshape(-1)[order, None]
        ends = [*starts[1:].tolist(), len(order)]
        spans = zip(numbers.tolist(), starts.tolist(), ends, strict=True)
        return [(number, rows[start:end], weights[start:end]) for number, start, end in spans]


@dataclass(frozen=True)
class Router:
    """Scores of ``weight`` [experts, channels] choose ``used`` experts for every row, the lower number where two are equal."""

    weight: Gain
    used: int
    scores: str = SOFTMAX
    """One of `SCORES`."""
    normalised: bool = False
    """The scores of the chosen are divided by their sum."""
    least_sum: float = 0.0
    """Added to that sum."""
    factor: float = 1.0
    """What all weights are multiplied with."""
    bias: Gain | None = None
    """Added to the products, one for each expert."""
    choice_bias: Gain | None = None
    """Added to the scores where they choose, and not where they weigh."""
    groups: int = 1
    """Of neighbouring experts, all of one size."""
    groups_used: int = 1
    """Of the best groups the experts are chosen."""

    def __post_init__(self) -> None:
        count = self.weight.rows
        if not 1 <= self.used <= count or self.scores not in SCORES:
            raise ValueError(f"the router `{self.weight.name}` chooses {self.used} of {count} experts by `{self.scores}`")
        if not 1 <= self.groups_used <= self.groups or count % self.groups:
            raise ValueError(f"the router `{self.weight.name}` has {self.groups} groups of {count} experts")
        if self.used > count // self.groups * self.groups_used:
            raise ValueError(f"the router `{self.weight.name}` finds no {self.used} experts in {self.groups_used} groups")
        if any(one is not None and one.size != count for one in (self.bias, self.choice_bias)):
            raise ValueError(f"the router `{self.weight.name}` has biases that are not of {count} experts")

    @property
    def gains(self) -> tuple[Gain, ...]:
        return tuple(one for one in (self.weight, self.bias, self.choice_bias) if one is not None)

    def routes(self, x: np.ndarray, gains: Mapping[str, np.ndarray], arithmetic: Arithmetic) -> Routes:
        """Of the rows x float32 [T, channels].  Raises ValueError for a row that has no scores."""
        products = self._products(x, gains, arithmetic)
        experts, scores = self._chosen(products, gains, arithmetic)
        return Routes(experts, self._weights(scores))

    def routes_and_back(
        self, x: np.ndarray, gains: Mapping[str, np.ndarray], arithmetic: Arithmetic
    ) -> tuple[Routes, Callable[[np.ndarray], np.ndarray]]:
        """The same, and from the gradient at the weights [T, used] to that at x; the choice itself does not move."""
        products = self._products(x, gains, arithmetic)
        experts, scores = self._chosen(products, gains, arithmetic)

        def back(gradient: np.ndarray) -> np.ndarray:
            at_scores = gradient * np.float32(self.factor)
            if self.normalised:
                total = scores.sum(axis=1, keepdims=True) + np.float32(self.least_sum)
                at_scores = at_scores / total - (at_scores * scores).sum(axis=1, keepdims=True) / (total * total)
            if self.scores == SIGMOID:
                found = at_scores * scores * (1 - scores)
            else:
                found = scores * (at_scores - (at_scores * scores).sum(axis=1, keepdims=True))
            at_products = np.zeros_like(products)
            np.put_along_axis(at_products, experts, found, axis=1)
            if self.scores == SOFTMAX:  # the others of all experts move the sum as well
                shares = _softmax(products, arithmetic)
                np.put_along_axis(shares, experts, np.float32(0), axis=1)
                at_products -= shares * (at_scores * scores).sum(axis=1, keepdims=True)
            return arithmetic.product(at_products, np.ascontiguousarray(gains[self.weight.name].T))

        return Routes(experts, self._weights(scores)), back

    def _products(self, x: np.ndarray, gains: Mapping[str, np.ndarray], arithmetic: Arithmetic) -> np.ndarray:
        """[T, experts]."""
        products = arithmetic.product(x, gains[self.weight.name])
        if not np.isfinite(products).all():
            raise ValueError(f"the router `{self.weight.name}` has a non-finite product")
        return products if self.bias is None else products + gains[self.bias.name]

    def _chosen(
        self, products: np.ndarray, gains: Mapping[str, np.ndarray], arithmetic: Arithmetic
    ) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the chosen experts, ascending in every row, int64 [T, used], and their scores float32 [T, used]."""
        of_all = products if self.scores == CHOSEN else self._of_all(products, arithmetic)
        by = of_all if self.choice_bias is None else of_all + gains[self.choice_bias.name]
        if self.groups_used < self.groups:
            by = self._of_best_groups(by)
        experts = choose_experts(np.ascontiguousarray(by, np.float32), self.used)
        scores = np.take_along_axis(of_all, experts, axis=1)
        return experts, _softmax(scores, arithmetic) if self.scores == CHOSEN else scores

    def _of_best_groups(self, by: np.ndarray) -> np.ndarray:
        """``by`` [T, experts], without what is in no good group."""
        grouped = by.reshape(len(by), self.groups, -1)
        best = np.sort(grouped, axis=2)[:, :, -_BEST_OF_GROUP:].sum(axis=2)
        lost = np.argsort(-best, axis=1, kind="stable")[:, self.groups_used :]
        grouped = grouped.copy()
        np.put_along_axis(grouped, lost[:, :, None], np.float32(-np.inf), axis=1)
        return grouped.reshape(by.shape)

    def _of_all(self, products: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
        return sigmoid(products, arithmetic) if self.scores == SIGMOID else _softmax(products, arithmetic)

    def _weights(self, scores: np.ndarray) -> np.ndarray:
        if self.normalised:
            scores = scores / (scores.sum(axis=1, keepdims=True) + np.float32(self.least_sum))
        return scores * np.float32(self.factor) if self.factor != 1 else scores


def _softmax(products: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
    shares = arithmetic.exp(products - products.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))
