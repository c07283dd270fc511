"""What is left of a vocabulary, and the token that a draw picks."""

from __future__ import annotations

import math

import numpy as np

from kernels.types import F32, I64


def sampling_masses(gaps: F32, temperature: float, unit: float) -> I64:
    """rint(e^(gap / temperature) * unit) of gaps <= 0: x = n ln2 + r, a degree-10 polynomial in r, nothing fused.

    Temperatures below 1e-30 count as that.
    """
    x = np.maximum(gaps.astype(np.float64) * (1.0 / max(temperature, 1e-30)), -100.0)
    n = np.rint(x * float.fromhex("0x1.71547652b82fep+0"))
    r = (x - n * float.fromhex("0x1.62e42fefa0000p-1")) - n * float.fromhex("0x1.cf79abc9e3b3ap-40")
    y = np.full(r.shape, 1.0 / math.factorial(10))
    for power in range(9, -1, -1):
        y = y * r + 1.0 / math.factorial(power)
    return np.asarray(np.rint(np.ldexp(y * unit, n.astype(np.int64))).astype(np.int64))


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
