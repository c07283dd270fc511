"""Float products and exponentials in the fixed order, and what import measures, in the order of NumPy's sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edge_llm.kernels.reference.layout import pack_tiles, row_sums
from edge_llm.kernels.reference.numeric import lane_dot
from edge_llm.kernels.reference.pointwise import exp as exp_of
from edge_llm.kernels.types import F32, I8, I32, I64

F64 = npt.NDArray[np.float64]


def product(x: F32, weight: F32) -> F32:
    """x[..., M, K], weight[..., N, K] -> [..., M, N], each a `lane_dot`."""
    return lane_dot(np.asarray(x[..., :, None, :]), np.asarray(weight[..., None, :, :]))


def exp(x: F32) -> F32:
    """e^x of every value, as every kernel computes it."""
    return exp_of(x)


def sum_by_halves(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Sum over the last axis in its own type: up to 128 values in eight chains, more by halves."""
    count = x.shape[-1]
    if count > 128:
        half = count // 2 - count // 2 % 8
        return sum_by_halves(x[..., :half]) + sum_by_halves(x[..., half:])
    whole = count - count % 8
    chains = np.zeros((*x.shape[:-1], 8), x.dtype)
    for start in range(0, whole, 8):
        chains = chains + x[..., start : start + 8]
    while chains.shape[-1] > 1:
        chains = chains[..., ::2] + chains[..., 1::2]
    total = chains[..., 0]
    for index in range(whole, count):
        total = total + x[..., index]
    return np.asarray(total)


def rounding_errors(magnitudes: F32, inverse: float) -> tuple[F64, F64, I64]:
    """magnitudes[K, T] -> squared errors in steps, those of values above 127.5 steps, the number of these, each [K]."""
    steps = magnitudes * np.float32(inverse)
    over = steps > 127.5
    lost = np.square(steps - np.minimum(np.rint(steps), np.float32(127)))
    clipped = np.where(over, lost, np.float32(0))
    return sum_by_halves(lost.astype(np.float64)), sum_by_halves(clipped.astype(np.float64)), over.sum(axis=1)


def channel_powers(x: F32, pairs: int) -> tuple[F32, F64]:
    """x[T, K] -> the largest magnitude of every channel, the sum of (x / largest)^(2 pairs) token by token."""
    largest = np.abs(x).max(axis=0, initial=np.float32(0))
    shares = np.square(x / np.where(largest > 0, largest, np.float32(1)))
    raised = shares
    for _ in range(pairs - 1):
        raised = raised * shares
    total = np.zeros(x.shape[1])
    for row in raised:
        total = total + row
    return largest, total


def column_squares(x: F32, unit: float = 1.0) -> F64:
    """x[M, K] -> the sum of (x / unit)^2 of every column, row by row."""
    total = np.zeros(x.shape[1])
    for row in x / np.float32(unit):
        total = total + np.square(row, dtype=np.float64)
    return total


def quantize_rows(weight: F32, hot: I32) -> tuple[I8, F32, I32]:
    """weight[N, K], its channels ``hot`` zero, in INT8 tiles -> tiles, scale [N], row_sum [N]."""
    cold = weight.copy()
    cold[:, hot] = 0
    scale = np.maximum(np.abs(cold).max(axis=1, initial=np.float32(0)) / np.float32(127), np.float32(1e-30))
    finite = np.isfinite(scale)
    steps = np.zeros_like(cold)
    steps[finite] = np.clip(np.rint(cold[finite] / scale[finite, None]), -127, 127)
    tiles = pack_tiles(steps.astype(np.int8))
    return tiles, scale, row_sums(tiles, len(weight))


def row_levels(x: F32, index: int) -> F32:
    """The magnitude at ``index`` of every row in ascending order."""
    return np.asarray(np.sort(np.abs(x), axis=1)[:, index])


def attention(queries: F32, keys: F32, values: F32, scale: float) -> F32:
    """queries [T, H, D] at the last T of the positions of keys and values [G, S, D]: what each sees, weighed."""
    (tokens, heads, dim), (groups, positions, _) = queries.shape, keys.shape
    grouped = queries.reshape(tokens, groups, heads // groups, dim).transpose(1, 2, 0, 3)
    scores = product(grouped, keys[:, None]) * np.float32(scale)
    scores[:, :, np.arange(positions) > positions - tokens + np.arange(tokens)[:, None]] = -np.inf
    raised = exp(scores - scores.max(axis=-1, keepdims=True))
    weights = raised / sum_by_halves(raised)[..., None]
    seen = product(weights, values[:, None].swapaxes(-1, -2))
    return np.ascontiguousarray(seen.transpose(2, 0, 1, 3).reshape(tokens, heads, dim))


def widen(x: npt.NDArray[np.uint16], *, bfloat16: bool) -> F32:
    """Bits of bfloat16 or of float16 as float32."""
    return (x.astype(np.uint32) << 16).view(np.float32) if bfloat16 else x.view(np.float16).astype(np.float32)
