"""The INT8 linear: rows quantized by scales of their own or a static one, exact int32 products, and what that one cuts off.

    y = product_scale * (q @ W.T) (+ bias) + x[:, hot] @ hot_weight + product_scale * (residual @ W.T) (+ add)

with x normed and turned before, and a gate (`kernels.activation`) applied after, where asked for.  Or every row has a scale of
its own, its largest magnitude / 127, and there is nothing to keep apart:

    y = (product_scale * (q @ W.T)) * row_scale (+ bias) (+ add)

`linear` does all of it in one call and is what a runtime uses; the other functions are its parts, bit-identical in
composition. Its weight is an `Int8Linear(tiles, n, k, input_scale, product_scale, row_sum, hot, hot_weight, bias)`: checked
when it is made, it keeps its arrays, which must not change. `input_scale` is the scale of the activations, or None where every
row has its own; `product_scale` f32[N] is always input_scale * weight_scale, or weight_scale; `tiles` is made by
`kernels.layout.pack_tiles`, `hot` i32[H] ascends and may be empty (then `hot_weight` is f16[0, N]). A row's result does not
depend on the other rows, on the number of threads or on the instruction set. `kernels.reference` defines every function.

`Int8Linear(..., turn=p)` turns rows in blocks of p channels behind the norm (`kernels.pointwise.turn`). Such a linear has no
`hot` channels, and neither has one whose rows have scales of their own.

`Int8Linear.of_codes(codes, n, ...)` is the same weight kept as 4-bit codes (`kernels.w4`): the same bits, half the memory.
In `Int8Linear.of_parts(integers, counts, k, ...)`, `integers[i]` holds the tiles (int8) or codes (uint8) of the next
`counts[i]` channels; the other arrays are of all channels.

A card may end its products in float16. `Int8Linear(..., None, *rounding)`, with a `Rounding` in place of the bias, is a
weight with such products: `linear` has linear_rounded in the place of linear_int8, and what is merged is float32 as ever.

All raise ValueError, naming the argument, for a wrong type, shape or order, and for a non-finite activation.
"""

from __future__ import annotations

from edge_llm.kernels import _native
from edge_llm.kernels._native import Int8Linear, ThreadPool
from edge_llm.kernels.activation import Activation, numbers
from edge_llm.kernels.types import F16, F32, I8, I32, Residual, Rounding

__all__ = [
    "Int8Linear",
    "Residual",
    "Rounding",
    "hot_product",
    "linear",
    "linear_int8",
    "linear_rounded",
    "merge",
    "overflow_product",
    "quantize",
]


def quantize(
    x: F32,
    input_scale: float,
    hot: I32,
    pool: ThreadPool,
    *,
    residual: bool = True,
    gain: F32 | None = None,
    eps: float = 0.0,
    turn: int = 0,
) -> tuple[I8, Residual]:
    """x[M, K] -> (q[M, K], residual): q = clamp(rint(x / input_scale), -127, 127), hot columns of q are 0.

    The residual keeps x / input_scale - q where |x / input_scale| > 127.5 outside the hot columns; empty when `residual` is
    false. With `gain` f32[K] x is `rms_norm(x, gain, eps)` first; with `turn` its blocks of so many channels are then turned.
    """
    q, row_start, column, value = _native.quantize(x, input_scale, hot, pool, residual, gain, eps, turn)
    return q, Residual(row_start, column, value)


def linear_int8(
    q: I8,
    tiles: I8,
    n: int,
    product_scale: F32,
    row_sum: I32,
    pool: ThreadPool,
    *,
    bias: F32 | None = None,
    out: F32 | None = None,
) -> F32:
    """float32(q[M, K] @ W[N, K].T) * product_scale[N] (+ bias[N]) -> [M, N].

    `row_sum` is `kernels.layout.row_sums(tiles, n)`.
    """
    return _native.linear_int8(q, tiles, n, product_scale, row_sum, pool, bias, out)


def linear_rounded(
    q: I8, tiles: I8, n: int, rounding: Rounding, row_sum: I32, pool: ThreadPool, *, out: F32 | None = None
) -> F32:
    """The float16 that `rounding` makes of q[M, K] @ W[N, K].T -> [M, N], as float32."""
    return _native.linear_rounded(q, tiles, n, *rounding, row_sum, pool, out)


def hot_product(x: F32, hot: I32, hot_weight: F16, pool: ThreadPool, *, out: F32 | None = None) -> F32:
    """x[M, hot] @ hot_weight[H, N] -> [M, N]: one fma per hot column in ascending order, from 0."""
    return _native.hot_product(x, hot, hot_weight, pool, out)


def overflow_product(residual: Residual, tiles: I8, n: int, k: int, pool: ThreadPool, *, out: F32 | None = None) -> F32:
    """residual[M, K] @ W[N, K].T -> [M, N]: one fma per value of a row in the order of its columns, from 0.

    Rows of `out` where the residual has no values are left as they were: `merge` does not read them, and most may be such.
    Values are those of `quantize`, above 1/2: the bits of values below 2^-102 are not the reference's.
    """
    row_start, column, value = residual
    return _native.overflow_product(row_start, column, value, tiles, n, k, pool, out)


def merge(
    y: F32,
    hot_sum: F32 | None,
    residual: Residual | None,
    overflow_sum: F32 | None,
    product_scale: F32,
    pool: ThreadPool,
    *,
    add: F32 | None = None,
) -> None:
    """Finish a product y[M, N] of `linear_int8` in place.

    + hot_sum[M, N], + product_scale[N] * overflow_sum[M, N] where a row of `residual` has values, + add.

    `hot_sum` is None where there are no hot columns; `residual` and `overflow_sum`, its `overflow_product`, where nothing is
    added back. `add` f32[M, N] may be y.
    """
    row_start = None if residual is None else residual.row_start
    _native.merge(y, hot_sum, row_start, overflow_sum, product_scale, pool, add)


def linear(
    x: F32,
    weight: Int8Linear,
    pool: ThreadPool,
    *,
    add: F32 | None = None,
    shadow: bool = True,
    gain: F32 | None = None,
    eps: float = 0.0,
    gate: Activation | None = None,
    swiglu: bool = False,
    out: F32 | None = None,
) -> F32:
    """x[M, K] -> y[M, N]: quantize -> linear_int8 -> merge with hot_product and `add` f32[M, N], in one pass over y.

    Without `shadow` the hot columns and the residual are left out. With `gain` f32[K] x is `rms_norm(x, gain, eps)` first.
    With a `gate`, which excludes `add`, the result is `gated(y, gate)` [M, N/2]; `swiglu` is the gate SILU. `out` may be `add`
    itself, and share memory with `x` where the weight has one part. When an activation is not finite, `out` is left as it was.
    """
    kind, limit = numbers(gate, swiglu)
    if kind and add is None and not weight.swiglu_in_one_pass:
        return _native.gated(_native.linear(x, weight, pool, add, shadow, None, gain, eps, 0, 0.0), kind, limit, pool, out)
    return _native.linear(x, weight, pool, add, shadow, out, gain, eps, kind, limit)
