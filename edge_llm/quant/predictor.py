"""Low-rank predictors of active neurons (LLM in a flash, arXiv 2312.11514): which of them a row will activate, before their
weights are there.

What decides is linear in the input x, ``W x + bias > 0``, so the best product of low rank is found in closed form: the one
with the least error of W x on the inputs of a calibration text.  Each neuron then has a threshold of its own, below which as
few of its active rows lie as may be missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_RIDGE = 1e-4
"""Of the mean energy of an input channel, what is added to every one."""


@dataclass(frozen=True)
class Predictor:
    """Guesses for ``F`` neurons of inputs with ``K`` channels."""

    inward: np.ndarray
    """float32 [rank, K]."""
    outward: np.ndarray
    """float32 [F, rank]."""
    threshold: np.ndarray
    """float32 [F]: a neuron whose score is at least this is guessed to be active."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory, in float16."""
        return 2 * (self.inward.size + self.outward.size) + 4 * len(self.threshold)

    def guess(self, x: np.ndarray) -> np.ndarray:
        """Which neurons rows x float32 [T, K] activate: bool [T, F]."""
        return np.asarray((x @ self.inward.T) @ self.outward.T >= self.threshold)


@dataclass(frozen=True)
class Guessed:
    """How guesses for rows compare with what the rows activated."""

    recall: float
    """Share of the active neurons that were guessed; 1 where none was active."""
    precision: float
    """Share of the guessed neurons that were active; 1 where none was guessed."""

    @classmethod
    def of(cls, guessed: np.ndarray, active: np.ndarray) -> Guessed:
        """Of bool arrays of one shape."""
        right = int((guessed & active).sum())
        wanted, named = int(active.sum()), int(guessed.sum())
        return cls(right / wanted if wanted else 1.0, right / named if named else 1.0)


def train(x: np.ndarray, weight: np.ndarray, active: np.ndarray, rank: int, recall: float) -> Predictor:
    """The predictor of ``rank`` for a weight [F, K] by inputs x float32 [T, K] that activate ``active`` bool [T, F].

    Of the active rows of a neuron it finds about ``recall``.  The same inputs give the same predictor.
    """
    rank = min(rank, *weight.shape)
    energy = (x.T @ x).astype(np.float64) / max(1, len(x))
    energy[np.diag_indices_from(energy)] += _RIDGE * max(float(np.trace(energy)) / len(energy), 1e-30)
    root = np.linalg.cholesky(energy)  # energy = root @ root.T, so errors of W x are those of W root
    left, sizes, right = np.linalg.svd(weight.astype(np.float64) @ root, full_matrices=False)
    inward = np.linalg.solve(root.T, right[:rank].T).T
    outward = left[:, :rank] * sizes[:rank]
    small = Predictor(inward.astype(np.float32), outward.astype(np.float32), np.zeros(len(weight), np.float32))
    scores = (x @ small.inward.T) @ small.outward.T
    return Predictor(small.inward, small.outward, _thresholds(scores, active, recall))


def _thresholds(scores: np.ndarray, active: np.ndarray, recall: float) -> np.ndarray:
    """The thresholds of neurons with ``scores`` [T, F]; of one that was never active the largest score there is."""
    held = np.where(active, scores, np.inf)
    held.sort(axis=0)
    counts = active.sum(axis=0)
    missed = np.floor((1 - recall) * counts).astype(np.int64)
    found = held[np.minimum(missed, len(held) - 1), np.arange(held.shape[1])]
    return np.where(counts > 0, found, np.inf).astype(np.float32)
