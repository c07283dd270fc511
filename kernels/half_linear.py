"""The linear with float16 weights: float32 activations, one chain of fused multiply-adds for every output.

`half_linear` takes the weight [K, N] as a bundle has it. Every output starts from 0 and takes the input channels in ascending
order, one fma each; so a row's result does not depend on the other rows, on the number of threads or on the instruction set.
`kernels.reference.half_linear` defines it. `Program.half_linear` is the same in a program.

    y = half_linear(x, weight, pool, bias=bias, gain=gain, eps=1e-6)
"""

from __future__ import annotations

from edge_llm.kernels import _native
from edge_llm.kernels._native import ThreadPool
from edge_llm.kernels.activation import Activation, numbers
from edge_llm.kernels.types import F16, F32


def half_linear(
    x: F32,
    weight: F16,
    pool: ThreadPool,
    *,
    bias: F32 | None = None,
    add: F32 | None = None,
    gain: F32 | None = None,
    eps: float = 0.0,
    gate: Activation | None = None,
    swiglu: bool = False,
    out: F32 | None = None,
) -> F32:
    """x[M, K] @ weight[K, N] (+ bias[N]) (+ add[M, N]) -> [M, N].

    With `gain` f32[K] x is `rms_norm(x, gain, eps)` first. With a `gate`, which excludes `add`, the result is `gated(y, gate)`
    [M, N/2]; `swiglu` is the gate SILU. `out` may be `x` or `add`. Raises ValueError that names a wrong argument, and for an
    activation that is not finite; `out` is then left as it was.
    """
    return _native.half_linear(x, weight, pool, bias, add, gain, eps, *numbers(gate, swiglu), out)
