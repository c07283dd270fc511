"""GPTQ and coordinate descent, column after column: `kernels.gptq` gives the same bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edge_llm.kernels.reference.numeric import fma
from edge_llm.kernels.reference.w4 import GROUP, nearest
from edge_llm.kernels.types import F32, I64

Rounded = Callable[[int, F32], F32]
"""What column j of a matrix becomes: (j, f32[N]) -> f32[N]."""


def whole_steps(step: F32) -> Rounded:
    """INT8 with a step[N] per row: the nearest of -127..127 steps."""
    return lambda column, values: np.asarray(np.clip(np.rint(values / step), -127, 127) * step, np.float32)


def code_steps(step: F32, inverse: F32, shift: F32) -> Rounded:
    """W4 with step, inverse (0 where all is 0) and shift [ceil(K/32), N]: the nearest code of the codebook."""

    def rounded(column: int, values: F32) -> F32:
        group = column // GROUP
        code = nearest(values * inverse[group] + shift[group])
        return np.asarray((code - shift[group]) * step[group], np.float32)

    return rounded


def factor(energy: F32) -> F32 | None:
    """The lower triangle L[K, K] with energy[K, K] = L^T L, from the last row up; None where there is none.

    A value is the energy less a chain of fma over the rows below, from the last up, by the root of the diagonal's.
    """
    lower = np.zeros_like(energy)
    for j in range(len(energy) - 1, -1, -1):
        explained = np.zeros(j + 1, np.float32)
        for m in range(len(energy) - 1, j, -1):
            explained = fma(lower[m, j], lower[m, : j + 1], explained)
        left = energy[j, : j + 1] - explained
        if not (left[j] > 0 and np.isfinite(left[j])):
            return None
        lower[j, : j + 1] = left / np.sqrt(left[j])
        lower[j, j] = np.sqrt(left[j])
    return lower


def fit(weight: F32, lower: F32, order: I64, kept: int, rounded: Rounded) -> F32:
    """weight[N, K] rounded, column after column in ``order`` [K]; the last ``kept`` are not rounded.

    The errors of the columns before pull at each: a chain of fma with a row of ``lower``, which has that order.
    """
    wanted = weight[:, order].T
    found, errors = np.empty_like(wanted), np.empty_like(wanted)
    for at, column in enumerate(order.tolist()):
        pull = np.zeros(len(weight), np.float32)
        for before in range(at):
            pull = fma(lower[at, before], errors[before], pull)
        best = wanted[at] + pull / lower[at, at]
        found[at] = best if at >= len(order) - kept else rounded(column, best)
        errors[at] = wanted[at] - found[at]
    return np.ascontiguousarray(found[np.argsort(order)].T)


BLOCK = 64
"""Columns whose pull is computed at a time, and then corrected for those of them that have changed."""


def descend(weight: F32, found: F32, energy: F32, order: I64, kept: int, rounded: Rounded, passes: int) -> F32:
    """``found`` [N, K], made of ``weight``, brought nearer to it: every column becomes the best while the others stay.

    ``energy`` [K, K] has its rows and columns in ``order``.
    """
    wanted, now = weight[:, order].T, found[:, order].T.copy()
    for _ in range(passes):
        for start in range(0, len(order), BLOCK):
            end = min(start + BLOCK, len(order))
            errors, pull = wanted - now, np.zeros((end - start, len(weight)), np.float32)
            for other in range(len(order)):
                pull = fma(energy[start:end, other, None], errors[other], pull)
            for at in range(start, end):
                best = now[at] + pull[at - start] / energy[at, at]
                column = best if at >= len(order) - kept else rounded(int(order[at]), best)
                later = slice(at + 1 - start, None)
                pull[later] = fma(energy[at, at + 1 : end, None], now[at] - column, pull[later])
                now[at] = column
    return np.ascontiguousarray(now[np.argsort(order)].T)
