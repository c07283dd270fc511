"""Float products and exponentials in the fixed order."""

from __future__ import annotations

import numpy as np

from kernels.reference.numeric import lane_dot
from kernels.reference.pointwise import exp as exp_of
from kernels.types import F32


def product(x: F32, weight: F32) -> F32:
    """x[..., M, K], weight[..., N, K] -> [..., M, N], each a `lane_dot`."""
    return lane_dot(np.asarray(x[..., :, None, :]), np.asarray(weight[..., None, :, :]))


def exp(x: F32) -> F32:
    """e^x of every value, as every kernel computes it."""
    return exp_of(x)
