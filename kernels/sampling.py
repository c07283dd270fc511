"""A token of a vocabulary by its probability, without sorting the vocabulary.

The twins in `kernels.reference` define which candidates top-k, top-p and min-p leave, and in which order a draw goes
through them. Masses are whole numbers whose sums are exact, so neither depends on the algorithm. `draw` is what models use;
`candidates` shows the same set to tests. Both work on the calling thread, let other threads run, and raise ValueError that
names a wrong argument.

    token = sampling.draw(logits, logits.max(), temperature=0.6, top_k=0, top_p=0.9, min_p=0.0, chance=random())
"""

from __future__ import annotations

from kernels import _native
from kernels.types import F32, I64


def draw(
    logits: F32, best: float, *, temperature: float, top_k: int, top_p: float, min_p: float, chance: float
) -> int:
    """The token of logits[V] at `chance` (0 to below 1) of the candidates' mass.

    `best` is the greatest logit and finite, `temperature` above 0 and at most 1e30; top_k = 0, top_p = 1 and min_p = 0 leave
    everything.
    """
    return _native.sampling_draw(logits, best, temperature, top_k, top_p, min_p, chance)


def candidates(
    logits: F32, best: float, *, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[I64, I64]:
    """The tokens of logits[V] that `draw` draws from, ascending by id, and their masses [n]; arguments as there."""
    return _native.sampling_candidates(logits, best, temperature, top_k, top_p, min_p)
