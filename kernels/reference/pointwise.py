"""Row-wise float32: norms, rotary embedding, SwiGLU."""

from __future__ import annotations

import numpy as np

from kernels.reference.numeric import fma, into, lane_dot
from kernels.types import F32, I32


def exp(x: F32) -> F32:
    """e^x as the kernels compute it: x = n ln2 + r, a degree-7 polynomial in r, n added to the exponent field.

    0 below the smallest normal number (exp(-inf) = 0), inf above the largest, NaN kept; relative error < 2e-7.
    """
    f32 = np.float32
    with np.errstate(invalid="ignore", over="ignore"):
        n = np.rint(x * f32(float.fromhex("0x1.715476p+0")))
        r = fma(n, f32(float.fromhex("-0x1.62e400p-1")), x)
        r = fma(n, f32(float.fromhex("-0x1.7f7d1cp-20")), r)
        y = np.full(r.shape, float.fromhex("0x1.a01a02p-13"), np.float32)
        for coefficient in ("0x1.6c16c2p-10", "0x1.111112p-7", "0x1.555556p-5", "0x1.555556p-3", "0x1p-1"):
            y = fma(y, r, f32(float.fromhex(coefficient)))
        y = fma(y * r, r, r) + f32(1)
        shift = np.where(np.abs(n) < 2.0**8, n, 0).astype(np.int32) << 23
        y = np.asarray(y.view(np.int32) + shift).view(np.float32)
    y = np.where(x < f32(float.fromhex("-0x1.5d589ep+6")), f32(0), y)
    return np.asarray(np.where(x > f32(float.fromhex("0x1.62e42ep+6")), f32(np.inf), y))


def rms_norm(x: F32, gain: F32, eps: float, *, out: F32 | None = None) -> F32:
    """x[M, K], gain[K] -> (x * r) * gain with r = 1 / sqrt(mean(x^2) + eps)."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        mean = lane_dot(x, x) / np.float32(x.shape[-1])
        r = np.float32(1) / np.sqrt(mean + np.float32(eps))
        y = (x * r[..., None]) * gain
    return into(out, y)


def head_norm(x: F32, gain: F32, eps: float) -> None:
    """In place, `rms_norm` of every head: x[M, H, D], gain[D]."""
    x[:] = rms_norm(x, gain, eps)


def rope(x: F32, positions: I32, cos: F32, sin: F32) -> None:
    """In place, rotary embedding by halves: x[M, H, D], positions[M], cos and sin [C, D/2].

    (x1, x2) -> (fma(-x2, s, x1*c), fma(x1, s, x2*c)), x1 and x2 the halves of a head (the layout of Hugging Face).
    """
    half = x.shape[-1] // 2
    c, s = cos[positions][:, None], sin[positions][:, None]
    x1, x2 = x[..., :half].copy(), x[..., half:].copy()
    x[..., :half] = fma(-x2, s, x1 * c)
    x[..., half:] = fma(x1, s, x2 * c)


def swiglu(gate_up: F32, *, out: F32 | None = None) -> F32:
    """gate_up[M, 2F], the gate in the left half -> silu(gate) * up [M, F], silu(g) = g / (1 + exp(-g))."""
    width = gate_up.shape[1] // 2
    gate, up = gate_up[:, :width], gate_up[:, width:]
    with np.errstate(invalid="ignore", over="ignore"):
        y = (gate / (np.float32(1) + exp(-gate))) * up
    return into(out, y)


_swiglu = swiglu  # `linear` has an argument of that name
