"""Float products and functions that give the same bits on every processor, which NumPy's own do not.

NumPy hands a product to a BLAS, which adds in another order on another processor, and computes exp, log, powers, sines and
cosines by whatever instructions there are. What is written into files, or read from another machine's, is computed here.

`product` and `exp` are native, float32, and run on the calling thread unless they get a `pool`; `kernels.reference.floats`
defines them, and what import measures, each in one pass (`rounding_errors` to `row_levels`). `exp64`, `log64`, `power64`
and `cos_sin64` are NumPy, float64, made of sums, products, quotients and roundings alone, which IEEE 754 defines to the last
bit; they are within 2 units in the last place (`power64`: as exact as y log x is).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge_llm.kernels import _native
from edge_llm.kernels.types import F32, I8, I32, I64

F64 = npt.NDArray[np.float64]


def product(x: F32, weight: F32, pool: _native.ThreadPool | None = None) -> F32:
    """x[..., M, K] @ weight[..., N, K] transposed -> [..., M, N]; leading axes are broadcast. A row depends on no other."""
    threads = pool or _native.ThreadPool(1)
    if x.ndim == weight.ndim == 2:
        return _native.float_product(np.ascontiguousarray(x), np.ascontiguousarray(weight), threads)
    stacks = np.broadcast_shapes(x.shape[:-2], weight.shape[:-2])
    left = np.broadcast_to(x, (*stacks, *x.shape[-2:])).reshape(-1, *x.shape[-2:])
    right = np.broadcast_to(weight, (*stacks, *weight.shape[-2:])).reshape(-1, *weight.shape[-2:])
    out = np.empty((len(left), x.shape[-2], weight.shape[-2]), np.float32)
    for one, a, b in zip(out, left, right, strict=True):
        one[:] = _native.float_product(np.ascontiguousarray(a), np.ascontiguousarray(b), threads)
    return out.reshape(*stacks, *out.shape[1:])


def exp(x: F32, pool: _native.ThreadPool | None = None) -> F32:
    """e^x of every value; 0 below the smallest normal number, inf above the largest, NaN kept; relative error < 2e-7."""
    flat = np.ascontiguousarray(x).reshape(-1)
    return _native.float_exp(flat, pool or _native.ThreadPool(1)).reshape(x.shape)


def rounding_errors(magnitudes: F32, inverse: float, pool: _native.ThreadPool | None = None) -> tuple[F64, F64, I64]:
    """What INT8 loses of magnitudes[K, T] with `inverse` steps per unit, by channel: squared errors in steps, the part of them
    in values above 127.5 steps, and how many these are -> f64[K], f64[K], i64[K]."""
    return _native.rounding_errors(np.ascontiguousarray(magnitudes), inverse, pool or _native.ThreadPool(1))


def channel_powers(x: F32, pairs: int, pool: _native.ThreadPool | None = None) -> tuple[F32, F64]:
    """Of every channel of x[T, K] the largest magnitude f32[K], and the sum over the tokens of (x / largest)^(2 pairs) f64[K].

    Where the largest is 0 the sum is 0.
    """
    return _native.channel_powers(np.ascontiguousarray(x), pairs, pool or _native.ThreadPool(1))


def column_squares(x: F32, unit: float = 1.0) -> F64:
    """Sum of (x / unit)^2 of every column of x[M, K], row by row -> f64[K]. The quotient is float32."""
    return _native.column_squares(x, unit, _native.ThreadPool(1))


def quantize_rows(weight: F32, hot: I32, pool: _native.ThreadPool | None = None) -> tuple[I8, F32, I32]:
    """weight[N, K] in INT8 tiles, the channels `hot` i32[H] (ascending) zero -> tiles, scale f32[N], row_sum i32[N].

    A row's scale is its largest magnitude / 127 (at least 1e-30). It is not finite where a value is not; the row is then 0.
    """
    return _native.quantize_rows(np.ascontiguousarray(weight), hot, pool or _native.ThreadPool(1))


def row_levels(x: F32, index: int, pool: _native.ThreadPool | None = None) -> F32:
    """The magnitude at `index`, in ascending order, of every row of x[T, K] -> f32[T]."""
    return _native.row_levels(x, index, pool or _native.ThreadPool(1))


def attention(queries: F32, keys: F32, values: F32, scale: float, pool: _native.ThreadPool | None = None) -> F32:
    """Causal grouped attention of queries[T, H, D], the last T of the positions of keys and values [G, S, D] -> [T, H, D]."""
    arrays = (np.ascontiguousarray(queries), np.ascontiguousarray(keys), np.ascontiguousarray(values))
    return _native.float_attention(*arrays, scale, pool or _native.ThreadPool(1))


def widen(x: npt.NDArray[np.uint16], out: F32, *, bfloat16: bool) -> float:
    """out[N] becomes x[N], bits of bfloat16 or of float16; the largest magnitude, NaN where there is one."""
    return _native.widen(x, out, bfloat16)


_LN2_HIGH = float.fromhex("0x1.62e42feep-1")
"""ln 2 to 32 bits: a small integer times it is exact."""
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_EXP_TERMS = 14
_LOG_TERMS = 12


def exp64(x: npt.ArrayLike) -> F64:
    """e^x: x = n ln2 + r, the series of e^r, n added to the exponent."""
    x = np.asarray(x, np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        bounded = np.clip(x, -800.0, 800.0)  # beyond both ends of float64; NaN kept
        n = np.rint(bounded * float.fromhex("0x1.71547652b82fep+0"))
        r = (bounded - n * _LN2_HIGH) - n * _LN2_LOW
        y = np.ones_like(r)
        for term in range(_EXP_TERMS, 0, -1):
            y = y * r / term + 1.0
        return np.asarray(np.ldexp(y, np.where(np.isfinite(n), n, 0).astype(np.int32)))


def log64(x: npt.ArrayLike) -> F64:
    """The natural logarithm: x = 2^n m with m near 1, the series of 2 artanh((m - 1) / (m + 1)); -inf for 0, NaN below."""
    x = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        m, n = np.frexp(x)
        low = m < float.fromhex("0x1.6a09e667f3bcdp-1")  # sqrt(1/2)
        m, n = np.where(low, 2.0 * m, m), np.where(low, n - 1, n)
        s = (m - 1.0) / (m + 1.0)
        z = s * s
        y = np.zeros_like(z)
        for term in range(_LOG_TERMS, 0, -1):
            y = (y + 1.0 / (2 * term + 1)) * z
        found = n * _LN2_HIGH + (n * _LN2_LOW + (2.0 * s * y + 2.0 * s))
        return np.asarray(np.where(x > 0.0, np.where(np.isinf(x), x, found), np.where(x == 0.0, -np.inf, np.nan)))


def power64(x: npt.ArrayLike, y: float) -> F64:
    """x^y for x >= 0 and y > 0."""
    return exp64(y * log64(x))


_SIN = ("0x1.5d93a5acfd57cp-33", "-0x1.ae5e68a2b9cebp-26", "0x1.71de357b1fe7dp-19", "-0x1.a01a019c161d5p-13",
        "0x1.111111110f8a6p-7", "-0x1.5555555555549p-3")  # fmt: skip
_COS = ("-0x1.8fae9be8838d4p-37", "0x1.1ee9ebdb4b1c4p-29", "-0x1.27e4f809c52adp-22", "0x1.a01a019cb1590p-16",
        "-0x1.6c16c16c15177p-10", "0x1.555555555554cp-5")  # fmt: skip
_QUARTER_TURN = ("0x1.921fb54400000p+0", "0x1.0b4611a600000p-34", "0x1.3198a2e037073p-69")
"""pi/2 in pieces of 33 bits: a quarter's number below 2^20 times one is exact."""


def cos_sin64(angle: F64) -> tuple[F64, F64]:
    """Cosine and sine of angles (below a million, to full accuracy), by fdlibm's polynomials on the nearest quarter turn."""
    quarter = np.rint(angle * float.fromhex("0x1.45f306dc9c883p-1"))
    r = angle
    for piece in _QUARTER_TURN:
        r = r - quarter * float.fromhex(piece)
    z = r * r
    sine = r + r * (z * _polynomial(z, _SIN))
    cosine = (1.0 - 0.5 * z) + z * (z * _polynomial(z, _COS))
    turn = quarter.astype(np.int64)
    swapped, back, down = turn & 1 == 1, (turn + 1) & 2 == 2, turn & 2 == 2
    cos, sin = np.where(swapped, sine, cosine), np.where(swapped, cosine, sine)
    return np.where(back, -cos, cos), np.where(down, -sin, sin)


def _polynomial(z: F64, coefficients: tuple[str, ...]) -> F64:
    y = np.full_like(z, float.fromhex(coefficients[0]))
    for coefficient in coefficients[1:]:
        y = y * z + float.fromhex(coefficient)
    return y
