"""Samplers: ``logits float32 [V] -> Choice``, a token.  Filters narrow the candidates; one uniform draw picks among them.

The order is that of Hugging Face and llama.cpp: temperature, then top-k, top-p (nucleus), min-p; ties go by token id.
`kernels.reference.sampling_candidates` defines the candidates; a native pass finds them without sorting.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import NamedTuple, TypedDict

import numpy as np

from edge_llm.config import GenerationParams
from edge_llm.errors import NumericError
from edge_llm.kernels import ThreadPool, sampling


class Choice(NamedTuple):
    """A token, and the greatest of the logits that it was chosen from, which log-probabilities need too."""

    token: int
    best: float


Sampler = Callable[[np.ndarray], Choice]


def make_sampler(params: GenerationParams, pool: ThreadPool | None = None) -> Sampler:
    """The sampler that ``params`` asks for; greedy at temperature 0.  A fixed seed gives the same tokens every time.

    The threads of ``pool`` share a draw from a large vocabulary, which gives the same token as one thread alone.
    """
    if params.temperature == 0.0:
        return greedy
    random = np.random.Generator(np.random.PCG64(secrets.randbits(64) if params.seed is None else params.seed))

    def sample(logits: np.ndarray) -> Choice:
        filters = _filters(params, len(logits))
        best = _best(logits)
        return Choice(sampling.draw(logits, best, **filters, chance=random.random(), pool=pool), best)

    return sample


def greedy(logits: np.ndarray) -> Choice:
    """The most likely token; the lowest id among equals."""
    token = int(logits.argmax())
    best = float(logits[token])
    _check_finite(best)
    return Choice(token, best)


class _Filters(TypedDict):
    temperature: float
    top_k: int
    top_p: float
    min_p: float


def _filters(params: GenerationParams, vocab_size: int) -> _Filters:
    top_k = min(params.top_k, vocab_size)  # more than all are all, however many digits they have
    return {"temperature": params.temperature, "top_k": top_k, "top_p": params.top_p, "min_p": params.min_p}


def _best(logits: np.ndarray) -> float:
    best = sampling.best(logits)
    _check_finite(best)
    return best


def _check_finite(best: float) -> None:
    if not math.isfinite(best):
        raise NumericError(f"the logits hold `{best}`; the model or the device computed something that is no number")
