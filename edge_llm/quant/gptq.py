"""GPTQ: columns are rounded one after the other, and those that are left take up the error in the output.

After Frantar et al., 2022 (arXiv 2210.17323), algorithm 1, with the steps of all columns fixed before ("static groups"),
columns in descending order of their input's energy, and hot channels last, which are not rounded and so absorb what is left
(OWQ: Lee et al., 2023, arXiv 2306.02272).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels.floats import product

Rounded = Callable[[int, np.ndarray], np.ndarray]
"""What column j of a matrix becomes: (j, float32 [N]) -> float32 [N]."""

ENOUGH = 10.0
"""Tokens per column from which on little damping is needed."""
DAMPING, MORE_DAMPING = 0.01, 0.1
"""Of the mean energy of an input channel, added to every channel's: with enough tokens, and with fewer."""
PASSES = 3
"""Passes of coordinate descent; a fourth changes next to nothing."""
_BLOCK = 128
"""Columns after which the rest of the matrix is brought up to date."""


def summed_energy(x: np.ndarray) -> np.ndarray:
    """x^T x of calibration rows float32 [T, K]: float32 [K, K]."""
    columns = np.ascontiguousarray(x.T)
    return product(columns, columns)


def input_energy(x: np.ndarray) -> np.ndarray:
    """The mean energy of these rows, x^T x / T."""
    return summed_energy(x) / np.float32(max(1, len(x)))


def damping(tokens: int, columns: int) -> float:
    """How much is added to the diagonal; fewer tokens than columns say little of a matrix's directions."""
    return DAMPING if tokens >= ENOUGH * columns else MORE_DAMPING


def damped_energy(energy: np.ndarray, share: float) -> np.ndarray:
    """``energy`` with that ``share`` of its mean diagonal added to it; more where it is singular all the same."""
    mean = float(np.diag(energy).mean(dtype=np.float64)) or 1.0
    while True:
        found = energy + np.float32(share * mean) * np.eye(len(energy), dtype=np.float32)
        try:
            np.linalg.cholesky(found.astype(np.float64))
        except np.linalg.LinAlgError:
            share *= 2
            continue
        return found


def gptq(weight: np.ndarray, energy: np.ndarray, hot: np.ndarray, rounded: Rounded) -> np.ndarray:
    """``weight`` float32 [N, K] with its columns ``rounded``, for inputs of ``energy`` [K, K], positive definite.

    The ``hot`` columns int32 [H] are not rounded.
    """
    order = column_order(np.diag(energy), hot)
    feedback = _feedback(energy[np.ix_(order, order)])
    left, found = np.ascontiguousarray(weight[:, order].T), np.empty_like(weight.T)  # a column is one run of memory
    kept = np.isin(order, hot)
    for start in range(0, len(order), _BLOCK):
        end = min(start + _BLOCK, len(order))
        errors = np.zeros((end - start, len(weight)), np.float32)
        for at in range(start, end):
            column = left[at] if kept[at] else rounded(int(order[at]), left[at])
            found[order[at]] = column
            errors[at - start] = (left[at] - column) / feedback[at, at]
            left[at + 1 : end] -= np.outer(feedback[at, at + 1 : end], errors[at - start])
        left[end:] -= feedback[start:end, end:].T @ errors
    return np.ascontiguousarray(found.T)


def descend(
    weight: np.ndarray, found: np.ndarray, energy: np.ndarray, hot: np.ndarray, rounded: Rounded, passes: int = PASSES
) -> np.ndarray:
    """``found`` float32 [N, K], made of ``weight``, brought nearer to it for inputs of ``energy`` [K, K].

    Column after column becomes what is best while all others stay: coordinate descent (Behdin et al., 2023, arXiv 2309.01885).
    """
    order = column_order(np.diag(energy), hot)
    ordered = np.ascontiguousarray(energy[np.ix_(order, order)])
    wanted, now = np.ascontiguousarray(weight[:, order].T), np.ascontiguousarray(found[:, order].T)
    kept = np.isin(order, hot)
    for _ in range(passes):
        for start in range(0, len(order), _BLOCK):
            end = min(start + _BLOCK, len(order))
            pull = ordered[start:end] @ (wanted - now)
            for at in range(start, end):
                best = now[at] + pull[at - start] / ordered[at, at]
                column = best if kept[at] else rounded(int(order[at]), best)
                pull -= np.outer(ordered[start:end, at], column - now[at])
                now[at] = column
    return np.ascontiguousarray(now[np.argsort(order)].T)


def column_order(diagonal: np.ndarray, hot: np.ndarray) -> np.ndarray:
    """Columns by descending energy, the ``hot`` ones last: int64 [K]."""
    last = np.zeros(len(diagonal), bool)
    last[hot] = True
    return np.lexsort((-diagonal, last))


def _feedback(energy: np.ndarray) -> np.ndarray:
    """The upper factor U of the inverse, energy^-1 = U^T U, float32."""
    backwards = np.linalg.cholesky(energy.astype(np.float64)[::-1, ::-1])
    return _inverse(np.ascontiguousarray(backwards[::-1, ::-1])).astype(np.float32)


def _inverse(upper: np.ndarray) -> np.ndarray:
    """The inverse of an upper triangular matrix, by halves."""
    size = len(upper)
    if size <= 64:
        return np.triu(np.linalg.inv(upper))
    half = size // 2
    found = np.zeros_like(upper)
    found[:half, :half], found[half:, half:] = _inverse(upper[:half, :half]), _inverse(upper[half:, half:])
    found[:half, half:] = -found[:half, :half] @ upper[:half, half:] @ found[half:, half:]
    return found
