"""Mixers that keep a state of fixed size of a sequence: gated delta rule, Mamba2, short convolutions.

Every function shares its work over `pool` and gives the same bits as its twin in `kernels.reference`. Wrong types, shapes or
layouts raise ValueError naming the argument.

`runs` int32[R, 4] says which rows belong together: begin, end, reads, writes. Rows begin..end-1 are of one sequence in order;
they continue what the slot `reads` holds, and the slot `writes`, which may be the same, takes what comes behind the last row.
Runs follow each other and cover all rows; none reads or writes a slot that another writes. Rows are computed one behind the
other, so cutting them in two calls changes no bit. A slot of zeros begins a sequence.
"""

from __future__ import annotations

from edge_llm.kernels import _native
from edge_llm.kernels.types import F32, I32

MAX_TAPS = 16
"""Inputs that a short convolution adds up at most."""
MAX_KEYS = 256
"""Channels of a head's keys at most."""
VALUE_STEP = 16
"""What the channels of a head's values are a multiple of."""


def short_convolution(
    x: F32,
    weight: F32,
    bias: F32 | None,
    tails: F32,
    runs: I32,
    pool: _native.ThreadPool,
    *,
    silu: bool = False,
    out: F32 | None = None,
) -> F32:
    """Causal convolution of every channel: x[M, C] (rows may be strided), weight[taps, C], the oldest first, bias[C] -> [M, C].

    `tails`[slots, taps-1, C] holds the inputs before a run, the oldest first, and is kept up. Then silu, if asked for.
    """
    return _native.short_convolution(x, weight, bias, tails, runs, silu, pool, out)


def rates(
    steps: F32,
    bias: F32,
    rate: F32,
    write: F32 | None,
    pool: _native.ThreadPool,
    *,
    low: float = 0.0,
    high: float = float("inf"),
) -> tuple[F32, F32]:
    """How states fade and are written: steps[M, H] (rows may be strided), bias and rate [H] -> decay and strength [M, H].

    step = clamp(softplus(steps + bias), low, high); decay = exp(step * rate); the strength is sigmoid(write[M, H]), or the
    step itself.
    """
    return _native.recurrent_rates(steps, bias, rate, write, low, high, pool)


def recurrence(
    q: F32,
    k: F32,
    v: F32,
    decay: F32,
    strength: F32,
    skip: F32 | None,
    states: F32,
    runs: I32,
    pool: _native.ThreadPool,
    *,
    corrects: bool,
    out: F32 | None = None,
) -> F32:
    """q, k[M, G, K] and v[M, H, V] (rows and heads may be strided), decay and strength [M, H] -> [M, H, V].

    Of every head S[K, V] = decay S + k u and out = q S (+ skip[H] v), with u = strength v, or with `corrects` the delta rule's
    u = strength (v - decay k S). A head of q and k serves H / G neighbouring heads of v. `states`[slots, H, K, V] is kept up.
    """
    return _native.recurrence(q, k, v, decay, strength, skip, states, runs, corrects, pool, out)


def gated_norm(
    x: F32,
    gate: F32,
    gain: F32,
    eps: float,
    group: int,
    pool: _native.ThreadPool,
    *,
    gate_first: bool,
    out: F32 | None = None,
) -> F32:
    """rms_norm(x) gain silu(gate), or with `gate_first` rms_norm(x silu(gate)) gain, over groups of neighbouring channels.

    x and gate [M, W] (rows may be strided), gain[group] for all groups or [W]. `out` may be x.
    """
    return _native.gated_norm(x, gate, gain, eps, group, gate_first, pool, out)


def sigmoid_gate(x: F32, gate: F32, pool: _native.ThreadPool, out: F32 | None = None) -> F32:
    """x * sigmoid(gate), both [M, W]; `out` may be x."""
    return _native.sigmoid_gate(x, gate, pool, out)
