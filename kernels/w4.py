"""W4: an INT8 weight kept as 4-bit codes, w8[n, k] = m * (CODEBOOK[code[n, k]] - z), m and z for 32 columns of a row each.

`kernels.linear.Int8Linear.of_codes` multiplies panels of codes; `kernels.reference.w4` defines their layout and every function.
All raise ValueError, naming the argument, for a wrong type, shape or value.
"""

from __future__ import annotations

from kernels import _native
from kernels._native import ThreadPool
from kernels.types import F32, I8, U8


def expand(panels: U8, n: int, k: int, pool: ThreadPool) -> I8:
    """panels -> tiles of the INT8 weight [N, K]; rows beyond N are 0."""
    return _native.expand_codes(panels, n, k, pool)


def search(weight: F32, importance: F32, pool: ThreadPool) -> tuple[U8, U8, U8, F32]:
    """Codes[N, K], multipliers and shifts [N, ceil(K/32)] and scales[N] for weight[N, K] ~ scale * w8, of magnitudes to 1e15.

    Of some scales for a row, and multipliers and shifts for a group, those with the least sum of importance[K] * error^2.
    """
    return _native.search_codes(weight, importance, pool)
