"""The float32 functions that the reference computes with."""

from __future__ import annotations

import numpy as np

from edge_llm.operations.base import NUMPY, Arithmetic, FloatLinear
from kernels import floats

SAME_BITS = Arithmetic(floats.product, floats.exp, floats.attention)
"""By the calling thread; the same bits on every processor."""


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


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotary embedding in the half-split layout: x [T, heads, D], cos and sin [T, D / 2]."""
    half = x.shape[-1] // 2
    x1, x2 = x[..., :half], x[..., half:]
    c, s = cos[:, None, :], sin[:, None, :]
    return np.concatenate([x1 * c - x2 * s, x2 * c + x1 * s], axis=-1)


def sigmoid(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + arithmetic.exp(-x)))


def silu(x: np.ndarray, arithmetic: Arithmetic = NUMPY) -> np.ndarray:
    """x / (1 + exp(-x)), without overflow."""
    with np.errstate(over="ignore"):
        return x / (1.0 + arithmetic.exp(-x))
