"""The gradient of the float path, a layer at a time: what its predictions feel of a change in a linear's output.

Every operation's vector-Jacobian product, in the order of `edge_llm.models.reference`, which defines the values.  Whoever
quantizes a linear asks for the gradient of the log-probability of tokens that the model itself draws: half the mean square of
gradient times error is then the divergence that the error causes, to first order (the diagonal of Fisher's information;
Amari, 1998).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from edge_llm.models.layer import HIDDEN, Attention, Layer, Linear, Norm
from edge_llm.models.reference import NUMPY, Arithmetic, apply_float, rms_norm, rotate, silu
from edge_llm.models.rope import RopeTables, Tables
from edge_llm.models.weights import LayerWeights

ObserveGradient = Callable[[str, np.ndarray, np.ndarray], None]
"""Told a linear's name, its input float32 [T, K] and the gradient at its product [T, N]."""
Back = Callable[[np.ndarray], np.ndarray]
"""From the gradient at what an operation writes to that at what it reads."""

_DRAWS = 1
"""Seed of the tokens that are drawn."""
_ROWS = 8192
"""Rows of a matrix that are multiplied at a time: it is not copied whole."""


def layer_gradient(
    x: np.ndarray,
    layer: Layer,
    weights: LayerWeights,
    tables: RopeTables,
    gradient: np.ndarray,
    observe: ObserveGradient,
    arithmetic: Arithmetic = NUMPY,
) -> np.ndarray:
    """The gradient at the input x float32 [T, hidden] of ``layer``, of the ``gradient`` at its output; x is one sequence."""
    buffers, steps = {HIDDEN: x}, []
    back: Back
    for operation in layer.operations:
        y = buffers[operation.reads]
        if isinstance(operation, Norm):
            gain = weights.gains[operation.gain.name]
            written, back = rms_norm(y, gain, operation.eps), partial(rms_norm_gradient, y, gain, operation.eps)
        elif isinstance(operation, Linear):
            linear = weights.linears[operation.name]
            written, back = apply_float(linear, y, arithmetic), partial(_through, linear.weight, arithmetic)
            written = buffers[operation.adds] + written if operation.adds else written
        elif isinstance(operation, Attention):
            written, back = _attention(operation, weights.gains, y, tables[operation.rope], arithmetic)
        else:
            written, back = _swiglu(y, arithmetic)
        steps.append((operation, y, back))
        buffers[operation.writes] = written
    felt = {HIDDEN: gradient}
    for operation, y, back in reversed(steps):
        at_output = felt.pop(operation.writes)
        if isinstance(operation, Linear):
            observe(operation.name, y, at_output)
            if operation.adds:
                _add(felt, operation.adds, at_output)
        _add(felt, operation.reads, back(at_output))
    return felt[HIDDEN]


def _add(felt: dict[str, np.ndarray], name: str, gradient: np.ndarray) -> None:
    felt[name] = felt[name] + gradient if name in felt else gradient


def drawn_gradient(
    states: np.ndarray, output: np.ndarray, random: np.random.Generator, arithmetic: Arithmetic = NUMPY
) -> np.ndarray:
    """The gradient at ``states`` [T, hidden] of the log-probability of tokens that are drawn from what they predict.

    ``output`` [V, hidden] gives the logits; one token is drawn behind every state.
    """
    logits = np.concatenate([arithmetic.product(states, output[rows]) for rows in _blocks(len(output))], axis=1)
    logits -= logits.max(axis=1, keepdims=True)
    likely = arithmetic.exp(logits)
    del logits  # as large as all that follows
    likely /= likely.sum(axis=1, keepdims=True)
    below = np.cumsum(likely, axis=1, dtype=np.float64)
    drawn = [
        int(np.searchsorted(row, at * row[-1])) for row, at in zip(below, random.random(len(below)), strict=True)
    ]
    likely *= -1
    likely[np.arange(len(drawn)), drawn] += 1
    return _through(output, arithmetic, likely)


def draws() -> np.random.Generator:
    """The same draws every time."""
    return np.random.default_rng(_DRAWS)


def rms_norm_gradient(x: np.ndarray, gain: np.ndarray, eps: float, gradient: np.ndarray) -> np.ndarray:
    """The gradient at x [..., C] of that at ``rms_norm(x, gain, eps)``."""
    scale = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32) + np.float32(eps))
    scaled = gradient * gain
    return np.asarray(scale * scaled - x * scale * scale * scale * np.mean(x * scaled, axis=-1, keepdims=True), np.float32)


def _through(weight: np.ndarray, arithmetic: Arithmetic, gradient: np.ndarray) -> np.ndarray:
    """From the output [T, N] to the input [T, K] of a ``weight`` [N, K]; `_ROWS` of its rows are turned over at a time."""
    found = np.zeros((len(gradient), weight.shape[1]), np.float32)
    for rows in _blocks(len(weight)):
        found += arithmetic.product(np.ascontiguousarray(gradient[:, rows]), np.ascontiguousarray(weight[rows].T))
    return found


def _blocks(rows: int) -> list[slice]:
    return [slice(start, start + _ROWS) for start in range(0, rows, _ROWS)]


def _swiglu(y: np.ndarray, arithmetic: Arithmetic) -> tuple[np.ndarray, Back]:
    gate, up = np.split(y, 2, axis=1)
    passed = silu(gate, arithmetic)

    def back(gradient: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            open_ = 1.0 / (1.0 + arithmetic.exp(-gate))
        slope = open_ * (1.0 + gate * (1.0 - open_))
        return np.concatenate([gradient * up * slope, gradient * passed], axis=1)

    return passed * up, back


def _attention(
    attention: Attention, gains: Mapping[str, np.ndarray], qkv: np.ndarray, rope: Tables, arithmetic: Arithmetic
) -> tuple[np.ndarray, Back]:
    """Attention of a whole sequence [T, q | k | v], and the way back through it."""
    tokens, dim, groups = len(qkv), attention.head_dim, attention.heads // attention.kv_heads
    cos, sin = (table[:tokens] for table in rope)
    heads = qkv.reshape(tokens, -1, dim)
    before_q, before_k, v = np.split(heads, [attention.heads, attention.heads + attention.kv_heads], axis=1)
    norms = [None if gain is None else gains[gain.name] for gain in (attention.q_norm, attention.k_norm)]
    q, k = (
        rotate(x if gain is None else rms_norm(x, gain, attention.eps), cos, sin)
        for x, gain in zip((before_q, before_k), norms, strict=True)
    )
    scale = np.float32(1.0 / math.sqrt(dim))
    q = np.ascontiguousarray(q.transpose(1, 0, 2)).reshape(attention.kv_heads, groups, tokens, dim)
    k, v = (np.ascontiguousarray(x.transpose(1, 0, 2))[:, None] for x in (k, v))  # [Hkv, 1, T, D]
    scores = arithmetic.product(q, k) * scale
    scores[..., np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    weights = arithmetic.exp(scores)
    weights /= weights.sum(axis=-1, keepdims=True)  # [Hkv, G, T, T]
    mixed = arithmetic.product(weights, _transposed(v))
    out = mixed.transpose(2, 0, 1, 3).reshape(tokens, -1)

    def back(gradient: np.ndarray) -> np.ndarray:
        at_mixed = np.ascontiguousarray(gradient.reshape(tokens, attention.kv_heads, groups, dim).transpose(1, 2, 0, 3))
        at_v = arithmetic.product(_transposed(weights), _transposed(at_mixed)).sum(axis=1)
        at_weights = arithmetic.product(at_mixed, v)
        at_scores = weights * (at_weights - (at_weights * weights).sum(axis=-1, keepdims=True)) * scale
        at_q = arithmetic.product(at_scores, _transposed(k)).reshape(attention.heads, tokens, dim)
        at_k = arithmetic.product(_transposed(at_scores), _transposed(q)).sum(axis=1)
        found = [rotate(x.transpose(1, 0, 2), cos, -sin) for x in (at_q, at_k)]
        for number, (x, gain) in enumerate(zip((before_q, before_k), norms, strict=True)):
            if gain is not None:
                found[number] = rms_norm_gradient(x, gain, attention.eps, found[number])
        return np.concatenate([*found, at_v.transpose(1, 0, 2)], axis=1).reshape(tokens, -1)

    return out, back


def _transposed(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.swapaxes(-1, -2))
