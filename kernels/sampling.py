"""A token of a vocabulary by its probability, the most likely ones, and their log-probabilities, without sorting it.

The twins in `kernels.reference` define which candidates top-k, top-p and min-p leave, and in which order a draw goes
through them. Masses are whole numbers whose sums are exact, so neither depends on the algorithm. `draw` is what models use;
`candidates` shows the same set to tests. What weighs every token shares a large vocabulary with the threads of `pool`, where
one is given; the rest works on the calling thread. The result is the same bits on any number of threads. All raise ValueError
that names a wrong argument; all but the quick `mask` let other threads run.

    token = sampling.draw(logits, sampling.best(logits), temperature=0.6, top_k=0, top_p=0.9, min_p=0.0, chance=random())
"""

from __future__ import annotations

import numpy as np

from edge_llm.kernels import _native
from edge_llm.kernels._native import ThreadPool
from edge_llm.kernels.types import F32, I64, U8

_INSERTED = 256
"""So many of the likeliest tokens are found by insertion, of which the time grows with their square; more by a sort of them."""


def best(logits: F32) -> float:
    """The greatest of logits[V]; NaN where one is."""
    return _native.sampling_best(logits)


def draw(
    logits: F32,
    best: float,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    chance: float,
    pool: ThreadPool | None = None,
) -> int:
    """The token of logits[V] at `chance` (0 to below 1) of the candidates' mass.

    `best` is the greatest logit and finite, `temperature` above 0 and at most 1e30; top_k = 0, top_p = 1 and min_p = 0 leave
    everything.
    """
    return _native.sampling_draw(logits, best, temperature, top_k, top_p, min_p, chance, pool)


def candidates(
    logits: F32,
    best: float,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    pool: ThreadPool | None = None,
) -> tuple[I64, I64]:
    """The tokens of logits[V] that `draw` draws from, ascending by id, and their masses [n]; arguments as there."""
    return _native.sampling_candidates(logits, best, temperature, top_k, top_p, min_p, pool)


def log_sum(logits: F32, best: float, pool: ThreadPool | None = None) -> float:
    """log of the sum of e^(logit - best) over logits[V]; `best` is the greatest logit and finite.

    The log-probability of a token is its logit - best - that.
    """
    return _native.sampling_log_sum(logits, best, pool)


def likeliest(logits: F32, count: int) -> I64:
    """The `count` tokens of the greatest logits[V], or all: best first, equal ones in order of their ids."""
    if count <= _INSERTED:
        return _native.sampling_likeliest(logits, count)
    _native.sampling_likeliest(logits, 0)  # checks what was given
    if count < len(logits):
        bound = np.partition(logits, len(logits) - count)[len(logits) - count]
        tokens = np.flatnonzero(logits >= bound)
    else:
        tokens = np.arange(len(logits))
    return tokens[np.argsort(-logits[tokens], kind="stable")][:count]


def mask(logits: F32, bits: U8, out: F32) -> int:
    """out[V] = logits[V], -inf where a token's bit is 0; how many bits are 1.

    Bit n of byte k (of value 1 << n) is token 8 k + n.  `out` is other memory than `logits`.
    """
    return _native.sampling_mask(logits, bits, out)
