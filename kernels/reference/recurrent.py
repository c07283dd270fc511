"""Mixers with a state of fixed size, row after row."""

from __future__ import annotations

import numpy as np

from edge_llm.kernels.activation import SILU
from edge_llm.kernels.reference.numeric import fma, into
from edge_llm.kernels.reference.pointwise import activate, exp, rms_norm
from edge_llm.kernels.types import F32, I32


def short_convolution(
    x: F32, weight: F32, bias: F32 | None, tails: F32, runs: I32, *, silu: bool = False, out: F32 | None = None
) -> F32:
    """Per channel sum_j weight[j] input[t - taps + 1 + j], from the bias on.

    In place: `tails`[slots, taps-1, C].
    """
    taps, y = len(weight), np.empty(x.shape, np.float32)
    for begin, end, reads, writes in runs.tolist():
        inputs = np.concatenate([tails[reads], x[begin:end]])
        for row in range(end - begin):
            total = np.zeros(x.shape[1], np.float32) if bias is None else bias
            for tap in range(taps):
                total = fma(weight[tap], inputs[row + tap], total)
            y[begin + row] = total
        tails[writes] = inputs[len(inputs) - (taps - 1) :]
    return into(out, activate(y, SILU) if silu else y)


SERIES = ("0x1.3b13b2p-4", "0x1.745d18p-4", "0x1.c71c72p-4", "0x1.24924ap-3", "0x1.99999ap-3", "0x1.555556p-2", "0x1p+0")
"""Of the inverse hyperbolic tangent, behind 1/15: 1/13 to 1."""


def softplus(x: F32) -> F32:
    """log(1 + e^x) = max(x, 0) + 2 atanh(t / (2 + t)) with t = e^-|x|: relative error below 3e-7."""
    t = exp(-np.abs(x))
    s = t / (np.float32(2) + t)
    p = np.full(x.shape, float.fromhex("0x1.111112p-4"), np.float32)
    for coefficient in SERIES:
        p = fma(p, s * s, np.float32(float.fromhex(coefficient)))
    return np.asarray(np.where(x < 0, np.float32(0), x) + (s + s) * p)


def sigmoid(x: F32) -> F32:
    """1 / (1 + e^-x)."""
    with np.errstate(over="ignore"):
        return np.asarray(np.float32(1) / (np.float32(1) + exp(-x)))


def rates(
    steps: F32, bias: F32, rate: F32, write: F32 | None, *, low: float = 0.0, high: float = float("inf")
) -> tuple[F32, F32]:
    """Decay exp(step rate) and strength, sigmoid(write) or the step: step = clamp(softplus(steps + bias))."""
    step = np.clip(softplus(steps + bias), np.float32(low), np.float32(high))
    return exp(step * rate), step if write is None else sigmoid(write)


def recurrence(
    q: F32,
    k: F32,
    v: F32,
    decay: F32,
    strength: F32,
    skip: F32 | None,
    states: F32,
    runs: I32,
    *,
    corrects: bool,
    out: F32 | None = None,
) -> F32:
    """S = decay S + k u, out = q S (+ skip v): u = strength v, or strength (v - decay k S).

    Sums over the channels of keys are chains of fma from 0. In place: `states`[slots, H, K, V].
    """
    y, served = np.empty(v.shape, np.float32), v.shape[1] // k.shape[1]
    for begin, end, reads, writes in runs.tolist():
        state = states[reads]
        for row in range(begin, end):
            queries, keys = (np.repeat(one[row], served, axis=0) for one in (q, k))
            faded, written, value = decay[row][:, None], strength[row][:, None], v[row]
            u = written * (value - faded * _recalled(keys, state)) if corrects else written * value
            state = fma(keys[:, :, None], u[:, None], state * faded[:, None])
            y[row] = _recalled(queries, state)
            if skip is not None:
                y[row] = fma(skip[:, None], value, y[row])
        states[writes] = state
    return into(out, y)


def _recalled(keys: F32, state: F32) -> F32:
    """keys [H, K] times state [H, K, V] -> [H, V]."""
    total = np.zeros((state.shape[0], state.shape[2]), np.float32)
    for channel in range(state.shape[1]):
        total = fma(keys[:, channel, None], state[:, channel], total)
    return total


def gated_norm(x: F32, gate: F32, gain: F32, eps: float, group: int, *, gate_first: bool, out: F32 | None = None) -> F32:
    """rms_norm(x) gain silu(gate), or rms_norm(x silu(gate)) gain, over groups of channels."""
    gates, grouped = activate(gate, SILU), (len(x), -1, group)
    normed = (x * gates if gate_first else x).reshape(grouped)
    y = rms_norm(normed, gain if len(gain) == group else gain.reshape(-1, group), eps).reshape(x.shape)
    return into(out, y if gate_first else y * gates)


def sigmoid_gate(x: F32, gate: F32, *, out: F32 | None = None) -> F32:
    """x * sigmoid(gate)."""
    return into(out, x * sigmoid(gate))
