"""The INT8 linear: activations quantized by one static scale, exact int32 products, and what the scale cuts off kept apart.

    y = scale * (q @ W.T) (+ bias) + x[:, hot] @ hot_weight + scale * (residual @ W.T) (+ add)

`linear` does all of it in one call and is what a runtime uses; the other functions are its parts, bit-identical in
composition. `scale` f32[N] is always activation scale * weight scale, `tiles` is made by `kernels.layout.pack_tiles`, `hot`
i32[H] ascends and may be empty (then `hot_weight` is f16[0, N]). A row's result does not depend on the other rows, on the
number of threads or on the instruction set. `kernels.reference` defines every function.
All raise ValueError, naming the argument, for a wrong type, shape or order, and for a non-finite activation.
"""

from __future__ import annotations

from kernels import _native
from kernels._native import ThreadPool
from kernels.reference import F16, F32, I8, I32, Residual

__all__ = ["Residual", "add_hot", "add_residual", "linear", "linear_int8", "quantize"]


def quantize(x: F32, scale: float, hot: I32, pool: ThreadPool, *, residual: bool = True) -> tuple[I8, Residual]:
    """x[M, K] -> (q[M, K], residual): q = clamp(rint(x / scale), -127, 127), hot columns of q are 0.

    The residual keeps x / scale - q where |x / scale| > 127.5 outside the hot columns; empty when `residual` is false.
    """
    q, row_start, column, value = _native.quantize(x, scale, hot, pool, residual)
    return q, Residual(row_start, column, value)


def linear_int8(
    q: I8,
    tiles: I8,
    n: int,
    scale: F32,
    row_sum: I32,
    pool: ThreadPool,
    *,
    bias: F32 | None = None,
    out: F32 | None = None,
) -> F32:
    """float32(q[M, K] @ W[N, K].T) * scale[N] (+ bias[N]) -> [M, N]. `row_sum` is `kernels.layout.row_sums(tiles, n)`."""
    return _native.linear_int8(q, tiles, n, scale, row_sum, pool, bias, out)


def add_hot(out: F32, x: F32, hot: I32, hot_weight: F16, pool: ThreadPool) -> None:
    """In place: out[M, N] += x[M, hot] @ hot_weight[H, N], one fma per hot column in ascending order."""
    _native.add_hot(out, x, hot, hot_weight, pool)


def add_residual(out: F32, residual: Residual, tiles: I8, k: int, scale: F32, pool: ThreadPool) -> None:
    """In place: out[M, N] += scale[N] * (residual[M, K] @ W[N, K].T), by ascending column."""
    _native.add_residual(out, residual.row_start, residual.column, residual.value, tiles, k, scale, pool)


def linear(
    x: F32,
    tiles: I8,
    n: int,
    input_scale: float,
    scale: F32,
    row_sum: I32,
    hot: I32,
    hot_weight: F16,
    pool: ThreadPool,
    *,
    bias: F32 | None = None,
    add: F32 | None = None,
    shadow: bool = True,
    out: F32 | None = None,
) -> F32:
    """x[M, K] -> y[M, N]: quantize -> linear_int8 -> add_hot -> add_residual -> + add[M, N], in one pass over y.

    `input_scale` is the activation scale. Without `shadow` the hot columns and the residual are left out. `out` may be `add`
    itself. When an activation is not finite, `out` is left as it was.
    """
    return _native.linear(x, tiles, n, input_scale, scale, row_sum, hot, hot_weight, pool, bias, add, shadow, out)
