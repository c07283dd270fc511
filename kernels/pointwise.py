"""Row-wise float32 kernels: norms, rotary embedding, gates and activations, the turn.

Every function shares its rows over `pool`, works on the calling thread alone when there is little to do, and gives the
same bits as its twin in `kernels.reference`. Wrong types, shapes or layouts raise ValueError naming the argument.
Models use the norms of rows, `gated` and `activate`; `head_norm` and `rope` are the steps of `attention.rope_append`, which
tests compare with their composition.

    y = pointwise.rms_norm(x, gain, 1e-6, pool)
"""

from __future__ import annotations

from edge_llm.kernels import _native
from edge_llm.kernels.activation import SILU, Activation, numbers
from edge_llm.kernels.types import F32, I32


def rms_norm(x: F32, gain: F32, eps: float, pool: _native.ThreadPool, out: F32 | None = None, *, add: F32 | None = None) -> F32:
    """Root mean square norm of rows: x[M, K], gain[K] -> (x * r) * gain (+ add[M, K]), r = 1/sqrt(mean(x^2) + eps).

    Rows of all may be strided, such as columns of a wider matrix. `out` f32[M, K] may be `x` or `add` itself.
    """
    return _native.rms_norm(x, gain, eps, pool, out, add)


def layer_norm(
    x: F32,
    gain: F32,
    bias: F32 | None,
    eps: float,
    pool: _native.ThreadPool,
    out: F32 | None = None,
    *,
    add: F32 | None = None,
) -> F32:
    """Norm of rows less their mean: x[M, K] -> (d * r) * gain[K] (+ bias[K]) (+ add[M, K]).

    d = x - mean(x), r = 1/sqrt(mean(d^2) + eps). Arrays are those of `rms_norm`.
    """
    return _native.layer_norm(x, gain, bias, eps, pool, out, add)


def head_norm(x: F32, gain: F32, eps: float, pool: _native.ThreadPool) -> None:
    """Root mean square norm of every head, in place: x[M, H, D] (rows and heads may be strided), gain[D]."""
    _native.head_norm(x, gain, eps, pool)


def rope(x: F32, positions: I32, cos: F32, sin: F32, pool: _native.ThreadPool) -> None:
    """Rotary embedding in place, by halves of a head as Hugging Face lays them out.

    x[M, H, D] (rows and heads may be strided: a column slice of the joint q|k|v matrix), positions[M] in 0..C-1,
    cos and sin [C, R/2]: the first R <= D channels of a head are rotated.
    """
    _native.rope(x, positions, cos, sin, pool)


def gated(gate_up: F32, gate: Activation, pool: _native.ThreadPool, out: F32 | None = None) -> F32:
    """activation(gate) * up of the joint matrix gate_up[M, 2F], the gate in the left half -> [M, F]."""
    return _native.gated(gate_up, *numbers(gate), pool, out)


def swiglu(gate_up: F32, pool: _native.ThreadPool, out: F32 | None = None) -> F32:
    """`gated` by SILU."""
    return gated(gate_up, SILU, pool, out)


def activate(x: F32, kind: Activation, pool: _native.ThreadPool, out: F32 | None = None) -> F32:
    """The activation of every element of x[M, K]; `out` may be `x`. Raises ValueError for a kind that needs an up half."""
    return _native.activate(x, *numbers(kind), pool, out)


MAX_TURN = 128
"""Largest block of channels that is turned."""


def is_turn(block: int) -> bool:
    """Whether blocks of so many channels can be turned; 0 turns nothing."""
    return block == 0 or (2 <= block <= MAX_TURN and block & (block - 1) == 0)


def turn(x: F32, block: int, pool: _native.ThreadPool) -> None:
    """Multiply every `block` of neighbouring channels of x[M, K] by the Hadamard matrix H of +1 and -1, in place.

    `block` is 0, which changes nothing, or a power of two from 2 to `MAX_TURN` that divides K. H is symmetric and H H = block:
    two turns give block * x. After Sylvester's construction; rotations before rounding are QuaRot's (Ashkboos et al., 2024,
    arXiv 2404.00456).
    """
    _native.turn(x, block, pool)
