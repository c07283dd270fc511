"""Row-wise float32 kernels: norms, rotary embedding, SwiGLU, the turn.

Every function shares its rows over `pool`, works on the calling thread alone when there is little to do, and gives the
same bits as its twin in `kernels.reference`. Wrong types, shapes or layouts raise ValueError naming the argument.
Models use `rms_norm` and `swiglu`; `head_norm` and `rope` are the steps of `attention.rope_append`, which tests compare
with their composition.

    y = pointwise.rms_norm(x, gain, 1e-6, pool)
"""

from __future__ import annotations

from kernels import _native
from kernels.types import F32, I32


def rms_norm(x: F32, gain: F32, eps: float, pool: _native.ThreadPool, out: F32 | None = None) -> F32:
    """Root mean square norm of rows: x[M, K] (rows may be strided), gain[K] -> (x * r) * gain, r = 1/sqrt(mean(x^2) + eps).

    `out` f32[M, K], C-contiguous, may be `x` itself.
    """
    return _native.rms_norm(x, gain, eps, pool, out)


def head_norm(x: F32, gain: F32, eps: float, pool: _native.ThreadPool) -> None:
    """Root mean square norm of every head, in place: x[M, H, D] (rows and heads may be strided), gain[D]."""
    _native.head_norm(x, gain, eps, pool)


def rope(x: F32, positions: I32, cos: F32, sin: F32, pool: _native.ThreadPool) -> None:
    """Rotary embedding in place, by halves of a head as Hugging Face lays them out.

    x[M, H, D] (rows and heads may be strided: a column slice of the joint q|k|v matrix), positions[M] in 0..C-1,
    cos and sin [C, D/2].
    """
    _native.rope(x, positions, cos, sin, pool)


def swiglu(gate_up: F32, pool: _native.ThreadPool, out: F32 | None = None) -> F32:
    """silu(gate) * up of the joint matrix gate_up[M, 2F], the gate in the left half -> [M, F]."""
    return _native.swiglu(gate_up, pool, out)


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
