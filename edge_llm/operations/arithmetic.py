"""The float32 functions that the reference computes with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from edge_llm.kernels import ThreadPool, floats
from edge_llm.operations.base import NUMPY, Arithmetic, FloatLinear

SAME_BITS = Arithmetic(floats.product, floats.exp, floats.attention)
"""By the calling thread; the same bits on every processor."""


def same_bits_by(pool: ThreadPool) -> Arithmetic:
    """`SAME_BITS`, whose products the threads of ``pool`` share."""
    return replace(SAME_BITS, product=lambda x, weight: floats.product(x, weight, pool))


def apply_float(weights: FloatLinear, x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """x @ W.T (+ bias)."""
    y = arithmetic.product(x, weights.weight)
    return y if weights.bias is None else y + weights.bias


def rms_norm(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * gain over the last axis."""
    return x * _rms(x, eps) * gain


def rms_norm_gradient(x: np.ndarray, gain: np.ndarray, eps: float, gradient: np.ndarray) -> np.ndarray:
    """The gradient at x [..., C] of that at ``rms_norm(x, gain, eps)``."""
    scale = _rms(x, eps)
    scaled = gradient * gain
    return np.asarray(scale * scaled - x * scale * scale * scale * np.mean(x * scaled, axis=-1, keepdims=True), np.float32)


def _rms(x: np.ndarray, eps: float) -> np.ndarray:
    """1 / sqrt(mean(x^2) + eps)."""
    return np.asarray(1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32) + np.float32(eps)))


def layer_norm(x: np.ndarray, gain: np.ndarray, bias: np.ndarray | None, eps: float) -> np.ndarray:
    """(x - mean) / sqrt(variance + eps) * gain (+ bias) over the last axis."""
    y = rms_norm(_centred(x), gain, eps)
    return y if bias is None else y + bias


def layer_norm_gradient(x: np.ndarray, gain: np.ndarray, eps: float, gradient: np.ndarray) -> np.ndarray:
    """The gradient at x [..., C] of that at ``layer_norm(x, gain, bias, eps)``."""
    return _centred(rms_norm_gradient(_centred(x), gain, eps, gradient))


def _centred(x: np.ndarray) -> np.ndarray:
    return np.asarray(x - np.mean(x, axis=-1, keepdims=True, dtype=np.float32))


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotary embedding of the first R channels of heads, by halves: x [T, heads, D], cos and sin [T, R / 2]."""
    half = cos.shape[-1]
    x1, x2, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    c, s = cos[:, None, :], sin[:, None, :]
    turned = [x1 * c - x2 * s, x2 * c + x1 * s]
    return np.concatenate([*turned, rest] if rest.shape[-1] else turned, axis=-1)


def sigmoid(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + arithmetic.exp(-x)))


def silu(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """x / (1 + exp(-x)), without overflow."""
    with np.errstate(over="ignore"):
        return x / (1.0 + arithmetic.exp(-x))


def silu_slope(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """The derivative of `silu`."""
    share = sigmoid(x, arithmetic)
    return np.asarray(share * (1.0 + x * (1.0 - share)))


def tanh(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """1 - 2 / (exp(2 x) + 1), without overflow."""
    with np.errstate(over="ignore"):
        return np.asarray(np.float32(1) - np.float32(2) / (arithmetic.exp(np.float32(2) * x) + np.float32(1)))


def soft_cap(x: np.ndarray, limit: float, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """limit tanh(x / limit); x itself where the limit is 0."""
    return np.float32(limit) * tanh(x / np.float32(limit), arithmetic) if limit else x


def soft_cap_slope(capped: np.ndarray, limit: float) -> np.ndarray:
    """The derivative of `soft_cap` where that gives ``capped``; the limit is above 0."""
    return np.asarray(np.float32(1) - np.square(capped / np.float32(limit)))


_ROOT, _CUBE = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)


def gelu_tanh(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks and Gimpel, 2016, arXiv 1606.08415)."""
    return np.asarray(np.float32(0.5) * x * (1 + tanh(_ROOT * (x + _CUBE * x * x * x), arithmetic)))


def gelu_tanh_slope(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """The derivative of `gelu_tanh`."""
    bent = tanh(_ROOT * (x + _CUBE * x * x * x), arithmetic)
    inner = _ROOT * (1 + np.float32(3) * _CUBE * x * x)
    return np.asarray(np.float32(0.5) * (1 + bent) + np.float32(0.5) * x * (1 - bent * bent) * inner)


_TAIL = (
    -0.059068952, 0.28457493, -0.48719981, 0.27806708, -0.026625603, 0.20268685, 0.24310377, 0.28237531, 0.28208643,
)  # fmt: skip
"""Of `normal_share`, from the highest power of t on: relative error below 1e-7."""


def normal_share(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """(1 + erf(x / sqrt(2))) / 2, by a polynomial in t = 1 / (1 + |x| / sqrt(8)) times exp(-x^2 / 2)."""
    t = np.float32(1) / (np.float32(1) + np.float32(1 / math.sqrt(8)) * np.abs(x))
    polynomial = np.full_like(x, _TAIL[0])
    for coefficient in _TAIL[1:]:
        polynomial = polynomial * t + np.float32(coefficient)
    tail = np.float32(0.5) * polynomial * t * arithmetic.exp(np.float32(-0.5) * x * x)
    return np.where(x < 0, tail, 1 - tail)


def gelu_erf(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """x (1 + erf(x / sqrt(2))) / 2."""
    return np.asarray(x * normal_share(x, arithmetic))


def gelu_erf_slope(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """The derivative of `gelu_erf`."""
    density = np.float32(1 / math.sqrt(2 * math.pi)) * arithmetic.exp(np.float32(-0.5) * x * x)
    return np.asarray(normal_share(x, arithmetic) + x * density)


def relu(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """max(x, 0)."""
    return np.maximum(x, np.float32(0))


def relu_slope(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """The derivative of `relu`."""
    return (x > 0).astype(np.float32)


def relu_squared(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """max(x, 0)^2."""
    return np.square(relu(x))


def relu_squared_slope(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """The derivative of `relu_squared`."""
    return 2 * relu(x)


_OfFloats = Callable[[np.ndarray, Arithmetic], np.ndarray]
ACTIVATIONS: Mapping[str, tuple[_OfFloats, _OfFloats]] = {
    "silu": (silu, silu_slope),
    "gelu_tanh": (gelu_tanh, gelu_tanh_slope),
    "gelu_erf": (gelu_erf, gelu_erf_slope),
    "relu": (relu, relu_slope),
    "relu_squared": (relu_squared, relu_squared_slope),
}
"""By their names in `kernels.activation`, each with its derivative."""
RELUS = ("relu", "relu_squared")
"""Those of which most values are 0."""
