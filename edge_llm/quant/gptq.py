"""GPTQ: columns are rounded one after the other, and those that are left take up the error in the output.

After Frantar et al., 2022 (arXiv 2210.17323), algorithm 1, with the steps of all columns fixed before ("static groups"),
columns in descending order of their input's energy, and hot channels last, which are not rounded and so absorb what is left
(OWQ: Lee et al., 2023, arXiv 2306.02272).  No inverse is needed: with energy = U U^T the squared error is that of (W - Q) U,
whose columns are made small one after the other (Chen et al., 2025, arXiv 2507.18553).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels import ThreadPool
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
_STRIP = 512
"""Rows of the energy that are computed at a time."""


def summed_energy(x: np.ndarray, pool: ThreadPool | None = None) -> np.ndarray:
    """x^T x of calibration rows float32 [T, K]: float32 [K, K].  It is symmetric: one half is the other's mirror image."""
    columns = np.ascontiguousarray(x.T)
    found = np.empty((len(columns), len(columns)), np.float32)
    for start in range(0, len(columns), _STRIP):
        strip = slice(start, start + _STRIP)
        found[strip, start:] = product(columns[strip], columns[start:], pool)
        found[start:, strip] = found[strip, start:].T
    return found


def input_energy(x: np.ndarray) -> np.ndarray:
    """The mean energy of these rows, x^T x / T."""
    return summed_energy(x) / np.float32(max(1, len(x)))


def damping(tokens: int, columns: int) -> float:
    """How much is added to the diagonal; fewer tokens than columns say little of a matrix's directions."""
    return DAMPING if tokens >= ENOUGH * columns else MORE_DAMPING


def damped_energy(energy: np.ndarray, share: float) -> np.ndarray:
    """``energy`` with that ``share`` of its mean diagonal added to it."""
    return energy + np.float32(share * _mean_energy(energy)) * np.eye(len(energy), dtype=np.float32)


def _mean_energy(energy: np.ndarray) -> float:
    return float(np.diag(energy).mean(dtype=np.float64)) or 1.0


def gptq(weight: np.ndarray, energy: np.ndarray, hot: np.ndarray, rounded: Rounded) -> np.ndarray:
    """``weight`` float32 [N, K] with its columns ``rounded``, for inputs of ``energy`` [K, K], symmetric.

    The ``hot`` columns int32 [H] are not rounded.
    """
    order = column_order(np.diag(energy), hot)
    factor = _factor(energy[np.ix_(order, order)])
    wanted = np.ascontiguousarray(weight[:, order].T)  # a column is one run of memory
    found, errors = np.empty_like(wanted), np.empty_like(wanted)
    kept, room = np.isin(order, hot), np.empty((_BLOCK, len(weight)), np.float32)
    for start in range(0, len(order), _BLOCK):
        end = min(start + _BLOCK, len(order))
        pull = factor[:start, start:end].T @ errors[:start]
        for at in range(start, end):
            best = wanted[at] + pull[at - start] / factor[at, at]
            found[at] = best if kept[at] else rounded(int(order[at]), best)
            errors[at] = wanted[at] - found[at]
            _add_outer(pull[at + 1 - start :], factor[at, at + 1 : end], errors[at], room)
    return np.ascontiguousarray(found[np.argsort(order)].T)


def descend(
    weight: np.ndarray, found: np.ndarray, energy: np.ndarray, hot: np.ndarray, rounded: Rounded, passes: int = PASSES
) -> np.ndarray:
    """``found`` float32 [N, K], made of ``weight``, brought nearer to it for inputs of ``energy`` [K, K].

    Column after column becomes what is best while all others stay: coordinate descent (Behdin et al., 2023, arXiv 2309.01885).
    """
    order = column_order(np.diag(energy), hot)
    ordered = np.ascontiguousarray(energy[np.ix_(order, order)])
    wanted, now = np.ascontiguousarray(weight[:, order].T), np.ascontiguousarray(found[:, order].T)
    kept, room = np.isin(order, hot), np.empty((_BLOCK, len(weight)), np.float32)
    for _ in range(passes):
        for start in range(0, len(order), _BLOCK):
            end = min(start + _BLOCK, len(order))
            pull = ordered[start:end] @ (wanted - now)
            for at in range(start, end):
                best = now[at] + pull[at - start] / ordered[at, at]
                column = best if kept[at] else rounded(int(order[at]), best)
                _add_outer(pull[at + 1 - start :], ordered[at, at + 1 : end], now[at] - column, room)
                now[at] = column
    return np.ascontiguousarray(now[np.argsort(order)].T)


def _add_outer(rows: np.ndarray, factors: np.ndarray, row: np.ndarray, room: np.ndarray) -> None:
    """Add ``factors`` [M] times ``row`` [N] to ``rows`` [M, N]; ``room`` holds the products."""
    rows += np.multiply(factors[:, None], row, out=room[: len(rows)])


def column_order(diagonal: np.ndarray, hot: np.ndarray) -> np.ndarray:
    """Columns by descending energy, the ``hot`` ones last: int64 [K]."""
    last = np.zeros(len(diagonal), bool)
    last[hot] = True
    return np.lexsort((-diagonal, last))


def _factor(energy: np.ndarray) -> np.ndarray:
    """The upper triangle U of energy = U U^T, float32; an ``energy`` that is singular is damped first."""
    share = DAMPING
    while True:
        try:
            backwards = np.linalg.cholesky(energy.astype(np.float64)[::-1, ::-1])
        except np.linalg.LinAlgError:
            energy = damped_energy(energy, share)
            share *= 2
            continue
        return backwards[::-1, ::-1].astype(np.float32)
