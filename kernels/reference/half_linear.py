"""The linear with float16 weights."""

from __future__ import annotations

import numpy as np

from edge_llm.kernels.activation import SILU, Activation
from edge_llm.kernels.reference.numeric import fma, into
from edge_llm.kernels.reference.pointwise import gated, rms_norm
from edge_llm.kernels.types import F16, F32


def half_linear(
    x: F32,
    weight: F16,
    *,
    bias: F32 | None = None,
    add: F32 | None = None,
    gain: F32 | None = None,
    eps: float = 0.0,
    gate: Activation | None = None,
    swiglu: bool = False,
    out: F32 | None = None,
) -> F32:
    """x[M, K], normed with `gain`, times weight[K, N], + bias[N], + add[M, N] -> [M, N]; with a `gate` gated(y, gate) [M, N/2].

    From 0, for k ascending: y = fma(x[:, k], weight[k], y).
    """
    gate = SILU if swiglu else gate
    if gate is not None and add is not None:
        raise ValueError("`gate` takes no `add`")
    normed = x if gain is None else rms_norm(x, gain, eps)
    if not np.isfinite(normed).all():
        raise ValueError("non-finite activation")
    y = np.zeros((len(x), weight.shape[1]), np.float32)
    for k in range(len(weight)):
        y = fma(normed[:, k, None], weight[k].astype(np.float32), y)
    if bias is not None:
        y = y + bias
    if gate is not None:
        y = gated(y, gate)
    return into(out, y if add is None else y + add)
