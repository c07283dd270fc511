"""GPTQ and coordinate descent on rows of a weight, native; `kernels.reference.gptq` defines both bit for bit.

The energy [K, K] of what a linear reads goes in once, its columns in the order in which they are fitted, as panels
f32[ceil(K/64), K, 64]; `factor` makes the triangle of them, in place, that `fit` needs.  Every sum is one chain of fma, so
neither threads nor instruction set change a bit.  All raise ValueError, naming the argument, for a wrong type, shape or value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_llm.kernels import _native
from edge_llm.kernels._native import ThreadPool
from edge_llm.kernels.types import F32, I64


@dataclass(frozen=True)
class Steps:
    """What values become: whole steps to 127, or, with ``inverse`` and ``shift``, the codes of `kernels.reference.w4`."""

    step: F32
    """[G, N]: G is 1, or for codes the number of groups of 32 columns."""
    inverse: F32 | None = None
    """Codes per unit [G, N]; 0 where all weights are 0."""
    shift: F32 | None = None
    """[G, N]."""

    def some(self, rows: slice) -> Steps:
        """Those of some of the rows."""
        parts = (None if one is None else np.ascontiguousarray(one[:, rows]) for one in (self.inverse, self.shift))
        return Steps(np.ascontiguousarray(self.step[:, rows]), *parts)


def panels(energy: F32, order: I64, pool: ThreadPool) -> F32:
    """energy[K, K], its rows and columns in that order -> panels; zeros beyond K."""
    return _native.energy_panels(energy, order, pool)


def factor(found: F32, pool: ThreadPool) -> bool:
    """The panels become those of the lower triangle L with energy = L^T L; False (and panels of anything): there is none."""
    return _native.factor_energy(found, pool)


def fit(weight: F32, factored: F32, order: I64, kept: int, steps: Steps, pool: ThreadPool) -> F32:
    """weight[N, K] rounded, column after column in that order; the last ``kept`` are not rounded -> [N, K]."""
    return _native.fit_weight(weight, factored, order, kept, steps.step, steps.inverse, steps.shift, pool)


def descend(
    weight: F32, found: F32, energy: F32, order: I64, kept: int, steps: Steps, passes: int, pool: ThreadPool
) -> None:
    """found[N, K], made of the weight, becomes nearer to it: every column the best while the others stay."""
    _native.descend_weight(weight, found, energy, order, kept, steps.step, steps.inverse, steps.shift, passes, pool)
