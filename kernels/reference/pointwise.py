"""Row-wise float32: norms, rotary embedding, gates and activations."""

from __future__ import annotations

import numpy as np

from edge_llm.kernels.activation import SILU, Activation
from edge_llm.kernels.reference.numeric import fma, into, lane_dot, lane_sum
from edge_llm.kernels.types import F32, I32


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


def tanh(x: F32) -> F32:
    """1 - 2 / (e^2x + 1), as the kernels compute it: |error| < 2e-7."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.float32(1) - np.float32(2) / (exp(x * np.float32(2)) + np.float32(1)))


def rms_norm(x: F32, gain: F32, eps: float, *, out: F32 | None = None, add: F32 | None = None) -> F32:
    """x[M, K], gain[K] -> (x * r) * gain (+ add[M, K]) with r = 1 / sqrt(mean(x^2) + eps)."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        y = (x * _inverse_root(x, eps)) * gain
    return into(out, y if add is None else y + add)


def layer_norm(x: F32, gain: F32, bias: F32 | None, eps: float, *, out: F32 | None = None, add: F32 | None = None) -> F32:
    """x[M, K], gain[K], bias[K] -> (d * r) * gain (+ bias) (+ add[M, K]): d = x - mean(x), r = 1 / sqrt(mean(d^2) + eps)."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        d = x - (lane_sum(x) / np.float32(x.shape[-1]))[..., None]
        y = (d * _inverse_root(d, eps)) * gain
        if bias is not None:
            y = y + bias
    return into(out, y if add is None else y + add)


def _inverse_root(x: F32, eps: float) -> F32:
    return np.asarray(np.float32(1) / np.sqrt(lane_dot(x, x) / np.float32(x.shape[-1]) + np.float32(eps)))[..., None]


def head_norm(x: F32, gain: F32, eps: float) -> None:
    """In place, `rms_norm` of every head: x[M, H, D], gain[D]."""
    x[:] = rms_norm(x, gain, eps)


def rope(x: F32, positions: I32, cos: F32, sin: F32) -> None:
    """In place, rotary embedding by halves: x[M, H, D], positions[M], cos and sin [C, R/2] with R <= D.

    (x1, x2) -> (fma(-x2, s, x1*c), fma(x1, s, x2*c)), x1 and x2 the halves of a head's first R channels (the layout of Hugging
    Face); the others stay.
    """
    half = cos.shape[1]
    c, s = cos[positions][:, None], sin[positions][:, None]
    x1, x2 = x[..., :half].copy(), x[..., half : 2 * half].copy()
    x[..., :half] = fma(-x2, s, x1 * c)
    x[..., half : 2 * half] = fma(x1, s, x2 * c)


def activate(x: F32, kind: Activation, *, out: F32 | None = None) -> F32:
    """The activation of every element; `kind` is not a clamped_silu."""
    with np.errstate(invalid="ignore", over="ignore"):
        if kind.name == "soft_cap":
            limit = np.float32(kind.limit)
            return into(out, tanh(x * (np.float32(1) / limit)) * limit)
        return into(out, _ACTIVATIONS[kind.name](x))


def gated(gate_up: F32, gate: Activation, *, out: F32 | None = None) -> F32:
    """gate_up[M, 2F], the gate in the left half -> activation(gate) * up [M, F]; a clamped_silu changes up itself."""
    width = gate_up.shape[1] // 2
    g, u = gate_up[:, :width], gate_up[:, width:]
    with np.errstate(invalid="ignore", over="ignore"):
        if gate.name == "clamped_silu":
            return into(out, _clamped_silu(g, u, np.float32(gate.limit)))
        return into(out, activate(g, gate) * u)


def swiglu(gate_up: F32, *, out: F32 | None = None) -> F32:
    """`gated` by silu."""
    return gated(gate_up, SILU, out=out)


def _silu(g: F32) -> F32:
    return np.asarray(g / (np.float32(1) + exp(-g)))


def _gelu_tanh(g: F32) -> F32:
    slope = fma(g * g, _hex("-0x1.2444f2p-4"), _hex("-0x1.988454p+0"))  # -2 sqrt(2 / pi) (0.044715 g^2 + 1)
    return np.asarray(g / (np.float32(1) + exp(g * slope)))


def _gelu_erf(g: F32) -> F32:
    """g times the normal distribution's integral: its tail by exp and a polynomial in t = 1 / (1 + |g| / sqrt(8)).

    The polynomial is e^(z^2) erfc(z) / t with z = |g| / sqrt(2), of relative error < 5e-8 up to z = 10.
    """
    t = np.float32(1) / fma(np.abs(g), _hex("0x1.6a09e6p-2"), np.float32(1))
    p = np.full(g.shape, _hex("-0x1.e3e492p-5"))
    for coefficient in (
        "0x1.23679cp-2", "-0x1.f2e482p-2", "0x1.1cbd9ep-2", "-0x1.b43be0p-6",
        "0x1.9f1a48p-3", "0x1.f1e064p-3", "0x1.2126fep-2", "0x1.20db44p-2",
    ):  # fmt: skip
        p = fma(p, t, _hex(coefficient))
    tail = (p * t) * (np.float32(0.5) * exp((g * g) * np.float32(-0.5)))
    return np.asarray(g * np.where(g < 0, tail, np.float32(1) - tail))


def _relu(g: F32) -> F32:
    return np.where(g < 0, np.float32(0), g)


def _clamped_silu(gate: F32, up: F32, limit: np.float32) -> F32:
    g = np.where(gate > limit, limit, gate)
    u = np.where(up > limit, limit, np.where(up < -limit, -limit, up))
    return np.asarray((u + np.float32(1)) * (g / (np.float32(1) + exp(g * _hex("-0x1.b3b646p+0")))))


def _hex(number: str) -> np.float32:
    return np.float32(float.fromhex(number))


_ACTIVATIONS = {
    "silu": _silu,
    "gelu_tanh": _gelu_tanh,
    "gelu_erf": _gelu_erf,
    "relu": _relu,
    "relu_squared": lambda g: _relu(g) * _relu(g),
}
