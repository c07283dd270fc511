"""Samplers: ``logits float32 [V] -> token``.  Filters narrow the candidates; one uniform draw picks among them."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np

from edge_llm.config import GenerationParams
from edge_llm.errors import NumericError

Sampler = Callable[[np.ndarray], int]


def make_sampler(params: GenerationParams) -> Sampler:
    """The sampler that ``params`` asks for; greedy at temperature 0.  A fixed seed gives the same tokens every time."""
    if params.temperature == 0.0:
        return greedy
    random = np.random.Generator(np.random.PCG64(secrets.randbits(64) if params.seed is None else params.seed))

    def sample(logits: np.ndarray) -> int:
        candidates, probabilities = filter_candidates(logits, params)
        cumulative = np.cumsum(probabilities)
        return int(candidates[np.searchsorted(cumulative, random.random() * cumulative[-1], side="right")])

    return sample


def greedy(logits: np.ndarray) -> int:
    """The most likely token; the lowest id among equals."""
    best = int(np.argmax(logits))
    _check_finite(logits[best])
    return best


def filter_candidates(logits: np.ndarray, params: GenerationParams) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that top-k, top-p and min-p leave, most likely first, and their probabilities (float64, not rescaled).

    Order as in Hugging Face and llama.cpp: temperature is applied first, then top-k, top-p (nucleus), min-p.
    Ties are ordered by token id, so the result does not depend on the sort's whims.
    """
    best = logits.max()
    _check_finite(best)
    scaled = (logits - best).astype(np.float64) / params.temperature
    candidates = np.arange(len(logits))
    if 0 < params.top_k < len(logits):
        kth = np.partition(scaled, len(scaled) - params.top_k)[len(scaled) - params.top_k]
        candidates = np.flatnonzero(scaled >= kth)
    weights = np.exp(scaled[candidates])
    weights /= weights.sum()
    order = np.lexsort((candidates, -weights))
    if params.top_k:
        order = order[: params.top_k]
    candidates, weights = candidates[order], weights[order]
    weights = weights / weights.sum()
    keep = len(candidates)
    if params.top_p < 1.0:
        keep = int(np.searchsorted(np.cumsum(weights), params.top_p, side="left")) + 1
    if params.min_p > 0.0:
        keep = min(keep, int(np.count_nonzero(weights >= params.min_p * weights[0])))
    keep = max(1, min(keep, int(np.count_nonzero(weights > 0.0))))
    return candidates[:keep], weights[:keep]


def _check_finite(best: np.floating) -> None:
    if not np.isfinite(best):
        raise NumericError(f"the logits hold `{best}`; the model or the device computed something that is no number")
