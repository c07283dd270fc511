"""The INT8 linear and its parts."""

from __future__ import annotations

import numpy as np

from edge_llm.kernels.activation import SILU, Activation
from edge_llm.kernels.reference.layout import unpack_tiles
from edge_llm.kernels.reference.numeric import fma, into
from edge_llm.kernels.reference.pointwise import gated, rms_norm
from edge_llm.kernels.reference.turn import turn as turned
from edge_llm.kernels.types import F16, F32, I8, I32, Residual, Rounding

LEAST = np.float32(1e-30)
"""The least magnitude that becomes 127: smaller rows have the scale of a row this large, so that its inverse is finite."""


def quantize(
    x: F32, input_scale: float, hot: I32, *, residual: bool = True, gain: F32 | None = None, eps: float = 0.0, turn: int = 0
) -> tuple[I8, Residual]:
    """x[M, K] -> (q[M, K], residual): y = x * (1/input_scale), at hot columns x * 0; q = clamp(rint(y), -127, 127).

    The residual keeps y - q where |y| > 127.5 (empty when `residual` is false). With `gain` f32[K] x is
    `rms_norm(x, gain, eps)` first; with `turn` it is then `turn(x, turn)`, and there are no hot columns.
    Raises ValueError("non-finite activation") when any y is infinite or NaN.
    """
    x = _ready(x, gain, eps, turn)
    factor = np.full(x.shape[1], np.float32(1) / np.float32(input_scale))
    factor[hot] = 0
    with np.errstate(over="ignore", invalid="ignore"):
        y = x * factor
    if not np.isfinite(y).all():
        raise ValueError("non-finite activation")
    q = np.rint(np.clip(y, np.float32(-127), np.float32(127))).astype(np.int8)
    over = (np.abs(y) > np.float32(127.5)) & residual
    row, column = np.nonzero(over)
    row_start = np.zeros(x.shape[0] + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=x.shape[0]), out=row_start[1:])
    value = y[row, column] - q[row, column].astype(np.float32)
    return q, Residual(row_start, column.astype(np.int32), value)


def quantize_rows(x: F32, *, gain: F32 | None = None, eps: float = 0.0, turn: int = 0) -> tuple[I8, F32]:
    """x[M, K] -> (q[M, K], scale[M]): every row's largest magnitude becomes 127.

    most = max(max |x|, `LEAST`), scale = most / 127, q = clamp(rint(x * (127 / most)), -127, 127), after norm and turn as in
    `quantize`. Raises ValueError("non-finite activation").
    """
    x = _ready(x, gain, eps, turn)
    if not np.isfinite(x).all():
        raise ValueError("non-finite activation")
    most = np.maximum(np.abs(x).max(axis=1, initial=0), LEAST)
    y = x * (np.float32(127) / most)[:, None]
    return np.rint(np.clip(y, np.float32(-127), np.float32(127))).astype(np.int8), most / np.float32(127)


def _ready(x: F32, gain: F32 | None, eps: float, turn: int) -> F32:
    normed = x if gain is None else rms_norm(x, gain, eps)
    return turned(normed, turn)


def linear_int8(
    q: I8, tiles: I8, n: int, product_scale: F32, row_sum: I32, *, bias: F32 | None = None, out: F32 | None = None
) -> F32:
    """q[M, K] @ W[N, K].T in exact int32, then float32(dot) * product_scale[N] (+ bias[N]) -> [M, N].

    `row_sum` i32[N] serves variants that shift the activations to unsigned; it never changes the result.
    Raises ValueError for a -128 in q: the range is symmetric, [-127, 127].
    """
    y = _dot(q, tiles, n).astype(np.float32) * product_scale
    if bias is not None:
        y = y + bias
    return into(out, y)


def linear_rounded(q: I8, tiles: I8, n: int, rounding: Rounding, row_sum: I32, *, out: F32 | None = None) -> F32:
    """The same sums as a card ends them: float16(clamp(float32(dot + bias) * scale, -65504, 65504)), as float32 -> [M, N].

    dot + bias is exact; a bias that leaves an accumulator of K products no room in int32 is refused.
    """
    total = _dot(q, tiles, n)
    if rounding.bias is not None:
        if (np.abs(rounding.bias.astype(np.int64)) > np.iinfo(np.int32).max - 127 * 127 * q.shape[1]).any():
            raise ValueError("`rounded_bias` leaves no room for the product")
        total = total + rounding.bias
    with np.errstate(over="ignore"):
        y = np.clip(total.astype(np.float32) * rounding.scale, np.float32(-65504), np.float32(65504))
    return into(out, y.astype(np.float16).astype(np.float32))


def _dot(q: I8, tiles: I8, n: int) -> I32:
    if q.size and q.min() == -128:
        raise ValueError("`q` holds `-128`; int8 activations are symmetric, in [-127, 127]")
    weight = unpack_tiles(tiles, n, q.shape[1])
    # float64 holds every int32 sum exactly, and is the quick way to multiply in NumPy.
    return (q.astype(np.float64) @ weight.astype(np.float64).T).astype(np.int32)


def hot_product(x: F32, hot: I32, hot_weight: F16, *, out: F32 | None = None) -> F32:
    """x[M, hot] @ hot_weight[H, N] -> [M, N]: from 0, for h ascending sum = fma(x[:, hot[h]], hot_weight[h], sum)."""
    total = np.zeros((x.shape[0], hot_weight.shape[1]), np.float32)
    for h, column in enumerate(hot):
        total = fma(x[:, column, None], hot_weight[h].astype(np.float32), total)
    return into(out, total)


def overflow_product(residual: Residual, tiles: I8, n: int, k: int, *, out: F32 | None = None) -> F32:
    """residual[M, K] @ W[N, K].T -> [M, N]: from 0, for a row's columns ascending sum = fma(r, W[:, c], sum).

    Rows of `out` where the residual has no values are left as they were.
    """
    weight = unpack_tiles(tiles, n, k).astype(np.float32)
    total = np.zeros((len(residual.row_start) - 1, n), np.float32) if out is None else out
    for m in np.flatnonzero(np.diff(residual.row_start)):
        at = slice(residual.row_start[m], residual.row_start[m + 1])
        total[m] = 0
        for column, value in zip(residual.column[at], residual.value[at], strict=True):
            total[m] = fma(value, weight[:, column], total[m])
    return total


def merge(
    y: F32,
    hot_sum: F32 | None,
    residual: Residual | None,
    overflow_sum: F32 | None,
    product_scale: F32,
    *,
    add: F32 | None = None,
) -> None:
    """In place: y[M, N] += hot_sum; rows with residual: y = fma(overflow_sum, product_scale, y); y += add.

    `overflow_sum` f32[M, N] is the `overflow_product` of `residual`.
    """
    added = None if add is None else add.copy()
    if hot_sum is not None:
        y += hot_sum
    if residual is not None and overflow_sum is not None:
        rows = np.diff(residual.row_start) > 0
        y[rows] = fma(overflow_sum[rows], product_scale, y[rows])
    if added is not None:
        y += added


def linear(
    x: F32,
    tiles: I8,
    n: int,
    input_scale: float | None,
    product_scale: F32,
    row_sum: I32,
    hot: I32,
    hot_weight: F16,
    *,
    bias: F32 | None = None,
    rounding: Rounding | None = None,
    add: F32 | None = None,
    shadow: bool = True,
    gain: F32 | None = None,
    eps: float = 0.0,
    gate: Activation | None = None,
    swiglu: bool = False,
    turn: int = 0,
    out: F32 | None = None,
) -> F32:
    """quantize (after rms_norm with `gain`) -> linear_int8 -> merge with the two products beside it and add[M, N].

    `product_scale` is input_scale * weight_scale. With `rounding`, in place of a bias, the product is that of
    linear_rounded. Without `shadow` the hot columns and the residual are lost. With `turn` rows are turned behind the norm.
    Without an `input_scale` every row has its own, `product_scale` is weight_scale, and the product is
    (float32(dot) * product_scale) * row_scale (+ bias).
    With a `gate`, which excludes `add`, the result is gated(y, gate) [M, N/2]; `swiglu` is the gate SILU.
    """
    gate = SILU if swiglu else gate
    if gate is not None and add is not None:
        raise ValueError("`gate` takes no `add`")
    normed = x if gain is None else rms_norm(x, gain, eps)
    if input_scale is None:
        y = _row_scaled(normed, tiles, n, product_scale, bias, turn)
        merge(y, None, None, None, product_scale, add=add)
        return into(out, y if gate is None else gated(y, gate))
    q, residual = quantize(normed, input_scale, hot, residual=shadow, turn=turn)
    if rounding is None:
        y = linear_int8(q, tiles, n, product_scale, row_sum, bias=bias)
    else:
        y = linear_rounded(q, tiles, n, rounding, row_sum)
    hot_sum = hot_product(normed, hot, hot_weight) if shadow and len(hot) else None
    merge(y, hot_sum, residual, overflow_product(residual, tiles, n, x.shape[1]), product_scale, add=add)
    return into(out, y if gate is None else gated(y, gate))


def _row_scaled(x: F32, tiles: I8, n: int, product_scale: F32, bias: F32 | None, turn: int) -> F32:
    """The product of rows that have scales of their own."""
    q, row_scale = quantize_rows(x, turn=turn)
    y = (_dot(q, tiles, n).astype(np.float32) * product_scale) * row_scale[:, None]
    return y if bias is None else y + bias
