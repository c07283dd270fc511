"""The numeric rule: rounding, and the order of every float sum."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from edge_llm.kernels.types import F32

LANES = 16
Float = TypeVar("Float", np.float32, np.float64)


def fma(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> F32:
    """float32 `a * b + c` with one rounding, broadcast like NumPy.

    The product of two float32 is exact in float64. The sum is rounded to odd there, so that the second rounding, to
    float32, gives what a single rounding would (Boldo and Melquiond, 2008: 53 >= 2 * 24 + 2).
    """
    product = np.asarray(a, np.float32).astype(np.float64) * np.asarray(b, np.float32).astype(np.float64)
    addend = np.asarray(c, np.float32).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.asarray(product + addend)
        back = total - product
        error = (product - (total - back)) + (addend - back)  # TwoSum: total + error is the exact sum
        bits = total.view(np.int64).copy()
        inexact_even = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
        step = np.where((error > 0) == (total > 0), 1, -1)  # towards the exact value
        bits = np.where(inexact_even, bits + step, bits)
        return np.asarray(bits.view(np.float64).astype(np.float32))


def to_lanes(x: F32) -> F32:
    """x[..., K] -> [..., ceil(K/16), 16], the missing elements +0."""
    length = x.shape[-1]
    steps = -(-length // LANES)
    padded = np.zeros((*x.shape[:-1], steps * LANES), np.float32)
    padded[..., :length] = x
    return padded.reshape(*x.shape[:-1], steps, LANES)


def reduce_lanes(lanes: npt.NDArray[Float]) -> npt.NDArray[Float]:
    """The fixed tree over the last axis of 16 lanes -> [...]."""
    width = LANES // 2
    while width:
        lanes = lanes[..., :width] + lanes[..., width : 2 * width]
        width //= 2
    return np.asarray(lanes[..., 0])


def lane_sum(x: F32) -> F32:
    """Sum over the last axis in the fixed order: x[..., K] -> [...]."""
    blocks = to_lanes(x)
    total = np.zeros((*x.shape[:-1], LANES), np.float32)
    for step in range(blocks.shape[-2]):
        total = total + blocks[..., step, :]
    return reduce_lanes(total)


def lane_dot(x: F32, y: F32) -> F32:
    """Sum of products over the last axis in the fixed order, one fma per lane and step: [..., K], [..., K] -> [...]."""
    x_blocks, y_blocks = np.broadcast_arrays(to_lanes(x), to_lanes(y))
    total = np.zeros((*x_blocks.shape[:-2], LANES), np.float32)
    for step in range(x_blocks.shape[-2]):
        total = fma(x_blocks[..., step, :], y_blocks[..., step, :], total)
    return reduce_lanes(total)


def into(out: F32 | None, value: F32) -> F32:
    if out is None:
        return value
    out[:] = value
    return out
