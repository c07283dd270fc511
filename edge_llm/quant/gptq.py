"""GPTQ: columns are rounded one after the other, and those that are left take up the error in the output.

After Frantar et al., 2022 (arXiv 2210.17323), algorithm 1, with the steps of all columns fixed before ("static groups"),
columns in descending order of their input's energy, and hot channels last, which are not rounded and so absorb what is left
(OWQ: Lee et al., 2023, arXiv 2306.02272).  No inverse is needed: with energy = U U^T the squared error is that of (W - Q) U,
whose columns are made small one after the other (Chen et al., 2025, arXiv 2507.18553).
"""

from __future__ import annotations

import numpy as np

from edge_llm.errors import NumericError
from edge_llm.kernels import ThreadPool
from edge_llm.kernels import gptq as native
from edge_llm.kernels.floats import product
from edge_llm.kernels.gptq import Steps

ENOUGH = 10.0
"""Tokens per column from which on little damping is needed."""
DAMPING, MORE_DAMPING = 0.01, 0.1
"""Of the mean energy of an input channel, added to every channel's: with enough tokens, and with fewer."""
_TRIES = 24
"""Times that the damping of a singular energy is doubled."""
_STRIP = 64
"""Rows of the energy that are computed at a time."""


def add_energy(total: np.ndarray, x: np.ndarray, pool: ThreadPool | None = None) -> None:
    """Add x^T x of calibration rows float32 [T, K] to ``total`` [K, K]: on its diagonal and to the right of it alone."""
    columns = np.ascontiguousarray(x.T)
    for start in range(0, len(columns), _STRIP):
        total[start : start + _STRIP, start:] += product(columns[start : start + _STRIP], columns[start:], pool)


def mirror(total: np.ndarray) -> None:
    """What is right of the diagonal of ``total`` [K, K] is copied to the left of it."""
    for start in range(0, len(total), _STRIP):
        strip = slice(start, start + _STRIP)
        total[start:, strip] = total[strip, start:].T


def summed_energy(x: np.ndarray, pool: ThreadPool | None = None) -> np.ndarray:
    """x^T x of calibration rows float32 [T, K]: float32 [K, K].  It is symmetric: one half is the other's mirror image."""
    found = np.zeros((x.shape[1], x.shape[1]), np.float32)
    add_energy(found, x, pool)
    mirror(found)
    return found


def input_energy(x: np.ndarray) -> np.ndarray:
    """The mean energy of these rows, x^T x / T."""
    return summed_energy(x) / np.float32(max(1, len(x)))


def damping(tokens: int, columns: int) -> float:
    """How much is added to the diagonal; fewer tokens than columns say little of a matrix's directions."""
    return DAMPING if tokens >= ENOUGH * columns else MORE_DAMPING


def damp(energy: np.ndarray, share: float) -> None:
    """That ``share`` of the mean diagonal of ``energy`` is added to its diagonal."""
    energy[np.diag_indices_from(energy)] += np.float32(share * _mean_energy(energy))


def damped_energy(energy: np.ndarray, share: float) -> np.ndarray:
    """``energy`` with that ``share`` of its mean diagonal added to it."""
    found = energy.copy()
    damp(found, share)
    return found


def _mean_energy(energy: np.ndarray) -> float:
    return float(np.diag(energy).mean(dtype=np.float64)) or 1.0


def gptq(
    weight: np.ndarray, energy: np.ndarray, hot: np.ndarray, steps: Steps, pool: ThreadPool | None = None
) -> np.ndarray:
    """``weight`` float32 [N, K] rounded in ``steps``, for inputs of ``energy`` [K, K], symmetric.

    The ``hot`` columns int32 [H] are not rounded.  `kernels.reference.gptq` says what is right.
    """
    order, threads = column_order(np.diag(energy), hot), pool or ThreadPool(1)
    factor = _factor(energy, order, threads)
    return native.fit(np.ascontiguousarray(weight), factor, order, len(hot), steps, threads)


def descend(
    weight: np.ndarray,
    found: np.ndarray,
    energy: np.ndarray,
    hot: np.ndarray,
    steps: Steps,
    passes: int,
    pool: ThreadPool | None = None,
) -> None:
    """``found`` float32 [N, K], made of ``weight``, becomes nearer to it for inputs of ``energy`` [K, K].

    Column after column becomes what is best while all others stay: coordinate descent (Behdin et al., 2023, arXiv 2309.01885).
    """
    order, threads = column_order(np.diag(energy), hot), pool or ThreadPool(1)
    panels = native.panels(energy, order, threads)
    native.descend(np.ascontiguousarray(weight), found, panels, order, len(hot), steps, passes, threads)


def column_order(diagonal: np.ndarray, hot: np.ndarray) -> np.ndarray:
    """Columns by descending energy, the ``hot`` ones last: int64 [K]."""
    last = np.zeros(len(diagonal), bool)
    last[hot] = True
    return np.lexsort((-diagonal, last))


def _factor(energy: np.ndarray, order: np.ndarray, threads: ThreadPool) -> np.ndarray:
    """Panels of the lower triangle L of energy = L^T L, columns in ``order``; a singular one is damped first."""
    share, tried = DAMPING, energy
    for _ in range(_TRIES):
        panels = native.panels(tried, order, threads)
        if native.factor(panels, threads):
            return panels
        tried = damped_energy(tried, share)
        share *= 2
    raise NumericError("the inputs of a linear are too large for float32 when they are squared; its weights cannot be fitted")
