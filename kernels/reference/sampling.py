"""What is left of a vocabulary, the token that a draw picks, and what log-probabilities are made of."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edge_llm.kernels.floats import log64
from edge_llm.kernels.reference.numeric import LANES, reduce_lanes
from edge_llm.kernels.types import F32, I64, U8

BLOCK = 512
"""Neighbours in a vocabulary whose exponentials are added up first."""


def sampling_best(logits: F32) -> float:
    """The greatest logit; NaN where one is."""
    return float(logits.max())


def sampling_masses(gaps: F32, temperature: float, unit: float) -> I64:
    """rint(e^(gap / temperature) * unit) of gaps <= 0: x = n ln2 + r, a degree-10 polynomial in r, nothing fused.

    Temperatures below 1e-30 count as that.
    """
    x = np.maximum(gaps.astype(np.float64) * (1.0 / max(temperature, 1e-30)), -100.0)
    return np.asarray(np.rint(_exp(x, terms=10, unit=unit)).astype(np.int64))


def _exp(x: npt.NDArray[np.float64], terms: int, unit: float = 1.0) -> npt.NDArray[np.float64]:
    n = np.rint(x * float.fromhex("0x1.71547652b82fep+0"))
    r = (x - n * float.fromhex("0x1.62e42fefa0000p-1")) - n * float.fromhex("0x1.cf79abc9e3b3ap-40")
    y = np.full(r.shape, 1.0 / math.factorial(terms))
    for power in range(terms - 1, -1, -1):
        y = y * r + 1.0 / math.factorial(power)
    return np.asarray(np.ldexp(y * unit, n.astype(np.int64)))


def sampling_candidates(
    logits: F32, best: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[I64, I64]:
    """The tokens of logits[V] that top-k (0: off), then top-p, then min-p leave, in order, and their masses.

    Tokens are in order of logit - best, which is rounded to float32, equal ones in order of their ids. The mass of a token
    is its probability over the best one's in units of which 2^53 count the vocabulary; one without mass is no candidate.
    Top-p leaves the fewest tokens that have that share of all masses, at least one; min-p those with that share of the
    best one's.
    """
    with np.errstate(over="ignore"):
        gaps = logits - np.float32(best)
    unit = 2.0 ** min(51, 53 - len(logits).bit_length())
    order = np.lexsort((np.arange(len(logits)), -gaps))[: top_k or None]
    masses = sampling_masses(gaps[order], temperature, unit)
    kept = int(np.count_nonzero(masses))
    if top_p < 1.0:
        kept = min(kept, int(np.searchsorted(np.cumsum(masses), top_p * float(masses.sum()))) + 1)
    kept = min(kept, int(np.count_nonzero(masses >= min_p * unit)))
    return order[:kept], masses[:kept]


def sampling_draw(
    logits: F32, best: float, temperature: float, top_k: int, top_p: float, min_p: float, chance: float
) -> int:
    """The candidate at which the running sum of masses, in order, exceeds `chance` (in 0..1) of their sum."""
    tokens, masses = sampling_candidates(logits, best, temperature, top_k, top_p, min_p)
    return int(tokens[np.searchsorted(np.cumsum(masses), chance * float(masses.sum()), side="right")])


def sampling_log_sum(logits: F32, best: float) -> float:
    """log of the sum of e^(logit - best): a polynomial of degree 13, exponents in -700..0.

    Sixteen lanes and the fixed tree add up each `BLOCK`; the blocks follow in order.
    """
    with np.errstate(invalid="ignore"):
        x = logits.astype(np.float64) - np.float64(np.float32(best))
    padded = np.zeros(-(-len(x) // BLOCK) * BLOCK)
    padded[: len(x)] = _exp(np.where(x > -700.0, x, -700.0), terms=13)
    blocks = padded.reshape(-1, BLOCK // LANES, LANES)
    lanes = np.zeros((len(blocks), LANES))
    for step in range(blocks.shape[1]):
        lanes = lanes + blocks[:, step]
    total = 0.0
    for block in reduce_lanes(lanes).tolist():
        total += block
    return float(log64(total))


def sampling_likeliest(logits: F32, count: int) -> I64:
    """The `count` tokens of the greatest logits[V], or all: best first, equal ones in order of their ids."""
    return np.lexsort((np.arange(len(logits)), -logits))[:count]


def sampling_mask(logits: F32, bits: U8) -> tuple[F32, int]:
    """logits[V] where a token's bit is 1, from the lowest of the first byte on, and -inf elsewhere; how many bits are 1."""
    allowed = np.unpackbits(bits, count=len(logits), bitorder="little").view(bool)
    return np.where(allowed, logits, np.float32(-np.inf)), int(np.count_nonzero(allowed))
