"""The next layer's router, asked early: with what this layer's experts read, and the gain of the next layer's norm.

The residual stream changes little from layer to layer (Eliseev and Mazur, 2023, arXiv 2312.17238).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edge_llm.operations.base import Arithmetic, Gain
from edge_llm.operations.experts import Experts
from edge_llm.operations.norm import Norm
from edge_llm.operations.router import Router, Routes

if TYPE_CHECKING:
    from edge_llm.operations.layer import Layer

GUESSED_ROWS = 32
"""For a step of more rows nothing is guessed: it wants nearly all experts of a layer."""


@dataclass(frozen=True, eq=False)
class EarlyRouter:
    """The ``router`` of the next layer with experts, and how it is asked."""

    router: Router
    gains: Mapping[str, np.ndarray]
    """Of that layer."""
    ratio: np.ndarray
    """Gain of that layer's norm over that of this one's: float32 [columns]."""

    def experts(self, x: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
        """Where rows that this layer's experts read as x float32 [T, columns] would go there: int64 [T, used].

        No rows where a row has no scores, or there are more than `GUESSED_ROWS`.
        """
        routes = self._routes(x, arithmetic)
        return np.empty((0, self.router.used), np.int64) if routes is None else routes.experts

    def ranked(self, x: np.ndarray, arithmetic: Arithmetic) -> list[int]:
        """Where any of these rows would go, those that weigh most first; none where `experts` has no rows."""
        routes = self._routes(x, arithmetic)
        if routes is None:
            return []
        numbers, places = np.unique(routes.experts, return_inverse=True)
        weights = np.bincount(places.reshape(-1), routes.weights.reshape(-1))
        return list(numbers[np.argsort(-weights, kind="stable")].tolist())

    def _routes(self, x: np.ndarray, arithmetic: Arithmetic) -> Routes | None:
        try:
            return self.router.routes(x * self.ratio, self.gains, arithmetic) if len(x) <= GUESSED_ROWS else None
        except ValueError:  # what is no number is for the layer itself to say
            return None


def mixture_of(layer: Layer) -> Experts | None:
    """The experts of ``layer``, if it has any."""
    return next((one for one in layer.operations if isinstance(one, Experts)), None)


def early_router(
    here: Layer, its_gains: Mapping[str, np.ndarray], there: Layer, gains: Mapping[str, np.ndarray]
) -> EarlyRouter | None:
    """What asks the router of the layer ``there``, of these ``gains``, in the layer ``here``; None if experts read no norm."""
    mixture, mine, other = mixture_of(there), _gain(here), _gain(there)
    if mixture is None or mine is None or other is None:
        return None
    own = its_gains[mine.name]
    ratio = np.divide(gains[other.name], own, out=np.zeros_like(own), where=own != 0)
    return EarlyRouter(mixture.router, gains, ratio)


def _gain(layer: Layer) -> Gain | None:
    """Of the norm whose result the experts of ``layer`` read."""
    mixture = mixture_of(layer)
    norm = None if mixture is None else layer.writer(mixture.reads, mixture)
    return norm.gain if isinstance(norm, Norm) else None
