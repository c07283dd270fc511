"""Floats of 8 bits, E4M3 without infinities (float8_e4m3fn): a sign, four bits of exponent with bias 7, three of fraction."""

from __future__ import annotations

from functools import cache

import numpy as np


@cache
def e4m3_values() -> np.ndarray:
    """The float32 value of each of the 256 codes; 0x7F and 0xFF are NaN."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    size = np.where(exponent, np.ldexp(8 + fraction, exponent - 10), np.ldexp(fraction, -9))
    values = np.where(codes & 128, -size, size).astype(np.float32)
    values[[0x7F, 0xFF]] = np.nan
    return values
